"""Header and summary lines of the terminal report."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_fusealias.options import Settings

Entry = "Mapping[str, Any]"


def header(settings: Settings, versions: str) -> str:
    """Returns the header line: what a marked test is compared with, and where."""
    backends = ", ".join(settings.default_backends)
    dtype = settings.dtype or "default dtype"
    strict = ", strict" if settings.strict else ""
    bench = settings.bench
    measuring = f", measuring within {bench.budget.seconds:g} s a test" if bench.measures else ""
    against = f", compared with {bench.compare}" if bench.compare else ""
    where = f"{settings.device}, {dtype}, seed {settings.seed}"
    return f"fusealias: {versions}, backend {backends}, {where}{strict}{measuring}{against}"


def summary(entries: Iterable[Mapping[str, Any]], *, verbose: bool) -> Iterator[str]:
    """Yields the counts, then what a green run must not hide: not measured, expected failures, weak findings."""
    entries = list(entries)
    if verbose:
        yield from table(entries)
    expected = [(e, check, reason) for e in entries for check, reason in e["expected"]]
    weak = [(e, text) for e in entries for text in e["weak"]]
    yield counts(entries)
    for entry in entries:
        for check, reason in entry["not_measured"]:
            yield f"NOT-MEASURED {entry['test']} [{entry['backend']}] {check}: {reason}"
    for entry, check, reason in expected:
        yield f"EXPECTED {entry['test']} [{entry['backend']}] {check}: {reason}"
    for (test, backend, text), count in Counter((e["test"], e["backend"], t) for e, t in weak).items():
        yield f"WEAK {test} [{backend}] {text}" + (f" ({count} times)" if count > 1 else "")


def counts(entries: Iterable[Mapping[str, Any]]) -> str:
    """Returns one line with how many programs came to which outcome."""
    entries = list(entries)
    outcomes = Counter(e["outcome"] for e in entries)
    refused = sum(1 for e in entries if e["refused"])
    expected, weak = (sum(len(e[kind]) for e in entries) for kind in ("expected", "weak"))
    return (
        f"{len(entries)} checked: {outcomes['PASS']} passed, {outcomes['FAIL']} failed "
        f"({refused} refused by the backend), {outcomes['ERROR']} errors, "
        f"{outcomes['NOT-MEASURED']} not measured; {expected} expected failures, {weak} weak findings"
    )


def table(entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yields one row a verdict: what was compiled, how many tensors were compared, the outcome."""
    rows = [("program", "backend", "graphs", "tensors", "outcome", "failing checks")]
    for entry in entries:
        graphs = "-" if entry["graphs"] is None else str(entry["graphs"])
        bad = ", ".join(entry["failed"] or [f"{c} (expected)" for c, _ in entry["expected"]]) or "-"
        name = entry["test"].split("::", 1)[-1]
        outcome = "XFAIL" if entry["expected"] and entry["outcome"] == "PASS" else entry["outcome"]
        rows.append((name, entry["backend"], graphs, str(entry["tensors"]), outcome, bad))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
