"""Operators taken apart by our own decompositions: eager's results, and nothing of them left to eager."""

import importlib.util

import pytest
import torch
from composed_samples import COMPOSED, REAL
from test_rows import assert_same, compare

import fusion_core
from fusion_core import explain

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
