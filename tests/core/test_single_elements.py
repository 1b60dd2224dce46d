"""Tensors of one element: nvFuser may compute what is known to have size 1 in a kernel of its own (measured on 0.2.36)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fusion_core
from fusion_core.errors import VerifyError
from fusion_core.program.ir import AliasPair, Constant, FusionProgram, Input, Op, TensorType, Value
from fusion_core.program.verify import verify

SHAPES = [(), (1,), (1, 1), (1, 1, 1)]


def read_beside(x):
    old = x + x
    x.add_(1)
    return old


def positions(x):
    old = torch.arange(1) + x
    x.add_(1)
    return old


def two_writes(x, y):
    y.add_(x)
    x.sub_(1)


def constant_written(x, y):
    old = x + y
    x.fill_(3)
    x.add_(x)
    return old


def small_beside_large(x, y):
    old = x + y
    x.mul_(2)
    y.mul_(2)
    return old


def _agrees(function, *arguments):
    expected = [a.clone() for a in arguments]
    compiled = fusion_core.compile(function)
    for _ in range(3):
        torch.testing.assert_close(compiled(*arguments), function(*expected))
        torch.testing.assert_close(arguments, tuple(expected))
    torch._dynamo.reset()


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(SHAPES), st.sampled_from([torch.float32, torch.int64, torch.bfloat16]))
def test_equal_to_eager(shape, dtype):
    x, y = torch.full(shape, 2, dtype=dtype), torch.full(shape, 5, dtype=dtype)
    _agrees(read_beside, x.clone())
    _agrees(positions, x.clone())
    for function in (two_writes, constant_written, small_beside_large):
        _agrees(function, x.clone(), y.clone())


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(SHAPES), st.sampled_from([(3,), (1, 3), (2, 1)]))
def test_beside_larger_tensors(small, large):
    _agrees(small_beside_large, torch.ones(1).reshape(small), torch.ones(large))


@pytest.mark.parametrize("shape", SHAPES)
def test_optimizer_writes_single_elements_in_place(shape):
    def make():
        parameters = [torch.nn.Parameter(torch.full(shape, float(i + 1))) for i in range(3)]
        for p in parameters:
            p.grad = torch.ones_like(p)
        return parameters, torch.optim.Adam(parameters, foreach=True)

    (ours, optimizer), (theirs, eager) = make(), make()
    explained = fusion_core.explain(optimizer.step)
    assert not explained.sets
    assert not explained.fresh_outputs
    step = torch.compile(optimizer.step, backend="fusion_core")
    for _ in range(3):
        step()
        eager.step()
    torch.testing.assert_close(ours, theirs)


def _program(shape):
    """The old value of an input leaves beside the write into it."""
    kind = TensorType("f32", shape)
    x, old, new = (Value(i, kind) for i in range(3))
    ops = (
        Op("add.Tensor", (x, x), (), old, "read.py:1"),
        Op("add.Tensor", (x, Constant.of(1)), (), new, "write.py:2"),
    )
    return FusionProgram((Input(x, 0, ""),), ops, (old,), (AliasPair(x, new, "write.py:2"),))


def test_size_one_is_no_proof_of_one_kernel():
    with pytest.raises(VerifyError, match=r"R3.*read.py:1"):
        verify(_program((1,)))
    verify(_program(("s0",)))


@pytest.mark.parametrize(
    "shared", [TensorType("f32", (1,)), TensorType("f32", (), host=True)], ids=["device", "host"]
)
def test_an_operand_of_one_element_connects_nothing(shared):
    kind = TensorType("f32", ("s0",))
    x, w, old, new = (Value(i, kind) for i in range(4))
    h = Value(4, shared)
    ops = (Op("mul.Tensor", (x, h), (), old, "read.py:1"), Op("mul.Tensor", (w, h), (), new, "write.py:2"))
    inputs = tuple(Input(v, i, "") for i, v in enumerate((x, w, h)))
    with pytest.raises(VerifyError, match=r"R3.*read.py:1"):
        verify(FusionProgram(inputs, ops, (old,), (AliasPair(x, new, "write.py:2"),)))


def test_constant_needs_no_operand():
    """`full_like(x)` reads nothing of x, so the write may come before its readers."""
    kind = TensorType("f32", ("s0",))
    x, y, old, new = (Value(i, kind) for i in range(4))
    ops = (
        Op("add.Tensor", (x, y), (), old, "read.py:1"),
        Op("full_like", (x, Constant.of(3)), (), new, "write.py:2"),
    )
    program = FusionProgram(
        (Input(x, 0, ""), Input(y, 1, "")), ops, (old,), (AliasPair(x, new, "write.py:2"),)
    )
    with pytest.raises(VerifyError, match=r"R3.*read.py:1"):
        verify(program)
