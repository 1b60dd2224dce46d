"""What a session leaves behind: saved runs, JSON, the HTML report, GitHub's summary. Made once, on the controller."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_fusealias import session
from pytest_fusealias.baseline.judge import unmatched
from pytest_fusealias.baseline.machine import commit_info, machine_info
from pytest_fusealias.baseline.schema import Entry, Run, entry_from, to_json
from pytest_fusealias.baseline.storage import StorageError, save_run, saved_runs, write_document, write_text
from pytest_fusealias.report import github
from pytest_fusealias.report.bench import Row, change_text, notes, shown_columns, tables, terminal_lines
from pytest_fusealias.report.terminal import counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

    from pytest_fusealias.bench_options import BenchOptions
    from pytest_fusealias.recording import Baseline
    from pytest_fusealias.report.bench import Table

_SHOWN_IDS = 5


def write_outputs(config: pytest.Config, *, saves: bool) -> tuple[list[str], list[str]]:
    """Writes what the options ask for; returns what was written, and the errors.

    A run that was broken off is not saved as a baseline.
    """
    options = config.stash[session.SETTINGS].bench
    collected = config.stash[session.COLLECTED]
    entries = measured_entries(collected)
    done: list[str] = []
    errors: list[str] = []

    def attempt(write: Callable[[], str]) -> None:
        try:
            done.append(write())
        except (StorageError, github.NoSummaryError, OSError, ValueError) as error:
            errors.append(str(error))

    missing = "" if entries else "nothing was measured"
    missing = missing if saves else "the run was broken off"
    wanted = {"--fusion-bench-save": (options.save, _saved), "--fusion-bench-json": (options.json, _json)}
    document = {} if missing or not (options.save or options.json) else _document(config, entries)
    for name, (given, write) in wanted.items():
        if given and missing:
            errors.append(f"{name}: {missing}, so nothing was written")
        elif given:
            attempt(partial(write, options, document))
    if options.report:
        attempt(lambda: _report(config, options, entries, collected))
    if options.github_summary:
        attempt(lambda: _github(config, options, collected))
    return done, errors


def measured_entries(collected: list[dict[str, Any]]) -> list[Entry]:
    """Returns the entries that the workers measured."""
    return [entry_from(c["bench"]) for c in collected if c.get("bench")]


def current_run(config: pytest.Config, entries: list[Entry]) -> Run:
    """Returns this session's run."""
    return Run(
        datetime=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        version=importlib.metadata.version("pytest-fusealias"),
        entries=tuple(sorted(entries, key=lambda e: (e.test, e.backend))),
        machine_info=machine_info(),
        commit_info=commit_info(config.rootpath),
    )


def _document(config: pytest.Config, entries: list[Entry]) -> dict[str, Any]:
    document = to_json(current_run(config, entries))
    config.hook.pytest_fusealias_update_json(config=config, document=document)
    return document


def _saved(options: BenchOptions, document: dict[str, Any]) -> str:
    assert options.save is not None
    path = save_run(options.storage, options.save, document)
    return f"saved {len(document['benchmarks'])} measurements to {path}"


def _json(options: BenchOptions, document: dict[str, Any]) -> str:
    assert options.json is not None
    write_document(options.json, document)
    return f"wrote {len(document['benchmarks'])} measurements to {options.json}"


def _report(
    config: pytest.Config, options: BenchOptions, entries: list[Entry], collected: list[dict[str, Any]]
) -> str:
    from pytest_fusealias.report.html import Report, history, render

    assert options.report is not None
    past = history([(f"{n:04d}_{name}", path) for n, name, path in saved_runs(options.storage)])
    report = Report(
        title="fusealias report",
        run=current_run(config, entries),
        summary=counts(collected),
        tables=tuple(_tables(config)),
        notes=tuple(notes(entries)),
        verdicts=tuple(collected),
        history=past,
    )
    write_text(options.report, render(report))
    return f"wrote the report {options.report}"


def _github(config: pytest.Config, options: BenchOptions, collected: list[dict[str, Any]]) -> str:
    path = github.summary_path(options.github_summary or "auto", config.invocation_params.dir)
    github.append(path, github.summary(counts(collected), list(_tables(config)), collected))
    return f"appended to the step summary {path}"


def _tables(config: pytest.Config) -> list[Table]:
    options = config.stash[session.SETTINGS].bench
    rows = [
        Row(entry_from(c["bench"]), change_text(c["changes"]))
        for c in config.stash[session.COLLECTED]
        if c.get("bench")
    ]
    return tables(rows, shown_columns(options.columns, rows), options.sort, options.group_by)


def table_lines(config: pytest.Config) -> Iterator[str]:
    """Yields the tables of what was measured, and how."""
    for table in _tables(config):
        yield from terminal_lines(table)
        yield ""
    yield from notes(measured_entries(config.stash[session.COLLECTED]))


def baseline_lines(config: pytest.Config) -> Iterator[str]:
    """Yields how many measurements were compared with the baseline, and what had no counterpart on either side."""
    baseline: Baseline | None = config.stash[session.BASELINE]
    if baseline is None:
        return
    collected = config.stash[session.COLLECTED]
    entries = measured_entries(collected)
    missing = sum(any(c["field"] == "baseline" for c in e.get("changes", ())) for e in collected)
    if baseline.run is None:
        yield f"NO BASELINE: {baseline.where}; {len(entries)} measurements were compared with nothing"
        return
    text = f"baseline {baseline.where}: {len(entries) - missing} of {len(entries)} measurements compared"
    yield f"{text}; NOTHING WAS COMPARED" if missing == len(entries) else text
    gone = unmatched(baseline.run, entries)
    if gone:
        names = ", ".join(f"{e.test} [{e.backend}]" for e in gone[:_SHOWN_IDS])
        more = f" and {len(gone) - _SHOWN_IDS} more" if len(gone) > _SHOWN_IDS else ""
        yield f"in the baseline, not measured in this run: {names}{more}"
