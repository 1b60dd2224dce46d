"""Real programs: optimizers, caches, norms, dropout, training; lowered or eager, equal either way."""

import pytest
import torch
import torch.nn.functional as F
from equal import assert_equal, ramp

from fusion_core import explain
from pytest_fusealias.build import Program
from pytest_fusealias.check import check
from pytest_fusealias.model import Outcome, Spec

# The 148 parameter shapes of a GPT-2 small, narrowed so that the step takes milliseconds on a laptop.
WIDTH = 8
GPT2_SHAPES = [(32, WIDTH), (16, WIDTH)]
for _ in range(12):
    GPT2_SHAPES += [(WIDTH,), (WIDTH,), (WIDTH, 3 * WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,)]
    GPT2_SHAPES += [(WIDTH,), (WIDTH,), (WIDTH, 4 * WIDTH), (4 * WIDTH,), (4 * WIDTH, WIDTH), (WIDTH,)]
GPT2_SHAPES += [(WIDTH,), (WIDTH,)]


def make_optimizer(kind, shapes=((3, 2), (4,), (2, 2, 2)), **options):
    parameters = [torch.nn.Parameter(torch.randn(s)) for s in shapes]
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer = kind(parameters, **options)
    return parameters, optimizer


OPTIMIZERS = {
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "sgd_nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "rmsprop": (torch.optim.RMSprop, {}),
    "adagrad": (torch.optim.Adagrad, {}),
}


