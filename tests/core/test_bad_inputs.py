"""Tensors that programs do not compute: they run as in eager, with a reason, or are refused before anything is written."""

import pytest
import torch

import fusion_core
from fusion_core import explain


class Marked(torch.Tensor):
    """A subclass that changes nothing."""


INPUTS = {
    "uint8": lambda: torch.arange(4, dtype=torch.uint8),
    "int16": lambda: torch.arange(4, dtype=torch.int16),
    "complex32": lambda: torch.ones(4, dtype=torch.complex32),
    "rank_9": lambda: torch.ones(1, 2, 1, 1, 1, 1, 1, 1, 2),
    "empty": lambda: torch.ones(0, 3),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta": lambda: torch.ones(3, device="meta"),
    "subclass": lambda: torch.ones(3).as_subclass(Marked),
    "conjugate": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negative": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
}
# Whole graphs run eager, or nothing is left to compute, without a step of its own.
SILENT = {"sparse", "meta", "conjugate", "negative"}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("name", INPUTS)
def test_runs_as_in_eager(name):
    def function(x):
        return x.mul_(2) * 3

    ours, theirs = INPUTS[name](), INPUTS[name]()
    torch._dynamo.reset()
    found, expected = fusion_core.compile(function)(ours), function(theirs)
    assert type(found) is type(expected)
    for a, b in ((found, expected), (ours, theirs)):
        assert (a.shape, a.dtype, a.layout, a.device) == (b.shape, b.dtype, b.layout, b.device)
        if a.device.type != "meta":
            torch.testing.assert_close(a.to_dense() if a.is_sparse else a, b.to_dense() if b.is_sparse else b)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("name", sorted(set(INPUTS) - SILENT))
def test_the_reason_is_told(name):
    told = explain(lambda x: x * 2, INPUTS[name]())
    assert told.eager_steps
    assert all(step.reason for step in told.eager_steps)


def test_a_tensor_of_mkldnn():
    x = torch.ones(3, 3).to_mkldnn()
    torch._dynamo.reset()
    torch.testing.assert_close(fusion_core.compile(lambda t: t.to_dense() + 1)(x), torch.full((3, 3), 2.0))


@pytest.mark.parametrize("name", ["uint8", "subclass"])
def test_refused_before_anything_is_written(name):
    x = INPUTS[name]()
    before = x.clone()
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"subclass of Tensor|dtype uint8, which nvFuser does not have"):
        fusion_core.compile(lambda t: t.mul_(2), fallback="error")(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("offset", [0, 3])
def test_memory_that_was_freed(offset):
    def function(x, y):
        y.add_(1)
        x.mul_(2)

    compiled = fusion_core.compile(function)
    x, y = torch.ones(4 + offset)[offset:], torch.ones(4)
    compiled(x, y)
    x.untyped_storage().resize_(0)
    before = y.clone()
    with pytest.raises(
        fusion_core.InputError, match=r"float32 \(4,\) on cpu, is written, but its storage has 0 bytes"
    ):
        compiled(x, y)
    assert torch.equal(y, before)
    x.untyped_storage().resize_(16 + 4 * offset)
    x.fill_(1)
    compiled(x, y)
    assert torch.equal(x, torch.full((4,), 2.0))


def test_memory_that_the_program_itself_gives():
    def function(x):
        x.untyped_storage().resize_(16)
        return x.fill_(3) + 1

    compiled = fusion_core.compile(function)
    x = torch.ones(4)
    for _ in range(3):
        x.untyped_storage().resize_(0)
        assert torch.equal(compiled(x), torch.full((4,), 4.0))
