"""Operators taken apart by our own decompositions: eager's results, and nothing of them left to eager."""

import importlib.util

import pytest
import torch
from composed_samples import COMPOSED, REAL
from test_rows import assert_same, compare

import fusion_core
from fusion_core import explain
from fusion_core.composed import TABLE

VIEWS_ALONE = {"max_dim_no_dimensions"}  # its index is a constant, which a fill makes


@pytest.mark.parametrize("name", COMPOSED)
def test_values(name):
    function, arguments = COMPOSED[name]
    compare(function, arguments)


@pytest.mark.parametrize("name", COMPOSED)
def test_nothing_stays_eager(name):
    function, arguments = COMPOSED[name]
    told = explain(function, *arguments)
    assert not [s for s in told.eager_steps if "constant tensor" not in s.reason]


def test_an_index_of_booleans_stays_eager():
    told = explain(lambda x: x.max(1), REAL > 1)
    assert [s.operator for s in told.eager_steps] == ["aten.max.dim"]


def test_a_softmax_gradient_in_another_dtype_is_refused_as_in_eager():
    def function(grad, output, dtype):
        return torch.ops.aten._softmax_backward_data(grad, output, 0, dtype)

    compiled = fusion_core.compile(function)
    grad = torch.linspace(-1, 1, 12).reshape(3, 4)
    given = grad, grad.softmax(0)
    torch.testing.assert_close(compiled(*given, torch.float32), function(*given, torch.float32))
    for call in (function, compiled):
        with pytest.raises(RuntimeError, match="expected scalar type"):
            call(*given, torch.float16)
        with pytest.raises(RuntimeError, match="expected scalar type"):
            call(grad, given[1].double(), torch.float32)


def test_a_softmax_gradient_is_of_the_product_rounded_to_its_dtype():
    """As eager's CUDA kernels make it; the CPU's keep half types, so that the decomposition is called by itself."""
    grad, output = torch.linspace(-1, 1, 48).reshape(4, 12).bfloat16(), torch.rand(4, 12).bfloat16()
    product = (grad * output).float()
    expected = (product - output.float() * product.sum(1, keepdim=True)).bfloat16()
    decompose = TABLE[torch.ops.aten._softmax_backward_data.default]
    assert torch.equal(decompose(grad, output, 1, torch.bfloat16), expected)
    unrounded = (grad.float() * output.float()).float()
    other = (unrounded - output.float() * unrounded.sum(1, keepdim=True)).bfloat16()
    assert not torch.equal(expected, other)


def test_a_constant_that_is_written_is_made_at_every_call():
    def function(x):
        count = torch.tensor(0.0)
        count += x.sum()
        return count

    compiled = fusion_core.compile(function)
    x = torch.ones(3)
    assert_same((compiled(x), compiled(x)), (torch.tensor(3.0), torch.tensor(3.0)))


@pytest.mark.skipif(
    importlib.util.find_spec("nvfuser_direct") is None, reason="nvfuser_direct is not installed"
)
@pytest.mark.parametrize("name", COMPOSED)
def test_nvfuser_accepts_the_definition(name):
    from fusion_core.executors.definition import Definition
    from fusion_core.executors.nvfuser import load

    function, arguments = COMPOSED[name]
    for report in explain(function, *arguments).programs:
        Definition(load(), report.program).build()
