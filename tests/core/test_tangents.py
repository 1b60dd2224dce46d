"""Tangents that autograd hands over conjugated or negated lazily, which no guard of the backward graph sees."""

import pytest
import torch

import fusion_core
from fusion_core.runtime.tangents import with_bits

VALUES = torch.complex(torch.arange(4.0), torch.arange(4.0) - 3)
PLAIN = torch.arange(4.0)


def as_complex(x):
    return torch.view_as_complex(x * 2)


def test_a_tangent_with_a_conj_bit_that_was_not_traced():
    """`view_as_real` of such a tangent raises where the backward graph was traced without the bit."""
    grads = []
    for call in (as_complex, fusion_core.compile(as_complex)):
        x = torch.arange(8.0).reshape(4, 2).requires_grad_()
        call(x).conj().backward(VALUES)
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=0)


SEVERAL = [VALUES, VALUES.conj(), VALUES[::2].conj(), VALUES[:1].conj().expand(3)]


@pytest.mark.parametrize("given", SEVERAL, ids=["plain", "conj", "gapped", "expanded"])
@pytest.mark.parametrize("is_conj", [False, True])
def test_conj_bit_and_values(given, is_conj):
    found = with_bits(given, is_conj=is_conj, is_neg=False)
    assert found.is_conj() is is_conj
    assert found.stride() == ((1,) if given.stride() == (0,) else given.stride())
    torch.testing.assert_close(found.resolve_conj(), given.resolve_conj(), rtol=0, atol=0)


@pytest.mark.parametrize("given", [PLAIN, VALUES.conj().imag], ids=["plain", "neg"])
@pytest.mark.parametrize("is_neg", [False, True])
def test_neg_bit_and_values(given, is_neg):
    found = with_bits(given, is_conj=False, is_neg=is_neg)
    assert found.is_neg() is is_neg
    torch.testing.assert_close(found.resolve_neg(), given.resolve_neg(), rtol=0, atol=0)


def test_a_tangent_that_nobody_has():
    ours, theirs = (torch.randn(3, 3, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    fusion_core.compile(torch.linalg.eigvals)(ours.requires_grad_()).abs().sum().backward()
    torch.linalg.eigvals(theirs.requires_grad_()).abs().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
