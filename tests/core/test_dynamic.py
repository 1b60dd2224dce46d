"""Sizes that change: one compilation and one program serve them, sizes 0 and 1 get their own, and all are right."""

import pytest
import torch
from equal import assert_equal, ramp
from torch._dynamo.utils import counters

import fusion_core
import fusion_core.kernels


def update(x, y):
    x.mul_(2).add_(y)
    return (x * y).sum(-1)


def norm(x, w):
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), w, w)


@pytest.fixture
def compiled_programs(monkeypatch):
    """Collects every program that is given to an executor."""
    seen = []
    kernel = fusion_core.kernels.KernelCache.kernel

    def recording(self, program, device):
        seen.append(program)
        return kernel(self, program, device)

    monkeypatch.setattr(fusion_core.kernels.KernelCache, "kernel", recording)
    return seen


@pytest.mark.parametrize(("function", "width"), [(update, 3), (norm, 8)], ids=["update", "norm"])
def test_one_program_serves_new_sizes(compiled_programs, function, width):
    torch._dynamo.reset()
    counters.clear()
    compiled = fusion_core.compile(function, dynamic=True)
    for rows in (4, 7, 33):
        second = ramp(rows, width) if function is update else ramp(width)
        x, twin = ramp(rows, width), ramp(rows, width)
        torch.testing.assert_close(compiled(x, second), function(twin, second))
        torch.testing.assert_close(x, twin)
    assert len(compiled_programs) == len(set(compiled_programs))
    assert counters["stats"]["unique_graphs"] == 1


def test_size_0_and_1_are_compiled_apart(compiled_programs):
    torch._dynamo.reset()
    counters.clear()
    compiled = fusion_core.compile(update, dynamic=True)
    for rows in (4, 1, 0, 9):
        x, twin, y = ramp(rows, 3), ramp(rows, 3), ramp(rows, 3)
        torch.testing.assert_close(compiled(x, y), update(twin, y))
        torch.testing.assert_close(x, twin)
    assert counters["stats"]["unique_graphs"] == 3


@pytest.mark.parametrize("function", [update, norm])
def test_equal_by_all_checks(function):
    def make():
        return ([(ramp(n, 4), ramp(n, 4) if function is update else ramp(4)) for n in (3, 5, 1, 8)],)

    assert_equal(function, make, drive=lambda f, calls: [f(*call) for call in calls])


def test_same_addresses_with_other_sizes():
    """The first elements lie where they lay, but now the inputs overlap."""

    def scale(a, b):
        a.mul_(2)
        return b + 1

    def drive(f, base):
        return [f(base[0:n], base[6:9]) for n in (4, 5, 8)]

    assert_equal(scale, lambda: (ramp(12),), drive=drive)
