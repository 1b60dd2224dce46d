"""Memory bounds: regressions are caught and named, correct backends pass, and what cannot be measured is no pass."""

import threading
import xml.etree.ElementTree as ET

import pytest
import torch

from fusion_core.memory.events import recorded
from pytest_fusealias.build import Program
from pytest_fusealias.check import check
from pytest_fusealias.measure.sessions import meter_for
from pytest_fusealias.measurement import Allocation, NotMeasuredError, Timeline
from pytest_fusealias.model import Outcome, Spec
from pytest_fusealias.units import parse_bytes

pytest_plugins = ["pytester"]
CORRECT = ("eager", "aot_eager", "inductor", "fusion_core")
NOTHING_MORE = {"max_peak_delta": 0, "max_retained": "0 B"}


def chain(x, w):
    return ((x @ w).relu() * 2).sum(0)


def make():
    return Program(chain, (torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)))


def make_inference():
    return Program(chain, (torch.randn(64, 64), torch.randn(64, 64)))


def make_in_place():
    def step(x, w):
        x.copy_((x @ w).relu())
        return x

    return Program(step, (torch.randn(64, 64), torch.randn(64, 64)))


def with_temporary(graph, _inputs):
    """Needs 1 KiB more while the graph runs."""

    def run(*inputs):
        extra = torch.empty(256)
        outputs = graph(*inputs)
        del extra
        return outputs

    return run


def with_leak(graph, _inputs):
    """Leaves 512 B behind at every call."""
    kept = []

    def run(*inputs):
        kept.append(torch.empty(128))
        return graph(*inputs)

    return run


def with_kept_buffer(graph, _inputs):
    """Makes a buffer of 4 KiB once and never lets go of it."""
    kept = torch.empty(1024)

    def run(*inputs):
        assert kept.numel()
        return graph(*inputs)

    return run


@pytest.mark.parametrize("backend", CORRECT)
@pytest.mark.parametrize("program", [make, make_inference, make_in_place])
def test_correct_backends_pass(program, backend):
    verdict = check(program, Spec(backend=backend, **NOTHING_MORE))
    assert verdict.outcome is Outcome.PASS, verdict
    assert verdict["memory"].outcome is Outcome.PASS
    assert verdict.memory.leak_bytes.compiled == 0


@pytest.mark.parametrize(
    ("backend", "bounds", "path", "nbytes"),
    [
        (with_temporary, {"max_peak_delta": "1023 B"}, "peak", 1024),
        (with_temporary, {"max_peak_ratio": 1.0}, "peak", 1024),
        (with_leak, {"max_retained": "1 MiB"}, "leak", 512),
        (with_leak, {"max_peak_delta": "1 MiB"}, "leak", 512),
        (with_kept_buffer, {"max_retained": "4095 B"}, "retained", 4096),
        (with_kept_buffer, {"max_peak_delta": "4095 B"}, "peak", 4096),
    ],
)
def test_regression_is_caught(backend, bounds, path, nbytes):
    verdict = check(make_inference, Spec(backend=backend, **bounds))
    assert [c.check for c in verdict.failures] == ["memory"]
    (finding,) = verdict["memory"].findings
    assert finding.path == path
    assert str(nbytes) in finding.text


@pytest.mark.parametrize(
    ("backend", "bounds"),
    [
        (with_temporary, {"max_peak_delta": 1024}),
        (with_temporary, {"max_retained": 0}),
        (with_kept_buffer, {"max_retained": "4 KiB", "max_peak_delta": "4096"}),
    ],
)
def test_bound_that_just_holds_passes(backend, bounds):
    assert check(make_inference, Spec(backend=backend, **bounds)).outcome is Outcome.PASS


def test_first_value_that_eager_does_not_hold_is_named():
    verdict = check(make_inference, Spec(backend=with_temporary, max_peak_delta=0))
    odd = verdict.memory.first_odd_value()
    assert odd.nbytes == 1024
    assert "aten::empty" in odd.source


def test_eager_values_are_named_by_line():
    verdict = check(make_inference, Spec(backend="eager", max_peak_delta=0))
    sources = [a.source for a in verdict.memory.eager.timeline.at_peak]
    assert any("test_memory.py:" in s for s in sources), sources


def test_expected_failure_of_memory():
    spec = Spec(backend=with_temporary, max_peak_delta=0, xfail_checks={"memory": "known"})
    verdict = check(make_inference, spec)
    assert verdict.outcome is Outcome.PASS
    assert [c.check for c in verdict.expected] == ["memory"]


def test_peaks_are_measured_for_who_asks():
    verdict = check(make, Spec(backend="fusion_core"))
    assert verdict.memory is None
    assert verdict.peak_bytes.compiled <= verdict.peak_bytes.eager
    assert verdict.retained_bytes.excess == 0


def test_state_that_first_calls_make_is_no_leak():
    def optimizer():
        module = torch.nn.Linear(8, 8)
        for p in module.parameters():
            p.grad = torch.ones_like(p)
        adam = torch.optim.Adam(module.parameters())
        return Program(adam.step, state=[module, adam])

    measured = check(optimizer, Spec(backend="fusion_core", max_retained=0)).memory
    assert measured.retained_bytes.eager == measured.retained_bytes.compiled > 0
    assert measured.leak_bytes.eager == measured.leak_bytes.compiled == 0


def in_a_thread(x):
    result = []
    worker = threading.Thread(target=lambda: result.append(x * 2))
    worker.start()
    worker.join()
    return result[0]


