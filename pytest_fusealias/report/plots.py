"""Drawings of the HTML report, as SVG text; colours are the page's CSS variables."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from pytest_fusealias.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_fusealias.baseline.schema import Entry

_WIDTH, _MARGIN = 640, 14
_STRIP_HEIGHT = 74
_LINE_HEIGHT = 120
_ROW = 26


def distribution(entry: Entry) -> str:
    """Returns the quads' ratios as dots on a log scale, their median and bounds, 1 and the marker's limit as lines."""
    ratios = [math.exp(v) for v in entry.log_ratios]
    marks = [1.0, *([entry.max_time_ratio] if entry.max_time_ratio else [])]
    low, high = min([*ratios, *marks]) * 0.98, max([*ratios, *marks]) * 1.02

    def x(ratio: float) -> float:
        return _MARGIN + (_WIDTH - 2 * _MARGIN) * math.log(ratio / low) / math.log(high / low)

    parts = [_line("axis", _MARGIN, 48, _WIDTH - _MARGIN, 48)]
    for at, name in [(1.0, "eager = 1"), *((v, f"limit {v:g}") for v in marks[1:])]:
        kind = "limit" if name.startswith("limit") else "unit"
        parts.append(_line(kind, x(at), 14, x(at), 52))
        parts.append(_text(x(at), 11, name, _anchor(x(at))))
    for position, ratio in enumerate(ratios):
        parts.append(
            f'<circle class="dot" cx="{x(ratio):.1f}" cy="{22 + position * 7 % 22}" r="2.6"><title>quad {position + 1}: '
            f"{ratio:.4f}</title></circle>"
        )
    if entry.ratio and entry.ratio_low and entry.ratio_high:
        parts.append(_line("span", x(max(entry.ratio_low, low)), 48, x(min(entry.ratio_high, high)), 48))
        parts.append(
            f'<rect class="middle" x="{x(entry.ratio) - 2:.1f}" y="42" width="4" height="12" rx="2"/>'
        )
    parts += [
        _text(_MARGIN, 68, f"{low:.3f}", "start"),
        _text(_WIDTH - _MARGIN, 68, f"{high:.3f}", "end"),
    ]
    label = f"ratio {entry.ratio:.3f} of {len(ratios)} quads" if entry.ratio else "no ratio"
    return _svg(_STRIP_HEIGHT, label, parts)


def history_line(points: Sequence[tuple[str, float]], label: str) -> str:
    """Returns ratios over saved runs, oldest to the left; the last point is this run."""
    values = [v for _, v in points]
    low, high = min([*values, 1.0]) * 0.97, max([*values, 1.0]) * 1.03
    step = (_WIDTH - 2 * _MARGIN) / max(len(points) - 1, 1)

    def y(value: float) -> float:
        return 20 + (_LINE_HEIGHT - 44) * (high - value) / (high - low)

    places = [(_MARGIN + step * i, y(v)) for i, v in enumerate(values)]
    path = "M" + "L".join(f"{px:.1f},{py:.1f}" for px, py in places)
    parts = [_line("unit", _MARGIN, y(1.0), _WIDTH - _MARGIN, y(1.0)), f'<path class="curve" d="{path}"/>']
    for (px, py), (name, value) in zip(places, points, strict=True):
        parts.append(
            f'<circle class="dot big" cx="{px:.1f}" cy="{py:.1f}" r="4"><title>{escape(name)}: {value:.4f}</title></circle>'
        )
    parts.append(_text(_MARGIN, _LINE_HEIGHT - 6, points[0][0], "start"))
    parts.append(_text(_WIDTH - _MARGIN, _LINE_HEIGHT - 6, f"{points[-1][0]}: {values[-1]:.3f}", "end"))
    return _svg(_LINE_HEIGHT, label, parts)


def timeline(eager: Sequence[int], compiled: Sequence[int]) -> str:
    """Returns live bytes of both arms on one scale, each over its own allocator events."""
    top = max([*eager, *compiled, 1])
    parts = []
    for kind, points in (("eager", eager), ("compiled", compiled)):
        step = (_WIDTH - 2 * _MARGIN) / max(len(points), 1)
        path = f"M{_MARGIN},{_LINE_HEIGHT - 24}"
        for index, value in enumerate(points):
            level = 14 + (_LINE_HEIGHT - 38) * (1 - max(value, 0) / top)
            path += f"V{level:.1f}H{_MARGIN + (index + 1) * step:.1f}"
        parts.append(f'<path class="bytes {kind}" d="{path}V{_LINE_HEIGHT - 24}"/>')
    peaks = (
        f"peak: eager {bytes_text(max(eager, default=0))}, compiled {bytes_text(max(compiled, default=0))}"
    )
    parts.append(_text(_MARGIN, _LINE_HEIGHT - 6, peaks, "start"))
    return _svg(_LINE_HEIGHT, peaks, parts)


def alias_graph(pairs: Sequence[Sequence[str]]) -> str:
    """Returns tensors as rows and an arc for each pair that shares memory: to the left in eager, to the right compiled.

    Arcs that only one arm has are marked.
    """
    names = list(dict.fromkeys(name for a, b, *_ in pairs for name in (a, b)))
    row = {name: 22 + _ROW * i for i, name in enumerate(names)}
    left, right = _WIDTH * 0.3, _WIDTH * 0.7
    parts = [_text(left - 60, 12, "eager", "end"), _text(right + 60, 12, "compiled", "start")]
    parts += [_text(_WIDTH / 2, row[name] + 4, _shortened(name), "middle", "name") for name in names]
    for a, b, in_eager, in_compiled in pairs:
        odd = " odd" if in_eager != in_compiled else ""
        for x, side, relation in ((left, -1, in_eager), (right, 1, in_compiled)):
            if relation != "distinct":
                bend = x + side * (18 + abs(row[b] - row[a]) * 0.6)
                arc = f"M{x:.0f},{row[a]}C{bend:.0f},{row[a]} {bend:.0f},{row[b]} {x:.0f},{row[b]}"
                title = f"<title>{escape(a)} and {escape(b)}: {escape(relation)}</title>"
                parts.append(f'<path class="arc{odd}" d="{arc}">{title}</path>')
    return _svg(30 + _ROW * len(names), "which tensors share memory, in eager and compiled", parts)


def _anchor(x: float) -> str:
    """Keeps a label inside the drawing."""
    return "start" if x < _WIDTH * 0.1 else "end" if x > _WIDTH * 0.9 else "middle"


def _shortened(name: str, most: int = 34) -> str:
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-most // 2 :]}"


def _svg(height: int, label: str, parts: Sequence[str]) -> str:
    return "".join(_document(height, label, parts))


def _document(height: int, label: str, parts: Sequence[str]) -> Iterator[str]:
    yield f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}">'
    yield from parts
    yield "</svg>"


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
