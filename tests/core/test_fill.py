"""Filling an input costs one write into it: no constant tensor is made and copied."""

import pytest
import torch

import fusion_core
from fusion_core import explain


def read_before(x, y):
    v = x * y
    x.fill_(3)
    return v, x


def other_tensor_gives_the_shape(x, y):
    x.copy_(torch.full_like(y, 2))
    return x + y


def computed_with_afterwards(x, y):
    x.fill_(2)
    w = x + y
    x.mul_(3)
    y.zero_()
    return w


def views(x, y):
    x.t().fill_(5)
    y[0].zero_()
    y[:, 1].fill_(2)
    return x.sum()


def listed(x, y):
    v = x.sum()
    torch._foreach_zero_([x, y])
    return v


def returned_and_changed(x, y):
    z = torch.zeros_like(x)
    x.copy_(z)
    z.add_(1)
    return z, x, y.zero_()


def one_constant_for_two(x, y):
    o = torch.full_like(x, 1.5)
    x.copy_(o)
    y.copy_(o)
    return o


def other_dtype(x, y):
    x.copy_(torch.zeros_like(x, dtype=torch.int64))
    return x + y.fill_(2.5)


def another_dtype_between(x, y):
    i = torch.tensor([0, 1])
    whole = torch.index_fill(torch.full_like(x, 7, dtype=torch.int64), 0, i, 16777217)
    torch.index_add(torch.full_like(whole, 2, dtype=torch.float32), 0, i, y[:2], out=x)
    return whole + 1


PROGRAMS = [
    read_before, other_tensor_gives_the_shape, computed_with_afterwards, views, listed, returned_and_changed,
    one_constant_for_two, other_dtype, another_dtype_between,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_equals_eager(program):
    ours, theirs = ([torch.arange(12.0).reshape(3, 4), torch.ones(3, 4)] for _ in range(2))
    compiled = fusion_core.compile(program)
    for _ in range(3):
        torch.testing.assert_close(compiled(*ours), program(*theirs))
        torch.testing.assert_close(ours, theirs)


def zero_all(tensors):
    torch._foreach_zero_(tensors)


def fill_one(tensors):
    tensors[0].fill_(3)


@pytest.mark.parametrize(
    ("program", "name"), [(zero_all, "aten.zero_.default"), (fill_one, "aten.fill_.Scalar")]
)
def test_nothing_is_allocated(program, name):
    explained = explain(program, [torch.ones(5) for _ in range(3)])
    assert {step.operator for step in explained.eager_steps} == {name}
    assert explained.memory.peak_bytes == 0


def test_gradients_are_zeroed_in_place():
    parameters = [torch.nn.Parameter(torch.ones(5)) for _ in range(3)]
    for p in parameters:
        p.grad = torch.ones(5)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    held = [p.grad for p in parameters]
    explained = explain(lambda: optimizer.zero_grad(set_to_none=False))
    torch.compile(lambda: optimizer.zero_grad(set_to_none=False), backend="fusion_core")()
    assert all(p.grad is g and not g.any() for p, g in zip(parameters, held, strict=True))
    assert explained.memory.peak_bytes == 0
