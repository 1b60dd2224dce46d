"""Memory of both arms as text, side by side."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from pytest_fusealias.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_fusealias.measurement import ArmMemory, MemoryComparison

_WIDTH = 58
_SHOWN_VALUES = 12
_BARS_SHOWN = 40
_BARS = " ▁▂▃▄▅▆▇█"


def side_by_side(measured: MemoryComparison) -> Iterator[str]:
    """Yields both timelines on one scale, the values that live at each peak, and the first that eager does not hold."""
    odd = measured.first_odd_value()
    if odd is not None:
        yield f"first value at the compiled peak that eager does not hold: {bytes_text(odd.nbytes)}, {odd.source}"
    top = max(measured.eager.timeline.peak_bytes, measured.compiled.timeline.peak_bytes, 1)
    columns = [_column(arm, name, top) for name, arm in _arms(measured)]
    for left, right in zip_longest(*columns, fillvalue=""):
        yield f"{left:{_WIDTH}.{_WIDTH}} | {right}".rstrip()
    yield f"({measured.unit}, above the inputs; values in the order in which they were made)"


def _arms(measured: MemoryComparison) -> tuple[tuple[str, ArmMemory], ...]:
    return ("eager", measured.eager), ("compiled", measured.compiled)


def _column(arm: ArmMemory, name: str, top: int) -> Iterator[str]:
    yield f"{name}: peak {bytes_text(arm.peak_bytes)}, retained {bytes_text(arm.retained_bytes)}"
    yield _sparkline(arm.timeline.thinned(_BARS_SHOWN), top)
    values = arm.timeline.at_peak
    yield from (f"{value.nbytes:>12} B  {value.source}" for value in values[:_SHOWN_VALUES])
    if len(values) > _SHOWN_VALUES:
        rest = values[_SHOWN_VALUES:]
        yield f"{sum(v.nbytes for v in rest):>12} B  in {len(rest)} more"


def _sparkline(points: list[int], top: int) -> str:
    return "".join(_BARS[min(max(round(p / top * (len(_BARS) - 1)), 0), len(_BARS) - 1)] for p in points)
