"""Memory of both arms as an SVG: eager above compiled, on one scale, the peaks marked."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from pytest_fusealias.units import artifact_name, bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_fusealias.measurement import ArmMemory, MemoryComparison

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 760, 150, 16, 56, 64
_MOST_POINTS = 1200
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b1f24}.quiet{fill:#59636e}"
    ".area{fill:#2f6fbf33;stroke:#2f6fbf;stroke-width:1.5}.axis{stroke:#59636e;stroke-width:1}"
    ".mark{stroke:#b3261e;stroke-dasharray:4 3}.dot{fill:#b3261e}.back{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.quiet{fill:#9aa5b1}.axis{stroke:#9aa5b1}.back{fill:#0d1117}"
    ".area{fill:#6ea8fe33;stroke:#6ea8fe}.mark{stroke:#ff8a80}.dot{fill:#ff8a80}}"
)


def write_timeline(folder: Path, title: str, measured: MemoryComparison) -> Path:
    """Writes the SVG of one test to `folder` and returns its path; titles that differ give files that differ."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{artifact_name(title)}.svg"
    waiting = path.with_suffix(".svg.part")
    waiting.write_text(svg(title, measured), encoding="utf-8")
    waiting.replace(path)
    return path


def svg(title: str, measured: MemoryComparison) -> str:
    """Returns the drawing; both curves share the scale of bytes, and each runs over its own allocator events."""
    top = max(measured.eager.timeline.peak_bytes, measured.compiled.timeline.peak_bytes, 1)
    scale = f"{measured.unit}, above the inputs; both scales end at {bytes_text(top)}"
    height = _TOP + 2 * (_HEIGHT + _GAP)
    arms = (("eager", measured.eager), ("compiled", measured.compiled))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="100%" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect class="back" width="{_WIDTH}" height="{height}"/>',
        f'<text x="{_LEFT}" y="24" font-weight="600">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="44" class="quiet">{escape(scale)}</text>',
    ]
    for position, (name, arm) in enumerate(arms):
        parts += _chart(name, arm, top, _TOP + 24 + position * (_HEIGHT + _GAP))
    return "\n".join([*parts, "</svg>", ""])


def _chart(name: str, arm: ArmMemory, top: int, y: int) -> Iterator[str]:
    points = arm.timeline.thinned(_MOST_POINTS)
    right, bottom = _WIDTH - _LEFT, y + _HEIGHT
    step = (right - _LEFT) / max(len(points), 1)
    line = f"M{_LEFT},{bottom}"
    for index, live in enumerate(points):
        level = bottom - max(live, 0) / top * _HEIGHT
        line += f"V{level:.1f}H{_LEFT + (index + 1) * step:.1f}"
    yield f'<text x="{_LEFT}" y="{y - 8}">{name}: peak {bytes_text(arm.peak_bytes)}, retained '
    yield f"{bytes_text(arm.retained_bytes)}</text>"
    yield f'<path class="area" d="{line}V{bottom}Z"/><path class="axis" d="M{_LEFT},{bottom}H{right}"/>'
    peak = max(range(len(points)), key=points.__getitem__, default=0)
    x = _LEFT + (peak + 0.5) * step
    level = bottom - arm.timeline.peak_bytes / top * _HEIGHT
    yield f'<path class="mark" d="M{_LEFT},{level:.1f}H{right}"/><circle class="dot" cx="{x:.1f}" cy="{level:.1f}" r="4"/>'
    if arm.timeline.at_peak:
        largest = max(arm.timeline.at_peak, key=lambda a: a.nbytes)
        text = f"largest at the peak: {bytes_text(largest.nbytes)}, {largest.source}"
        yield f'<text x="{_LEFT}" y="{bottom + 18}" class="quiet">{escape(text)}</text>'
