"""Overlapping inputs, overlap that appears later, and gradients that read a buffer written after it was saved."""

import pytest
import torch
from equal import assert_equal, ramp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PAIRS = {
    "rows": lambda: (lambda b: (b[0], b[1]))(ramp(2, 5)),
    "shifted": lambda: (lambda b: (b[0:5], b[2:7]))(ramp(8)),
    "transposed": lambda: (lambda x: (x, x.t()))(ramp(3, 3)),
    "prefix": lambda: (lambda x: (x, x[:3]))(ramp(6)),
    "same": lambda: (lambda x: (x, x))(ramp(5)),
    "columns": lambda: (lambda b: (b[:, 0], b[:, 1]))(ramp(4, 2)),
    "separate": lambda: (ramp(5), ramp(5, start=3)),
    "numpy": lambda: (lambda b: (b[0:5], torch.from_numpy(b.numpy())[2:7]))(ramp(8)),
    "detached": lambda: (lambda b: (b[0:5], b.detach()[2:7]))(ramp(8)),
}


def scale_then_read(a, c):
    a.mul_(2)
    return c.sum() + a.sum()


def both_written(a, c):
    a.mul_(2)
    c.add_(1)
    return a.sum() + c.sum()


@pytest.mark.parametrize("function", [scale_then_read, both_written])
@pytest.mark.parametrize("pair", PAIRS)
def test_overlapping_inputs(pair, function):
    assert_equal(function, PAIRS[pair])


@pytest.mark.parametrize("later", PAIRS)
@pytest.mark.parametrize("first", ["separate", "shifted", "columns"])
def test_overlap_that_appears_later(first, later):
    """One compiled function, called with separate tensors and then with views of one: eager's results both times."""
    assert_equal(
        scale_then_read,
        lambda: ([PAIRS[first](), PAIRS[later](), PAIRS[first](), PAIRS[later]()],),
        drive=lambda f, calls: [f(*call) for call in calls],
    )


def test_overlap_that_appears_later_with_gradients():
    def program(a, c, w):
        with torch.no_grad():
            a.mul_(2)
        return (c * w).sum()

    def drive(f, calls, w):
        f(*calls[0], w).backward()
        first = w.grad.clone()
        f(*calls[1], w).backward()
        return first

    def make():
        b = ramp(8)
        return [(ramp(5), ramp(5)), (b[0:5], b[2:7])], ramp(5, start=1).requires_grad_()

    assert_equal(program, make, drive=drive)


def saved_clone(x, b):
    y = x.sin() * b.clone().cos()
    with torch.no_grad():
        b.add_(1)
    return y


def saved_view(x, b):
    y = x.sin() * b[1:].clone().cos()
    with torch.no_grad():
        b.add_(1)
    return y


def recomputed(x, b):
    y = x * b.cos().sin()
    b.mul_(2)
    return y


@pytest.mark.parametrize(
    ("function", "size"),
    [(saved_clone, 3), (saved_view, 4), (recomputed, 3)],
    ids=["clone", "view", "recomputed"],
)
def test_gradients_read_the_old_value(function, size):
    assert_equal(function, lambda: (ramp(3, start=1).requires_grad_(), ramp(size)))


def test_gradient_of_a_saved_and_written_tensor_is_refused_as_in_eager():
    """Eager saves `b` itself and notices the write in backward; so must the compiled program."""

    def program(x, b):
        y = x * b
        with torch.no_grad():
            b.add_(1)
        return y

    assert_equal(program, lambda: (ramp(3).requires_grad_(), ramp(3)), raises=RuntimeError)


def fill_expanded(x):
    x.expand(3, 4).fill_(2.0)
    return x.sum()


def scale_windows(x):
    x.unfold(0, 2, 3).mul_(10)
    return x.sum()


def scale_expanded(x):
    x.expand(3, 4).mul_(2)  # eager refuses
    return x.sum()


def scale_one_window(x):
    x.unfold(0, 2, 2).unbind(0)[0].add_(1)
    return x.sum()


def add_to_windows(x):
    torch._foreach_add_([x.unfold(0, 2, 2)], 1.0)
    return x.sum()


def relu_of_windows(x):
    torch.nn.functional.relu(x.unfold(0, 2, 3), True)
    return x.sum()


@pytest.mark.parametrize("function", [scale_one_window, add_to_windows, relu_of_windows])
def test_windows_reached_in_other_ways(function):
    assert_equal(function, lambda: (ramp(7) - 3,))


def test_expanded_to_a_symbolic_size():
    def fill(x, y):
        x.expand(y.shape[0], 3).fill_(2)
        return y + 1

    assert_equal(fill, lambda: (ramp(3), ramp(4)), dynamic=True)


def test_windows_inside_a_checkpoint():
    from torch.utils.checkpoint import checkpoint

    def body(x):
        y = x.clone()
        y.unfold(0, 2, 3).mul_(3)
        return y.sin()

    assert_equal(lambda x: checkpoint(body, x, use_reentrant=False), lambda: (ramp(7).requires_grad_(),))


@pytest.mark.parametrize(
    ("function", "raises"), [(fill_expanded, None), (scale_windows, None), (scale_expanded, RuntimeError)]
)
def test_writes_that_functionalization_gets_wrong_run_as_eager(function, raises):
    assert_equal(function, lambda: (ramp(4),), raises=raises)


OPERATIONS = {
    "mul": lambda t, other: t.mul_(2),
    "add": lambda t, other: t.add_(other.sum()),
    "copy": lambda t, other: t.copy_(other.flatten()[0] + t * 0),
    "fill": lambda t, other: t.fill_(3.0),
    "first": lambda t, other: t.flatten()[0],
    "neg": lambda t, other: t.neg_(),
}
VIEWS = {
    "whole": lambda b: b,
    "head": lambda b: b[0:6],
    "tail": lambda b: b[3:],
    "even": lambda b: b[::2],
    "square": lambda b: b[:9].view(3, 3),
    "transposed": lambda b: b[:9].view(3, 3).t(),
    "row": lambda b: b.view(3, 4)[1],
}


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    views=st.lists(st.sampled_from(sorted(VIEWS)), min_size=2, max_size=3),
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 2), st.integers(0, 2)),
        min_size=1,
        max_size=4,
    ),
)
def test_random_alias_programs(views, steps):
    """Views of one buffer as inputs, in-place operators between them in any order."""

    def program(*tensors):
        for name, target, other in steps:
            OPERATIONS[name](tensors[target % len(tensors)], tensors[other % len(tensors)])
        return [t.sum() for t in tensors]

    def make():
        base = ramp(12, start=1)
        return tuple(VIEWS[v](base) for v in views)

    assert_equal(program, make, allow_fallback=True)
