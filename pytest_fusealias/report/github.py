"""GitHub: the step summary and annotations. Written on the controller only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_fusealias.report.bench import markdown_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_fusealias.report.bench import Table


class NoSummaryError(Exception):
    """There is no step summary to write to."""


def summary_path(given: str, base: Path) -> Path:
    """Returns the file to append to: the one given, else that of the running GitHub step; raises NoSummaryError."""
    if given != "auto":
        return base / given
    path = os.environ.get("GITHUB_STEP_SUMMARY")  # noqa: TID251 - the way in which GitHub names the file
    if not path:
        raise NoSummaryError(
            "--fusion-github-summary: GITHUB_STEP_SUMMARY is not set; run in GitHub Actions, or give a path"
        )
    return Path(path)


def append(path: Path, lines: Iterable[str]) -> None:
    """Appends lines to a step summary, after what other steps have written. Raises OSError."""
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def summary(counts: str, tables: Sequence[Table], entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the summary: counts, tables, what failed and what was not measured."""
    yield "## fusealias\n"
    yield f"{counts}\n"
    for table in tables:
        yield from markdown_lines(table)
        yield ""
    for entry in entries:
        for check, path, text in entry["findings"]:
            yield f"* **FAIL** `{entry['test']}` [{entry['backend']}] {check}: {path}: {text}"
    for entry in entries:
        for check, reason in entry["not_measured"]:
            yield f"* NOT-MEASURED `{entry['test']}` [{entry['backend']}] {check}: {reason}"


def annotation_lines(entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yields workflow commands: an error for each failing check, a warning for each that was not measured."""
    for entry in entries:
        file, line = entry.get("location") or ("", 1)
        where = f"file={_property(file)},line={line}"
        for check, path, text in entry["findings"]:
            title = _property(f"{check}: {entry['backend']}")
            message = f"{entry['test']}: {path}: {text}"
            yield f"::error {where},title={title}::{_data(message)}"
        for check, reason in entry["not_measured"]:
            title = _property(f"{check} not measured: {entry['backend']}")
            message = f"{entry['test']}: {reason}"
            yield f"::warning {where},title={title}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
