"""Programs of every kind that must pass under a correct backend, and subtle defects that must not."""

import collections
import dataclasses
import enum
import warnings

import pytest
import torch

from pytest_fusealias.build import Program, ProgramError
from pytest_fusealias.check import check
from pytest_fusealias.model import Outcome, Spec


def through(change):
    """A compiler of functions that compiles with `eager` and changes the result."""

    def compile_function(function):
        compiled = torch.compile(function, backend="eager")
        return lambda *args, **kwargs: change(compiled(*args, **kwargs))

    return compile_function


def instead(replacement):
    """A compiler that compiles another function than the one it was given."""

    def compile_function(_function):
        return torch.compile(replacement, backend="eager")

    return compile_function


def fired(factory, backend, **spec):
    return {c.check for c in check(factory, Spec(backend=backend, **spec)).failures}


@dataclasses.dataclass
class Pair:
    tensor: torch.Tensor
    weight: float


class Color(enum.Enum):
    RED = 1
    BLUE = 2


Named = collections.namedtuple("Named", "first second")

RESULTS = {
    "tuple_for_list": (lambda x: (x + 1, x * 2), list),
    "dict_for_ordered": (lambda x: {"a": x + 1}, collections.OrderedDict),
    "empty_container": (lambda x: (x + 1, ()), lambda r: (r[0], [])),
    "dataclass_field": (lambda x: Pair(x * 2, 1.0), lambda r: Pair(r.tensor, 99.0)),
    "enum": (lambda x: (x + 1, Color.RED), lambda r: (r[0], Color.BLUE)),
    "dtype_object": (lambda x: (x + 1, x.dtype), lambda r: (r[0], torch.float64)),
    "python_float": (lambda x: (x + 1, 1.5), lambda r: (r[0], 1.6)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_of_other_structure_or_content(name):
    function, change = RESULTS[name]
    build = lambda: Program(function, (torch.arange(3.0),))  # noqa: E731
    assert fired(build, through(change)) == {"values"}
    assert fired(build, through(lambda r: r)) == set()


def test_other_tensor_class():
    build = lambda: Program(lambda x: x + 1, (torch.arange(3.0),))  # noqa: E731
    assert fired(build, through(lambda r: torch.nn.Parameter(r, requires_grad=False))) == {"meta"}


def test_gradient_that_should_have_been_cleared():
    def build():
        w = torch.ones(3, requires_grad=True)
        w.grad = torch.ones(3)

        def clear(x, w):
            w.grad = None
            return x + 1

        return Program(clear, (torch.zeros(3), w))

    assert fired(build, instead(lambda x, w: x + 1)) == {"grads"}
    assert fired(build, "eager") == set()


def test_tensor_that_should_have_been_removed():
    def evict(cache, x):
        del cache["k"]
        return x + 1

    def build():
        return Program(evict, ({"k": torch.zeros(2)}, torch.zeros(3)))

    assert fired(build, instead(lambda cache, x: x + 1)) == {"mutation"}
    assert fired(build, "eager") == set()


def training_step():
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    return Program(step, (torch.randn(4, 3),), state=[model, optimizer])


def test_training_step_that_runs_its_own_backward():
    assert fired(training_step, "eager") == set()
    assert fired(training_step, "fusion_core") == set()
    assert "values" in fired(training_step, through(lambda loss: loss.detach() * 5 + loss * 0))


@pytest.mark.parametrize(
    "holder", ["mapping_attribute", "deque", "tensor_attribute", "distribution", "hook", "named_hooks"]
)
def test_state_in_odd_places_is_compared(holder):
    class Cache(dict):
        pass

    class Holder:
        pass

    def build():
        state = torch.zeros(2)
        if holder == "mapping_attribute":
            place = Cache()
            place.kept = state
        elif holder == "deque":
            place = collections.deque([state])
        elif holder == "tensor_attribute":
            place = torch.zeros(1)
            place.extra = state
        elif holder == "distribution":
            place = torch.distributions.Normal(state, torch.ones(2))
        elif holder == "hook":
            place = torch.nn.Linear(2, 2)
            place.register_forward_hook(lambda m, i, o, s=state: None)
        else:
            place = Holder()
            place.my_hooks = {"a": state}

        def write(place, x, state):
            state.add_(1)
            return x + 1

        return Program(
            lambda x, _p=place, _s=Reference(state): write(None, x, _s()), (torch.zeros(3),), state=place
        )

    verdict = check(build, Spec(backend="eager", allow_fallback=True))
    assert verdict["mutation"].outcome is Outcome.PASS, verdict["mutation"]


class Reference:
    """Hides a tensor from the walk, so that only the place under test names it."""

    __slots__ = ("_get",)

    def __init__(self, tensor):
        import weakref

        self._get = weakref.ref(tensor)

    def __call__(self):
        return self._get()


class WithClassTensor:
    weight = torch.ones(3)

    def __call__(self, x):
        return x + self.weight


def test_class_attributes_are_shared_tensors():
    with pytest.raises(ProgramError, match="weight is shared"):
        check(lambda: Program(WithClassTensor(), (torch.zeros(3),)), Spec(backend="eager"))


FILLED: dict[str, torch.Tensor] = {}


def test_cache_that_fills_itself_is_named_as_shared():
    def program(x):
        if "k" not in FILLED:
            FILLED["k"] = torch.zeros(3)
        FILLED["k"].add_(1)
        return x + FILLED["k"]

    with pytest.raises(ProgramError, match=r"global FILLED\['k'\].* is shared"):
        check(lambda: Program(program, (torch.zeros(3),)), Spec(backend="eager"))
    FILLED.clear()


def wrong_test_body(x):
    assert torch.equal(x, x + 1)
    return x


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (wrong_test_body, "AssertionError"),
        (lambda x: x.not_there(), "AttributeError"),
        (lambda x, y: x, "TypeError"),
    ],
)
def test_mistakes_in_the_program_are_errors(function, error):
    with pytest.raises(ProgramError, match=f"the program fails in eager with {error}"):
        check(lambda: Program(function, (torch.zeros(3),)), Spec(backend="eager"))


