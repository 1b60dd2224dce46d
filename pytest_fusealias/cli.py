"""The console command `fusealias`: compare, report and merge saved runs. Neither torch nor pytest is imported.

Exit codes: 0 nothing regressed, 1 something did, 2 wrong use or unreadable file, 3 under --strict where something was
not measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_fusealias.baseline.expression import FORM, ExpressionError, parse_limit
from pytest_fusealias.baseline.judge import compare_runs
from pytest_fusealias.baseline.schema import Run, to_json
from pytest_fusealias.baseline.storage import StorageError, read_run, write_document, write_text
from pytest_fusealias.model import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_fusealias.baseline.judge import Change

_OK, _REGRESSION, _USAGE, _NOT_MEASURED = 0, 1, 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    given = _parser().parse_args(arguments)
    try:
        lines, code = given.run(given)
    except (StorageError, ExpressionError) as error:
        sys.stderr.write(f"fusealias: {error}\n")
        return _USAGE
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return int(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fusealias", description="Saved runs of pytest --fusion-bench.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    compare = commands.add_parser("compare", help="compare two saved runs, field by field")
    compare.add_argument("old", type=Path)
    compare.add_argument("new", type=Path)
    compare.add_argument("--fail", action="append", default=[], metavar="EXPR", help=FORM.replace("%", "%%"))
    compare.add_argument("--strict", action="store_true", help="exit with 3 where something was not measured")
    compare.set_defaults(run=_compare)
    report = commands.add_parser(
        "report", help="make an HTML report of saved runs; the last one is shown in full"
    )
    report.add_argument("files", type=Path, nargs="+")
    report.add_argument("-o", "--output", type=Path, default=Path("fusealias.html"))
    report.set_defaults(run=_report)
    merge = commands.add_parser("merge", help="put the runs of several shards or machines into one file")
    merge.add_argument("files", type=Path, nargs="+")
    merge.add_argument("-o", "--output", type=Path, required=True)
    merge.set_defaults(run=_merge)
    return parser


def _compare(given: argparse.Namespace) -> tuple[list[str], int]:
    limits = [parse_limit(text) for text in given.fail] or [parse_limit("ratio:5%"), parse_limit("peak:0%")]
    changes = compare_runs(read_run(given.old), read_run(given.new), limits)
    lines = [_line(change) for change in changes]
    counts = {outcome: sum(c.outcome is outcome for c in changes) for outcome in Outcome}
    lines.append(
        f"{len(changes)} comparisons: {counts[Outcome.PASS]} passed, {counts[Outcome.FAIL]} regressed, "
        f"{counts[Outcome.NOT_MEASURED]} not measured"
    )
    compared = counts[Outcome.PASS] + counts[Outcome.FAIL]
    if not compared:
        lines.append("NOTHING WAS COMPARED")
    if counts[Outcome.FAIL]:
        return lines, _REGRESSION
    return lines, _NOT_MEASURED if given.strict and (counts[Outcome.NOT_MEASURED] or not compared) else _OK


def _line(change: Change) -> str:
    return f"{change.outcome.value:12} {change.test} [{change.backend}]: {change.text}"


def _report(given: argparse.Namespace) -> tuple[list[str], int]:
    from pytest_fusealias.bench_options import COLUMNS
    from pytest_fusealias.report.bench import Row, notes, shown_columns, tables
    from pytest_fusealias.report.html import Report, render

    *past, last = [(path.stem, read_run(path)) for path in given.files]
    rows = [Row(entry) for entry in last[1].entries]
    report = Report(
        title=f"fusealias report: {last[0]}",
        run=last[1],
        summary=f"{len(rows)} measurements, {len(past)} earlier runs",
        tables=tuple(tables(rows, shown_columns(COLUMNS, rows), "name", "none")),
        notes=tuple(notes(last[1].entries)),
        history=tuple(past),
    )
    write_text(given.output, render(report))
    return [f"wrote {given.output}"], _OK


def _merge(given: argparse.Namespace) -> tuple[list[str], int]:
    runs = [read_run(path) for path in given.files]
    entries = {entry.key: entry for run in runs for entry in run.entries}
    total = sum(len(run.entries) for run in runs)
    last = max(runs, key=lambda run: run.datetime)
    merged: Run = dataclasses.replace(last, entries=tuple(entries[key] for key in sorted(entries)))
    write_document(given.output, to_json(merged))
    lines = [f"wrote {len(entries)} measurements of {len(runs)} runs to {given.output}"]
    if total > len(entries):
        lines.append(f"{total - len(entries)} were in several files: the one in the last file counts")
    return lines, _OK
