"""The HTML report: one file, no network, light and dark, wide and narrow screens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from pytest_fusealias.baseline.schema import Entry
from pytest_fusealias.baseline.storage import StorageError, read_run
from pytest_fusealias.report import plots

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_fusealias.baseline.schema import Run
    from pytest_fusealias.report.bench import Table

_MOST_RUNS = 40
History = tuple[tuple[str, "Run"], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What a report shows. `verdicts` are the entries of the session; `history` has the saved runs, oldest first."""

    title: str
    run: Run
    summary: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    verdicts: tuple[Mapping[str, Any], ...] = ()
    history: History = ()


@dataclass(frozen=True, slots=True)
class _Program:
    """One measured program's part of the page."""

    title: str
    entry: Entry
    distribution: Markup | None
    history: Markup | None


@dataclass(frozen=True, slots=True)
class _Failure:
    """One failing test's part of the page."""

    title: str
    findings: tuple[tuple[str, str, str], ...]
    timeline: Markup | None
    diagram: Markup | None
    pairs: tuple[tuple[str, ...], ...]


def history(files: Iterable[tuple[str, Path]]) -> History:
    """Returns the saved runs that can be read, the latest of them; a report does without those that cannot."""
    runs = []
    for name, path in list(files)[-_MOST_RUNS:]:
        try:
            runs.append((name, read_run(path)))
        except StorageError:
            continue
    return tuple(runs)


def render(report: Report) -> str:
    """Returns the page."""
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
    )
    bad = [v for v in report.verdicts if v["outcome"] in ("FAIL", "ERROR")]
    return environment.get_template("report.html.j2").render(
        report=report,
        programs=[_program(entry, report.history) for entry in report.run.entries],
        failures=[_failure(v) for v in bad],
        not_measured=[
            (v["test"], v["backend"], *pair) for v in report.verdicts for pair in v["not_measured"]
        ],
    )


def _program(entry: Entry, past: History) -> _Program:
    points = _points(entry, past)
    return _Program(
        title=_title(entry.test, entry.backend),
        entry=entry,
        distribution=Markup(plots.distribution(entry)) if entry.log_ratios else None,
        history=Markup(plots.history_line(points, f"ratio of {entry.test}")) if len(points) > 1 else None,
    )


def _title(test: str, backend: str) -> str:
    return test if f"[{backend}]" in test else f"{test} [{backend}]"


def _points(entry: Entry, past: History) -> Sequence[tuple[str, float]]:
    """Ratios of saved runs on the same machine, then this run's, which may be the last of those that are saved."""
    points = [
        (name, e.ratio)
        for name, run in past
        for e in run.entries
        if e.key == entry.key and e.ratio is not None and e.log_ratios != entry.log_ratios
    ]
    return [*points, ("this run", entry.ratio)] if entry.ratio is not None else points


def _failure(verdict: Mapping[str, Any]) -> _Failure:
    drawn, pairs = verdict.get("timeline"), verdict.get("diagram") or ()
    by_memory = "memory" in verdict["failed"]
    return _Failure(
        title=_title(verdict["test"], verdict["backend"]),
        findings=tuple((c, p, t) for c, p, t in verdict["findings"])
        or tuple(("error", "", text) for text in verdict["failed"]),
        timeline=Markup(plots.timeline(drawn["eager"], drawn["compiled"])) if drawn and by_memory else None,
        diagram=Markup(plots.alias_graph(pairs)) if pairs else None,
        pairs=tuple(tuple(pair) for pair in pairs),
    )
