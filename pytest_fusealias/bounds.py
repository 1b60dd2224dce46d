"""Decide about measured memory: the bounds of a marker against both arms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_fusealias.model import Finding
from pytest_fusealias.units import bytes_text, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_fusealias.measurement import MemoryComparison, Pair
    from pytest_fusealias.model import Spec


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
