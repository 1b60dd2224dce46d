"""Random numbers: eager's own by default, bit for bit; with rng="fused" the program draws others, as well distributed."""

import pytest
import torch
import torch.nn.functional as F
from equal import assert_equal, with_options

from fusion_core import explain


def dropout(x):
    return F.dropout(x * 2, 0.25) + 1


def noise(x):
    return x + torch.randn_like(x) * 0.1


@pytest.mark.parametrize("function", [dropout, noise])
def test_default_draws_eagers_numbers(function):
    assert_equal(function, lambda: (torch.ones(64),), rtol=0, atol=0)


def test_fused_draws_inside_the_program():
    e = explain(dropout, torch.ones(64), options={"rng": "fused"})
    assert e.eager_steps == ()
    assert "uniform(" in str(e)
    assert "uniform(" not in str(explain(dropout, torch.ones(64)))


def test_fused_follows_the_seed_and_the_probability():
    torch._dynamo.reset()
    compiled = torch.compile(dropout, backend=with_options({"rng": "fused"}))
    x = torch.ones(20000)
    torch.manual_seed(3)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), first)
    assert not torch.equal(first, second)
    kept = (first != 1).float().mean().item()
    assert abs(kept - 0.75) < 0.02
    assert first.unique().tolist() == pytest.approx([1.0, 1 + 2 / 0.75])


def test_fused_backward_uses_the_mask_of_forward():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend=with_options({"rng": "fused"}))
    x = torch.ones(1000, requires_grad=True)
    y = compiled(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())
