"""On a device, too, the estimate equals what the allocator is asked for, and bounds hold."""

import memory_programs
import pytest
import torch

import fusion_core
from fusion_core import estimate_memory
from pytest_fusealias.build import Program
from pytest_fusealias.check import check
from pytest_fusealias.model import Outcome, Spec

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("bookend", [False, True], ids=["no bookend", "bookend"])
@pytest.mark.parametrize("case", memory_programs.CASES, ids=lambda c: c.name)
def test_estimate_equals_measurement(case, bookend):
    options = {"bookend": bookend}
    measured = memory_programs.measured(case, "cuda", lambda f: fusion_core.compile(f, **options))
    function, arguments = case.make("cuda")
    estimate = estimate_memory(function, *arguments, options=options)
    assert estimate.exact, estimate.doubts
    assert estimate.device == "cuda"
    forward = estimate.forward
    assert (forward.peak.bytes, forward.left.bytes) == measured.forward
    if case.trains:
        assert (estimate.backward.peak.bytes, estimate.backward.left.bytes) == measured.backward


def chain(x, w):
    return ((x @ w).relu() * 2).sum(0)


def make():
    return Program(
        chain, (torch.randn(64, 64, device="cuda", requires_grad=True), torch.randn(64, 64, device="cuda"))
    )


def make_inference():
    return Program(chain, (torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")))


def with_temporary(graph, _inputs):
    def run(*inputs):
        extra = torch.empty(256, device="cuda")
        outputs = graph(*inputs)
        del extra
        return outputs

    return run


def with_leak(graph, _inputs):
    kept = []

    def run(*inputs):
        kept.append(torch.empty(128, device="cuda"))
        return graph(*inputs)

    return run


def with_kept_buffer(graph, _inputs):
    kept = torch.empty(1024, device="cuda")

    def run(*inputs):
        assert kept.numel()
        return graph(*inputs)

    return run


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor", "fusion_core"])
def test_correct_backends_pass(backend):
    verdict = check(make, Spec(backend=backend, device="cuda", max_peak_delta=0, max_retained=0))
    assert verdict["memory"].outcome is Outcome.PASS, verdict["memory"]


@pytest.mark.parametrize(
    ("backend", "bounds", "path", "nbytes"),
    [
        (with_temporary, {"max_peak_delta": 1023}, "peak", 1024),
        (with_leak, {"max_peak_delta": "64 KiB"}, "leak", 512),
        (with_kept_buffer, {"max_retained": 4095}, "retained", 4096),
    ],
)
def test_regression_is_caught(backend, bounds, path, nbytes):
    verdict = check(make_inference, Spec(backend=backend, device="cuda", **bounds))
    assert [c.check for c in verdict.failures] == ["memory"]
    (finding,) = verdict["memory"].findings
    assert finding.path == path
    assert str(nbytes) in finding.text


def test_another_allocator_is_not_measured(monkeypatch):
    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: "cudaMallocAsync")
    verdict = check(make, Spec(backend="eager", device="cuda", max_peak_delta=0))
    assert verdict["memory"].outcome is Outcome.NOT_MEASURED
    assert "cudaMallocAsync" in verdict["memory"].reason


def test_timeline_names_values():
    measured = check(make, Spec(backend=with_temporary, device="cuda", max_peak_delta=0)).memory
    assert measured.eager.timeline.at_peak
    assert any("test_memory.py:" in a.source for a in measured.eager.timeline.at_peak)


def test_adam_step_needs_no_memory():
    parameters = [torch.nn.Parameter(torch.randn(512, 512, device="cuda")) for _ in range(3)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    step = torch.optim.Adam(parameters, capturable=True, foreach=True).step
    assert estimate_memory(step).peak_bytes <= 16 * len(parameters)  # the scalars of the step counters