def grows(log):
    """A program whose own memory grows from call to call, by more each time."""
    log.append(torch.zeros(64 * 2 ** len(log)))
    return log[-1] * 2


def test_python_threads_are_not_measured():
    def program():
        return Program(in_a_thread, (torch.randn(16),))

    result = check(program, Spec(backend="eager", max_peak_delta=0, allow_fallback=True))["memory"]
    assert result.outcome is Outcome.NOT_MEASURED
    assert "threads" in result.reason


def test_active_profiler_is_not_measured_and_fails_under_strict():
    with recorded():
        verdict = check(make_inference, Spec(backend="eager", max_peak_delta=0, strict=True))
    assert verdict["memory"].outcome is Outcome.NOT_MEASURED
    assert "active already" in verdict["memory"].reason
    assert verdict.outcome is Outcome.FAIL


def test_torch_without_profiler_is_not_measured(monkeypatch):
    monkeypatch.setattr(torch.profiler, "kineto_available", lambda: False)
    verdict = check(make_inference, Spec(backend="eager", max_peak_delta=0))
    assert verdict["memory"].outcome is Outcome.NOT_MEASURED
    assert "without its profiler" in verdict["memory"].reason


def test_calls_that_do_not_agree_are_not_measured():
    verdict = check(
        lambda: Program(grows, ([],)), Spec(backend="eager", max_peak_delta=0, checks=("values",))
    )
    assert verdict["memory"].outcome is Outcome.NOT_MEASURED
    assert "do not agree" in verdict["memory"].reason


def test_program_that_raises_is_not_measured():
    def bad(x):
        return x @ x

    spec = Spec(backend="eager", max_peak_delta=0, raises=RuntimeError, allow_fallback=True)
    verdict = check(lambda: Program(bad, (torch.randn(2, 3),)), spec)
    assert verdict["memory"].outcome is Outcome.NOT_MEASURED
    assert "raises" in verdict["memory"].reason


def test_other_devices_are_not_measured():
    with pytest.raises(NotMeasuredError, match="not on mps"):
        meter_for("mps")


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (0, 0),
        (512, 512),
        ("512", 512),
        ("512 B", 512),
        ("8 MiB", 2**23),
        ("8MiB", 2**23),
        ("8 MB", 8_000_000),
        ("8 kB", 8000),
        ("8 KB", 8000),
        ("1.5 KiB", 1536),
        ("2 GiB", 2**31),
    ],
)
def test_sizes_are_read(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    "text", ["8 mb", "8 Mib", "1.5 B", "-1", -1, "", "MiB", "1,5 MiB", 1.5, True, "8 MiB more", "1e6", None]
)
def test_other_sizes_are_refused_with_the_forms(text):
    with pytest.raises(ValueError, match=r"expected .*8 MiB.*; found"):
        parse_bytes(text)


def test_peak_of_an_empty_timeline():
    assert Timeline((), ()).peak == 0
    assert Timeline((0, 5, 3), (Allocation(5, "x"),)).peak == 1


def test_thinned_timeline_keeps_the_highest_points():
    timeline = Timeline((0, 7, 1, 2, 9, 3), ())
    assert timeline.thinned(3) == [7, 2, 9]
    assert timeline.thinned(100) == list(timeline.live_bytes)
    assert Timeline((), ()).thinned(3) == []


SUITE = """
import pytest
import torch


def with_temporary(graph, inputs):
    def run(*values):
        extra = torch.empty(256)
        outputs = graph(*values)
        del extra
        return outputs
    return run


def make(device, dtype, seed):
    return torch.randn(32, 32), torch.randn(32, 32)


@pytest.mark.fusion_equiv(inputs=make, backend=["fusion_core", with_temporary], max_peak_delta="0 B")
def test_bound(x, w):
    return (x @ w).relu().sum(0)


def test_meter(fusion_memory):
    measured = fusion_memory(lambda x: x.sin() + 1, make=lambda: (torch.randn(256),), backend="fusion_core")
    assert measured.peak_bytes.compiled <= measured.peak_bytes.eager
    assert measured.leak_bytes.compiled == 0
"""


@pytest.mark.parametrize("workers", [[], ["-n0"], ["-n2"]], ids=["none", "n0", "n2"])
def test_bounds_and_timelines_in_a_suite(pytester, workers):
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("--fusion-memory-timeline=lines", *workers)
    result.assert_outcomes(passed=2, failed=1)
    output = result.stdout.str()
    assert "exceeds a bound" in output
    assert "+1024 B; allowed is max_peak_delta=0 B more" in output
    assert "eager: peak" in output
    assert "compiled: peak" in output
    files = sorted((pytester.path / "lines").iterdir())
    assert len(files) == 2
    for file in files:
        root = ET.parse(file).getroot()
        texts = [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text")]
        assert any(t.startswith("eager: peak") for t in texts)
        assert any(t.startswith("compiled: peak") for t in texts)


def test_malformed_size_is_a_collection_error(pytester):
    pytester.makepyfile(SUITE.replace('"0 B"', '"8 mb"'))
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*max_peak_delta='8 mb': expected *8 MiB*"])


def test_timeline_folder_that_is_a_file_is_a_usage_error(pytester):
    pytester.makepyfile(SUITE)
    pytester.path.joinpath("taken").write_text("kept")
    result = pytester.runpytest_subprocess("--fusion-memory-timeline=taken")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "expected a folder" in result.stderr.str()
    assert pytester.path.joinpath("taken").read_text() == "kept"