def warns(x):
    warnings.warn("of the program", stacklevel=1)
    return x + 1


def loop(x):
    for _ in range(5):
        x = x * 2
    return x


CORRECT = {
    "cond": (
        lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)),
        lambda: (torch.ones(3),),
    ),
    "warning": (warns, lambda: (torch.ones(3),)),
    "float8": (lambda x: x.to(torch.float32) + 1, lambda: (torch.ones(4).to(torch.float8_e4m3fn),)),
    "uint16": (lambda x: x.to(torch.int32) + 1, lambda: (torch.ones(4, dtype=torch.uint16),)),
    "namedtuple": (lambda p: Named(p.second, p.first + 1), lambda: (Named(torch.ones(2), torch.zeros(2)),)),
    "expanded": (lambda x: x + 1, lambda: (torch.ones(3, 1).expand(3, 4),)),
    "empty": (lambda x: (x, x * 2), lambda: (torch.ones(0, 3),)),
    "scalars": (lambda x: (x + 1, 1, "a", None), lambda: (torch.ones(2),)),
    "numpy": (lambda x: x.add_(1), lambda: (torch.from_numpy(torch.ones(3).numpy()),)),
    "loop": (loop, lambda: (torch.ones(2),)),
}


@pytest.mark.parametrize("name", CORRECT)
def test_correct_programs_pass(name):
    function, make = CORRECT[name]
    verdict = check(lambda: Program(function, make()), Spec(backend="eager", allow_fallback=True))
    assert verdict.outcome is Outcome.PASS, verdict.failures or verdict.not_measured


def test_equal_views_that_become_one_tensor_get_the_gradients_of_both():
    def build():
        return Program(lambda x: (x.chunk(2)[0], x.chunk(2)[0]), (torch.ones(4, 3, requires_grad=True),))

    assert fired(build, "aot_eager") == set()


@pytest.mark.filterwarnings("ignore:.*Sparse")
def test_sparse_gradients():
    def build():
        return Program(torch.nn.Embedding(5, 3, sparse=True), (torch.tensor([1, 2]),))

    assert fired(build, "eager", allow_fallback=True) == set()


def test_tolerance_serves_python_floats_too():
    build = lambda: Program(lambda x: (x + 1, 1.0), (torch.zeros(2),))  # noqa: E731
    nudged = through(lambda r: (r[0], r[1] + 1e-3))
    assert fired(build, nudged) == {"values"}
    assert fired(build, nudged, rtol=1e-1, atol=1e-1) == set()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_quantized_storage():
    def requantize(q, other):
        q.copy_(other)

    def build():
        return Program(
            requantize,
            tuple(torch.quantize_per_tensor(torch.ones(4) * k, 0.5, 0, torch.quint8) for k in (1, 2)),
        )

    assert fired(build, instead(lambda q, other: None), allow_fallback=True) == {"mutation"}


def test_random_state_survives_an_error():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with pytest.raises(ProgramError):
        check(lambda: Program(wrong_test_body, (torch.rand(3),)), Spec(backend="eager"))
    assert torch.equal(before, torch.get_rng_state())
