"""Where transpositions go. The thirteen programs and counts are thunder's acceptance test of its `bookend` option."""

import pytest
import torch
from equal import assert_equal

from fusion_core import explain


def func_0(t):
    return t.transpose(0, 1).tanh().sin()


def func_1(t):
    return t.tanh().sin().transpose(0, 1)


def func_2(t):
    return t.transpose(0, 1).tanh().sin().transpose(0, 2)


def func_3(t):
    return t.transpose(0, 1).tanh().sin(), t.transpose(0, 2).sin().tanh()


def func_4(t):
    return t.tanh().sin().transpose(0, 1), t.sin().tanh().transpose(0, 2)


def func_5(t):
    return t.transpose(0, 1).transpose(0, 2).tanh().sin()


def func_6(t):
    return t.tanh().sin().transpose(0, 1).transpose(0, 2)


def func_7(t):
    inner = t.transpose(0, 1).transpose(0, 2).tanh().sin()
    return inner.transpose(0, 1).transpose(0, 2)


def func_8(t):
    return t.transpose(0, 1).tanh().transpose(0, 1).sin().transpose(0, 2)


def func_9(t):
    return t.tanh().sin().transpose(0, 1).transpose(2, 1), t.sin().tanh().transpose(0, 2).sin()


def func_10(t):
    return t.tanh().sin().transpose(0, 1).sin(), t.sin().tanh().transpose(0, 2).transpose(2, 1)


def func_11(t):
    turned = t.tanh().sin().transpose(0, 1).transpose(0, 2)
    return turned, turned.sin()


def func_12(t):
    t1 = t.transpose(0, 1).transpose(0, 2)
    t4 = (t1.tanh() + 1.0).transpose(2, 1).transpose(0, 1)
    t6 = (t * 0.5).transpose(0, 2)
    t13 = t.transpose(1, 2).transpose(0, 2).transpose(0, 1)
    return t4, t6, t6.tanh(), t1.transpose(1, 2), t.transpose(2, 1).tanh(), t13


GOLDENS = {
    **dict.fromkeys((func_0, func_1, func_2, func_3, func_4, func_5, func_6, func_7), 0),
    func_8: 1,
    func_9: 1,
    func_10: 1,
    func_11: 2,
    func_12: 1,
}


def count(function, args, name, **options):
    report = explain(function, *args, options=options)
    return sum(op.name == name for p in report.programs for op in p.program.ops for _ in range(p.components))


@pytest.mark.parametrize("function", GOLDENS, ids=lambda f: f.__name__)
def test_transpositions_inside_with_bookend(function):
    assert count(function, [torch.ones(2, 3, 5)], "permute", bookend=True) == GOLDENS[function]


@pytest.mark.parametrize("bookend", [False, True], ids=["inside", "bookend"])
@pytest.mark.parametrize("function", GOLDENS, ids=lambda f: f.__name__)
def test_values_are_equal_both_ways(function, bookend):
    assert_equal(function, lambda: (torch.randn(2, 3, 5),), options={"bookend": bookend})


def reduce_turned(x, w):
    return (x.transpose(0, 1) * w).sum(0)


def reduce_reshaped(x):
    return x.reshape(2, 15).sin().sum(0)


@pytest.mark.parametrize(
    ("function", "args", "name"),
    [
        (reduce_turned, (torch.ones(4, 6), torch.ones(6, 4)), "permute"),
        (reduce_reshaped, (torch.ones(2, 3, 5),), "reshape"),
    ],
)
def test_leading_views_stay_inside_by_default(function, args, name):
    """Beside a reduction there is something to fuse with; `bookend` leaves them to the host."""
    assert count(function, args, name) == 1
    assert count(function, args, name, bookend=True) == 0


def test_views_alone_make_no_program():
    def views(x):
        return x.view(4, -1).transpose(0, 1)

    e = explain(views, torch.ones(2, 2, 2))
    assert (e.regions, e.programs, e.eager_steps) == (0, (), ())
