"""Decide about what was measured: the bounds of a marker against both arms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_fusealias.decision import decide
from pytest_fusealias.model import Finding, Outcome
from pytest_fusealias.units import bytes_text, parse_bytes, seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_fusealias.measurement import MemoryComparison, Pair
    from pytest_fusealias.model import Spec
    from pytest_fusealias.timing import Benchmark, CompileFacts, TimeComparison


def memory_findings(measured: MemoryComparison, spec: Spec) -> list[Finding]:
    """Returns one finding for each bound that does not hold, and one for a leak that eager has not."""
    return [Finding("memory", path, text) for path, text in _broken(measured, spec)]


def _broken(measured: MemoryComparison, spec: Spec) -> Iterator[tuple[str, str]]:
    peak, retained, leak = measured.peak_bytes, measured.retained_bytes, measured.leak_bytes
    if spec.max_peak_ratio is not None and peak.compiled > spec.max_peak_ratio * peak.eager:
        yield "peak", f"{_compared(peak)}; allowed is max_peak_ratio={spec.max_peak_ratio} times eager's"
    if spec.max_peak_delta is not None and peak.excess > parse_bytes(spec.max_peak_delta):
        yield "peak", f"{_compared(peak)}; allowed is max_peak_delta={_bound(spec.max_peak_delta)} more"
    if spec.max_retained is not None and retained.excess > parse_bytes(spec.max_retained):
        yield "retained", f"{_compared(retained)}; allowed is max_retained={_bound(spec.max_retained)} more"
    if leak.compiled > max(leak.eager, 0):
        yield "leak", f"every call leaves {leak.compiled} B behind, in eager {leak.eager} B"


def _compared(pair: Pair) -> str:
    return f"{bytes_text(pair.compiled)}, eager {bytes_text(pair.eager)}: {pair.excess:+d} B"


def _bound(given: str | int) -> str:
    return bytes_text(parse_bytes(given))


def bench_decisions(bench: Benchmark, spec: Spec) -> Iterator[tuple[str, list[Finding] | str]]:
    """Yields, for each bound that is set, the check's name and its findings, or why it could not be decided."""
    facts = bench.facts
    if spec.max_time_ratio is not None:
        yield "time", _time(bench, spec.max_time_ratio)
    if spec.max_compile_s is not None:
        yield "compile_time", _compile_time(facts, spec.max_compile_s)
    if spec.max_recompiles is not None:
        yield "recompiles", _counted("recompiles", facts.recompile_reasons, spec.max_recompiles)
    if spec.max_graph_breaks is not None:
        yield "graph_breaks", _counted("graph_breaks", facts.graph_breaks, spec.max_graph_breaks)
    if spec.min_regions is not None:
        yield "regions", _regions(facts, spec.min_regions)


def _time(bench: Benchmark, limit: float) -> list[Finding] | str:
    time, facts = bench.time, bench.facts
    if time is None and not facts.is_steady:
        reasons = (facts.recompile_reasons or ("the compiler gives no reason",))[-1]
        return [Finding("time", "recompile", f"{bench.reason}, so there is no steady time: {reasons}")]
    if time is None:
        return bench.reason
    if time.recompile_reasons:
        return [Finding("time", "recompile", f"recompiles while it is timed: {time.recompile_reasons[0]}")]
    found, bound = time.interval, time.threshold(limit)
    text = (
        f"{seconds_text(time.compiled_s)}, eager {seconds_text(time.eager_s)}: ratio {found.ratio:.3f}, "
        f"with 99 % confidence {found.low:.3f} to {found.high:.3f}"
    )
    outcome = decide(found, bound)
    allowed = f"max_time_ratio={limit:g}, which counts as exceeded above {bound:.3f}"
    if outcome is Outcome.FAIL:
        return [Finding("time", "ratio", f"{text}; allowed is {allowed} ({_how(time)})")]
    if outcome is Outcome.NOT_MEASURED:
        return (
            f"{text}: too noisy to tell from {allowed} ({_how(time)}); give it more --fusion-bench-max-time"
        )
    return []


def _how(time: TimeComparison) -> str:
    return f"{time.clock} clock, {len(time.log_ratios)} quads in {time.spent_s:.1f} s"


def _compile_time(facts: CompileFacts, limit: float) -> list[Finding]:
    if facts.seconds <= limit:
        return []
    tried = ", ".join(f"{s:.2f} s" for s in facts.attempts)
    return [Finding("compile_time", "seconds", f"compiling took {tried}; allowed is max_compile_s={limit:g}")]


def _counted(name: str, reasons: tuple[str, ...] | None, limit: float) -> list[Finding] | str:
    if reasons is None:
        return f"this compiler does not use Dynamo, so its {name.replace('_', ' ')} are not known"
    if len(reasons) <= limit:
        return []
    return [Finding(name, f"{len(reasons)} of max_{name}={limit:g}", reason) for reason in reasons]


def _regions(facts: CompileFacts, least: float) -> list[Finding] | str:
    if facts.regions is None:
        return "this backend does not tell its fused regions (fusion_core and inductor do)"
    if facts.regions >= least:
        return []
    return [Finding("regions", "count", f"{facts.regions} fused regions; required are min_regions={least:g}")]
