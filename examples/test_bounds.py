"""Bounds on time and memory: `pytest examples/test_bounds.py --fusion-bench` prints the table."""

import pytest
import torch
from programs import RMSNorm

ELEMENTS = 1_000_000


def two_vectors(device, dtype, seed):
    return torch.randn(ELEMENTS, device=device), torch.randn(ELEMENTS, device=device)


@pytest.mark.fusion_equiv(
    inputs=two_vectors, backend="inductor", max_time_ratio=1.2, max_peak_delta="64 B", max_recompiles=0
)
def test_pointwise_chain(x, y):
    return ((x + y) * 0.5).sigmoid() * x


@pytest.mark.fusion_equiv(
    inputs=two_vectors, backend="fusion_core", max_peak_delta="64 B", max_recompiles=0, min_regions=1
)
def test_moving_average(average, x):
    average.lerp_(x, 0.1)


@pytest.mark.fusion_equiv(
    backend=["aot_eager", "fusion_core"], rtol=1e-5, atol=1e-5, max_time_ratio=3, max_graph_breaks=0
)
def test_rms_norm(fusion_program):
    layer = RMSNorm(512).requires_grad_(requires_grad=False)
    return fusion_program(layer, torch.randn(512, 512), state=layer)


def test_one_measurement(fusion_bench):
    bench = fusion_bench(lambda x: x.softmax(-1), make=lambda: (torch.randn(256, 1024),), backend="aot_eager")
    assert bench.facts.graphs == 1
