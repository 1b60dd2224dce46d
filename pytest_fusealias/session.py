"""The state of a test session: verdicts travel on test reports, and are collected where the terminal is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_fusealias.model import Verdict

if TYPE_CHECKING:
    from pytest_fusealias.options import Settings

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
COLLECTED: pytest.StashKey[list[dict[str, Any]]] = pytest.StashKey()
VERDICTS: pytest.StashKey[list[dict[str, Any]]] = pytest.StashKey()
REPORT_FIELD = "fusealias"


def record(item: pytest.Item, verdict: Verdict) -> None:
    """Keeps a verdict on its item and writes the junit properties."""
    entry = _entry(item.nodeid, verdict)
    item.stash.setdefault(VERDICTS, []).append(entry)
    item.user_properties.append(("fusealias.backend", verdict.backend))
    item.user_properties.append(("fusealias.outcome", verdict.outcome.value))
    for result in verdict.checks:
        item.user_properties.append((f"fusealias.{result.check}", result.outcome.value))


def record_error(item: pytest.Item, backend: str, message: str) -> None:
    """Keeps the fact that a program could not be judged."""
    entry = _entry(item.nodeid, Verdict(backend, ())) | {
        "outcome": "ERROR",
        "failed": [message.split(";")[0]],
    }
    item.stash.setdefault(VERDICTS, []).append(entry)
    item.user_properties.append(("fusealias.backend", backend))
    item.user_properties.append(("fusealias.outcome", "ERROR"))


def _entry(node_id: str, verdict: Verdict) -> dict[str, Any]:
    """Returns the verdict as builtins, which is what reports may carry between processes."""
    return {
        "test": node_id,
        "backend": verdict.backend,
        "outcome": verdict.outcome.value,
        "refused": verdict.refused,
        "graphs": verdict.graphs,
        "tensors": verdict.tensors,
        "checks": {c.check: c.outcome.value for c in verdict.checks},
        "failed": [c.check for c in verdict.failures],
        "not_measured": [[c.check, c.reason] for c in verdict.not_measured],
        "expected": [[c.check, c.reason] for c in verdict.expected],
        "weak": [f"{f.check}: {f.path}: {f.text}" for f in verdict.weak],
        "memory": None if verdict.memory is None else verdict.memory.numbers(),
    }


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Puts the item's verdicts on its call report, on which they reach the controller under xdist."""
    if report.when == "call" and VERDICTS in item.stash:
        setattr(report, REPORT_FIELD, item.stash[VERDICTS])
        del item.stash[VERDICTS]


class Collector:
    """Gathers verdicts from the reports of all workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._collected = config.stash[COLLECTED]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds a report's verdicts to the session's."""
        self._collected.extend(getattr(report, REPORT_FIELD, ()))