@pytest.mark.parametrize("foreach", [False, True], ids=["loop", "foreach"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_steps_equal_eager(name, foreach):
    kind, options = OPTIMIZERS[name]

    def build():
        parameters, optimizer = make_optimizer(kind, foreach=foreach, **options)

        def three_steps(step):
            for _ in range(3):
                step()

        return Program(optimizer.step, state=[parameters, optimizer], drive=three_steps)

    verdict = check(build, Spec(backend="fusion_core"))
    assert verdict.outcome is Outcome.PASS, verdict.failures or verdict.not_measured


@pytest.mark.parametrize("foreach", [False, True], ids=["loop", "foreach"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_148_tensors_are_few_programs(kind, foreach):
    assert len(GPT2_SHAPES) == 148
    _, optimizer = make_optimizer(kind, GPT2_SHAPES, foreach=foreach)
    e = explain(optimizer.step)
    assert len(e.programs) <= 4
    assert len(e.sets) == 0
    assert e.fresh_outputs == 0
    assert len(e.alias_outputs) == 148 * 4  # parameter, two moments, step
    assert e.eager_steps == ()
    assert not optimizer.state, "explain leaves the optimizer as it was"


@pytest.mark.parametrize("foreach", [False, True], ids=["loop", "foreach"])
def test_momentum_lowers(foreach):
    """The second step: the first one creates the momentum buffers."""
    _, optimizer = make_optimizer(torch.optim.SGD, foreach=foreach, lr=0.1, momentum=0.9)
    optimizer.step()
    e = explain(optimizer.step)
    assert (len(e.programs), e.fresh_outputs, len(e.sets), e.eager_steps) == (1, 0, 0, ())


def test_ema_of_a_module():
    def build():
        model, average = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)

        @torch.no_grad()
        def update():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.01)

        return Program(update, state=[model, average])

    with pytest.raises(Exception, match="shared by the eager"):
        shared = torch.nn.Linear(2, 2)
        check(lambda: Program(lambda: shared.weight.sum()), Spec(backend="eager"))
    verdict = check(build, Spec(backend="fusion_core"))
    assert verdict.outcome is Outcome.PASS, verdict.failures


def test_batch_norm_training():
    def build():
        model = torch.nn.BatchNorm2d(3)
        x = torch.randn(4, 3, 5, 5, requires_grad=True)

        def steps(f, given):
            for _ in range(3):
                f(
                    given
                ).cos().sum().backward()  # of squares, every gradient would be 0 and show rounding alone

        return Program(model, (x,), drive=steps)

    verdict = check(build, Spec(backend="fusion_core"))
    assert verdict.outcome is Outcome.PASS, verdict.failures


def write_cache(cache, position, token):
    cache.index_copy_(1, position, token)
    return cache[:, :4].sum(1)


def test_kv_cache_write():
    assert_equal(write_cache, lambda: (torch.zeros(2, 8, 4), torch.tensor([3]), torch.randn(2, 1, 4)))
    assert_equal(
        lambda cache, token: cache[:, 2:3].copy_(token).sum(),
        lambda: (torch.zeros(2, 8, 4), torch.randn(2, 1, 4)),
    )


def test_dropout_draws_eagers_mask():
    verdict = assert_equal(lambda x: F.dropout(x, 0.5) * 2, lambda: (torch.randn(64, requires_grad=True),))
    assert verdict["rng"].outcome is Outcome.PASS


def test_two_layer_mlp_training():
    def build():
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
        return Program(model, (torch.randn(5, 8),))

    verdict = check(build, Spec(backend="fusion_core"))
    assert verdict.outcome is Outcome.PASS, verdict.failures


def test_clip_and_mask_in_place():
    def clip(grads, mask):
        norm = torch.stack([g.norm() for g in grads]).norm()
        scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(scale)
        grads[0].masked_fill_(mask, 0.0)
        return norm

    assert_equal(clip, lambda: ([torch.randn(3, 2), torch.randn(4)], torch.tensor([[True, False]] * 3)))


def test_dynamic_shapes():
    def update(x, y):
        x.add_(y).mul_(2)
        return (x + y).reshape(-1), x.t() * 1

    def drive(f, calls):
        return [f(*call) for call in calls]

    make = lambda: ([(ramp(n, 3), ramp(n, 3)) for n in (4, 6, 7, 1)],)  # noqa: E731
    assert_equal(update, make, drive=drive)
    assert_equal(update, make, drive=drive, dynamic=True)


def test_custom_operator_with_a_written_argument():
    @torch.library.custom_op("fusealias_tests::double_", mutates_args=("x",))
    def double_(x: torch.Tensor) -> None:
        x.mul_(2)

    def program(x):
        torch.ops.fusealias_tests.double_(x[1:])
        return x + 1

    assert_equal(program, lambda: (ramp(4),))


def test_half_and_complex_and_integers():
    for dtype in (torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.float64):
        assert_equal(lambda x, y: x.mul_(y).add_(1), lambda d=dtype: (ramp(4).to(d), ramp(4, start=1).to(d)))


def test_raises_what_eager_raises():
    assert_equal(lambda x, y: x.copy_(y), lambda: (ramp(3), ramp(4)), raises=RuntimeError)
    assert_equal(lambda x: x.mul_(2), lambda: (ramp(3).requires_grad_(),), raises=RuntimeError)


@pytest.mark.parametrize(
    "pair",
    [
        lambda: (ramp(2, 3), ramp(3)),
        lambda: (ramp(3).double(), ramp(3)),
        lambda: (ramp(3).half(), torch.tensor(2.5)),
        lambda: (lambda b: (b[:3], b[:3]))(ramp(5)),
        lambda: (ramp(3).to(torch.complex64), torch.complex(ramp(3), ramp(3)).conj()),
    ],
    ids=["broadcast", "cast", "scalar", "self", "conj"],
)
def test_copy_semantics(pair):
    def copy(x, y):
        x.copy_(y)
        return x * 2

    assert_equal(copy, pair)


def fake_strides(x, mean, var):
    return torch.nn.functional.batch_norm(x, mean, var, training=True) * 2


def test_operator_whose_strides_torch_foretells_wrongly():
    """The fused reader must take the layout that the eager operator really made."""
    assert_equal(fake_strides, lambda: (torch.randn(3, 4, 2).transpose(1, 2), torch.zeros(2), torch.ones(2)))
    assert_equal(
        fake_strides,
        lambda: (torch.randn(3, 4, 2).transpose(1, 2).requires_grad_(), torch.zeros(2), torch.ones(2)),
    )

    @torch.library.custom_op("fusealias_tests::two", mutates_args=())
    def two(x: torch.Tensor) -> torch.Tensor:
        return x.contiguous() * 2

    two.register_fake(lambda x: torch.empty_like(x))
    assert_equal(lambda x, y: y.add_(torch.ops.fusealias_tests.two(x)), lambda: (ramp(3, 4).t(), ramp(4, 3)))


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (lambda x, s: x[0].copy_(s).sum(), lambda: (ramp(3, 4), torch.tensor(2.0))),
        (lambda x, s: x[0].copy_(s).sum(), lambda: (ramp(3, 4, 5), ramp(5))),
        (lambda s, x: (torch.empty(3, 4).copy_(s), x.mul_(2)), lambda: (ramp(4), ramp(3))),
        (lambda x, y: x.copy_(y * 2).sum(), lambda: (torch.tensor(1.0), torch.tensor(2.0))),
        (
            lambda w, s, u: (w.mul_(s), s.copy_(u * 2))[0].sum(),
            lambda: (ramp(4), torch.tensor(1.0), torch.tensor(3.0)),
        ),
        (lambda w, s: (w.mul_(s), s.fill_(0.25), s.mul_(0.5))[0].sum(), lambda: (ramp(4), torch.tensor(3.0))),
        (lambda a, c: (a.mul_(2), c + c)[1], lambda: (ramp(4), ramp(4).to_mkldnn())),
    ],
    ids=["scalar_row", "vector_row", "fresh", "scalar", "read_then_written", "constant", "mkldnn"],
)
def test_small_programs_that_once_broke(function, make):
    verdict = assert_equal(function, make)
    assert verdict.graphs


def test_plan_compiled_at_run_time_serves_its_numbers_only():
    def program(a, c, n):
        a.mul_(n)
        return a + c * n

    def make():
        base = ramp(40)
        calls = [
            (base[0:5], base[i : i + 5], m) for n in (2, 3, 4, 5) for i, m in ((5, n), (10, n), (15, n + 1))
        ]
        return ([(base[0:5], base[2:7].clone(), 2), *calls],)

    assert_equal(program, make, drive=lambda f, calls: [f(*call) for call in calls])


def test_internal_errors_are_not_called_refusals(monkeypatch):
    import fusion_core.backend
    from fusion_core.errors import InternalError

    def fails(graph, facts):
        raise KeyError("of this package")

    monkeypatch.setattr(fusion_core.backend, "hoist_copies", fails)
    with pytest.raises(Exception, match="inference graph: KeyError: 'of this package'") as caught:
        torch.compile(lambda x: x + 1, backend="fusion_core")(ramp(3))
    assert InternalError.__name__ in str(caught.value)
