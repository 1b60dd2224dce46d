"""Compiler bugs that are open today, each expected to fail by the check that catches it.

When a compiler is repaired, its `xfail_checks` entry makes the test fail until it is removed.
"""

import pytest
import torch

from pytest_fusealias import Verdict


def matrix(device, dtype, seed):
    return (torch.arange(12.0, device=device).reshape(3, 4),)


def vector(device, dtype, seed):
    return (torch.arange(1.0, 12.0, device=device),)


@pytest.mark.fusion_equiv(
    inputs=matrix,
    backend="inductor",
    xfail_checks={
        "alias": "pytorch/pytorch#195451: the copy back returns the written input as the fresh result",
        "identity": "pytorch/pytorch#195451",
    },
)
def test_scatter_and_copy_back(x):
    updated = torch.select_scatter(x, torch.full((3,), 9.0), 1, 1)
    x.copy_(updated)
    return updated


def tall_matrix(device, dtype, seed):
    return (torch.arange(48.0, device=device).reshape(6, 8),)


@pytest.mark.fusion_equiv(
    inputs=tall_matrix,
    backend="inductor",
    xfail_checks={
        "values": "pytorch/pytorch#197829: the clone between overlapping slices is dropped",
        "mutation": "pytorch/pytorch#197829",
    },
)
def test_shift_rows(x):
    x[2:] = x[:-2].clone()
    return x.sum(1)


@pytest.mark.fusion_equiv(
    inputs=lambda device, dtype, seed: (torch.zeros(3, 4), torch.arange(12.0).reshape(3, 4)),
    backend="inductor",
    xfail_checks={"mutation": "pytorch/pytorch#198131: the copy is moved behind the write to its source"},
)
def test_copy_before_source_changes(target, source):
    target[:, 0:] = source[:, 0:]
    source.add_(1)
    return source.sum()


@pytest.mark.fusion_equiv(
    inputs=vector,
    backend=["aot_eager", "inductor"],
    xfail_checks={
        "values": "pytorch/pytorch#198102: elements between the windows become zero",
        "mutation": "pytorch/pytorch#198102",
    },
)
def test_write_through_windows(x):
    x.unfold(0, 2, 3).mul_(10)
    return x.sum()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_overlap_appears_on_the_second_call(fusion_check, backend):
    def scale_then_add(a, c):
        a.mul_(2)
        return a + c

    def make():
        base = torch.arange(8.0)
        return ([(torch.ones(5), torch.ones(5)), (base[0:5], base[2:7])],)

    verdict: Verdict = fusion_check(
        scale_then_add,
        make=make,
        drive=lambda f, calls: [f(*call) for call in calls],
        backend=backend,
        xfail_checks={
            "values": "pytorch/pytorch#139789: no guard on overlap, so the plan for separate tensors runs"
        },
    )
    assert verdict.expected


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gradient_reads_the_new_value(fusion_check, backend):
    def product(x, b):
        y = x.sin() * b.clone().cos()
        with torch.no_grad():
            b.add_(1)
        return y

    fusion_check(
        product,
        make=lambda: (torch.arange(1.0, 4.0).requires_grad_(), torch.arange(3.0)),
        backend=backend,
        xfail_checks={"grads": "the buffer is saved for backward and written in one graph"},
    )


@pytest.mark.parametrize("program", ["scatter", "shift", "windows", "gradient"])
def test_fusion_core_runs_the_same_programs(fusion_check, program):
    def scatter(x):
        updated = torch.select_scatter(x, torch.full((3,), 9.0), 1, 1)
        x.copy_(updated)
        return updated

    def shift(x):
        x[1:] = x[:-1].clone()
        return x.sum(1)

    def windows(x):
        x.view(-1).unfold(0, 2, 3).mul_(10)
        return x.sum()

    def gradient(x):
        w = torch.ones(3, 4, requires_grad=True)
        y = (w.sin() * x.clone().cos()).sum()
        with torch.no_grad():
            x.add_(1)
        return y

    chosen = {"scatter": scatter, "shift": shift, "windows": windows, "gradient": gradient}[program]
    fusion_check(chosen, make=lambda: (torch.arange(12.0).reshape(3, 4),), backend="fusion_core")
