"""Picking one element a row by position: the same values as eager, without a library call, and loud about bad indices."""

import pytest
import torch
import torch.nn.functional as F
from equal import assert_equal, ramp

import fusion_core.backend
from fusion_core import explain
from fusion_core.passes.expand_one_hot import expand_one_hot


@pytest.fixture(autouse=True)
def _on_the_host_too(monkeypatch):
    monkeypatch.setattr(
        fusion_core.backend, "expand_one_hot", lambda graph: expand_one_hot(graph, devices=frozenset({"cpu"}))
    )


def pick(x, index):
    return x.gather(1, index) * 2


def put(x, index):
    return torch.zeros_like(x).scatter(1, index, -1.0) * x


def loss(x, target):
    return F.cross_entropy(x, target)


TARGET = [0, 3, -100, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [pick, put])
def test_equals_eager(function, dtype):
    def make():
        return ramp(4, 5).to(dtype), torch.tensor(TARGET).clamp(0)[:, None]

    assert_equal(function, make)
    assert explain(function, *make()).eager_steps == ()


def test_cross_entropy_forward_and_backward():
    def make():
        return torch.randn(4, 5, requires_grad=True), torch.tensor(TARGET)

    assert_equal(loss, make)
    e = explain(lambda x, t: loss(x, t).backward(), *make())
    assert [s.operator for s in e.eager_steps] == []


def test_sign_of_zero_is_kept():
    def invert(x, index):
        return 1 / x.gather(1, index), 1 / torch.zeros_like(x).scatter(1, index, -0.0)

    assert_equal(invert, lambda: (torch.tensor([[-0.0, 1.0], [2.0, 3.0]]), torch.tensor([[0], [0]])))


def test_many_along_the_dimension_stay_a_library_call():
    index = torch.zeros(4, 2, dtype=torch.int64)
    assert [s.operator for s in explain(pick, ramp(4, 5), index).eager_steps] == ["aten.gather.default"]


def test_index_out_of_bounds_is_not_a_number():
    torch._dynamo.reset()
    index = torch.tensor([[0], [7], [-1], [2]])
    found = torch.compile(pick, backend="fusion_core")(ramp(4, 5), index)
    assert found.isnan().flatten().tolist() == [False, True, True, False]
