"""The table of measurements: rows of cells, as terminal text and as markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_fusealias.units import seconds_text, time_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_fusealias.baseline.schema import Entry

_NONE = "-"
_TIMES = ("eager", "compiled", "host", "compile")


@dataclass(frozen=True, slots=True)
class Row:
    """One entry with its changes against the baseline, as text."""

    entry: Entry
    change: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """One group: a title (empty for the only group), headings, and cells."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(rows: Iterable[Row], columns: Sequence[str], sort: str, group_by: str) -> list[Table]:
    """Returns the tables of all groups, in order of their titles; units fit each table's column of times."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(_group(row.entry, group_by), []).append(row)
    return [_table(title, _sorted(groups[title], sort), columns) for title in sorted(groups)]


def terminal_lines(table: Table) -> Iterator[str]:
    """Yields a table for the terminal: the first column to the left, numbers to the right."""
    if table.title:
        yield f"{table.title}:"
    lines = [table.headings, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.headings))]
    left = {i for i, name in enumerate(table.headings) if name in ("program", "backend", "change", "outcome")}
    for line in lines:
        cells = [
            c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def markdown_lines(table: Table) -> Iterator[str]:
    """Yields a table as GitHub markdown."""
    if table.title:
        yield f"**{_escaped(table.title)}**\n"
    yield f"| {' | '.join(table.headings)} |"
    yield f"|{'---|' * len(table.headings)}"
    yield from (f"| {' | '.join(_escaped(cell) for cell in row)} |" for row in table.rows)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _group(entry: Entry, group_by: str) -> str:
    name, _, parameter = group_by.partition(":")
    if name == "param":
        return f"{parameter}={entry.params.get(parameter, _NONE)}"
    keys = {
        "none": "",
        "file": entry.file,
        "function": entry.test.partition("[")[0],
        "backend": entry.backend,
    }
    return keys[name]


_SORT_FIELDS = {
    "eager": "eager_s",
    "compiled": "compiled_s",
    "ratio": "ratio",
    "compile": "compile_s",
    "peak": "peak_bytes",
}


def _sorted(rows: list[Row], sort: str) -> list[Row]:
    if sort == "name":
        return sorted(rows, key=lambda r: (r.entry.test, r.entry.backend))
    values = [(getattr(r.entry, _SORT_FIELDS[sort]), r) for r in rows]
    known = sorted((v for v in values if v[0] is not None), key=lambda v: v[0])
    return [row for _, row in known] + [row for value, row in values if value is None]


def _table(title: str, rows: list[Row], columns: Sequence[str]) -> Table:
    units = {name: _unit(rows, name) for name in _TIMES}
    cells = [
        (_name(row.entry), *(_CELLS[name](row, units.get(name, "")) for name in columns)) for row in rows
    ]
    return Table(title, ("program", *columns), tuple(cells))


def _name(entry: Entry) -> str:
    return entry.test.split("::", 1)[-1]


def _unit(rows: list[Row], column: str) -> str:
    """The unit of the smallest time of a column, so that every cell reads in the same one."""
    field = {"eager": "eager_s", "compiled": "compiled_s", "host": "host_compiled_s", "compile": "compile_s"}[
        column
    ]
    known = [v for v in (getattr(r.entry, field) for r in rows) if v]
    return time_unit(min(known)) if known else ""


def _time(field: str) -> Callable[[Row, str], str]:
    def cell(row: Row, unit: str) -> str:
        value = getattr(row.entry, field)
        return _NONE if value is None else seconds_text(value, unit)

    return cell


def _count(field: str) -> Callable[[Row, str], str]:
    def cell(row: Row, _unit: str) -> str:
        value = getattr(row.entry, field)
        return _NONE if value is None else str(value)

    return cell


def _ratio(row: Row, _unit: str) -> str:
    entry = row.entry
    if entry.ratio is None or entry.ratio_low is None or entry.ratio_high is None:
        return _NONE
    bound = f" / {entry.max_time_ratio:g}" if entry.max_time_ratio is not None else ""
    return f"{entry.ratio:.3f} ({entry.ratio_low:.2f}-{entry.ratio_high:.2f}){bound}"


def _peak(row: Row, _unit: str) -> str:
    entry = row.entry
    if entry.peak_bytes is None or entry.eager_peak_bytes is None:
        return _NONE
    return f"{_short(entry.peak_bytes)} ({entry.peak_bytes - entry.eager_peak_bytes:+d} B)"


def _short(nbytes: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.4g} {unit}"
    return f"{nbytes} B"


_CELLS: dict[str, Callable[[Row, str], str]] = {
    "backend": lambda row, _: row.entry.backend,
    "eager": _time("eager_s"),
    "compiled": _time("compiled_s"),
    "ratio": _ratio,
    "host": _time("host_compiled_s"),
    "compile": _time("compile_s"),
    "peak": _peak,
    "regions": _count("regions"),
    "kernels": _count("kernels"),
    "recompiles": _count("recompiles"),
    "change": lambda row, _: row.change or _NONE,
    "outcome": lambda row, _: row.entry.outcome or _NONE,
}


def shown_columns(columns: Sequence[str], rows: Sequence[Row]) -> tuple[str, ...]:
    """Leaves out columns that nothing fills: host times without CUDA, changes without a baseline."""
    empty = {name for name in ("host", "change") if all(_CELLS[name](r, "us") == _NONE for r in rows)}
    return tuple(name for name in columns if name not in empty)


def notes(entries: Sequence[Entry]) -> Iterator[str]:
    """Yields what a reader must know of how the numbers were made."""
    ways = sorted({f"{e.clock} clock, {e.threads} thread(s), {e.cache} cache" for e in entries if e.clock})
    if ways:
        yield (
            f"times are of one call ({'; '.join(ways)}); ratio is compiled/eager with its 99 % bounds / the marker's limit"
        )
    throttling = {e.throttling for e in entries if e.clock == "cuda"}
    if throttling:
        yield f"throttling of the device: {', '.join(sorted(t or 'not known' for t in throttling))}"


def change_text(changes: Iterable[Mapping[str, Any]]) -> str:
    """Returns the changes of one test in a cell."""
    return "; ".join(_change(c) for c in changes)


def _change(change: Mapping[str, Any]) -> str:
    old, new = change["old"], change["new"]
    if not old or new is None:
        return "no baseline" if change["field"] == "baseline" else f"{change['field']} {change['outcome']}"
    return f"{change['field']} {(new / old - 1) * 100:+.1f}%"
