"""The state of a test session: verdicts travel on test reports, and are collected where the terminal is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_fusealias.devices import own_device
from pytest_fusealias.model import Verdict
from pytest_fusealias.recording import change_dict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_fusealias.baseline.judge import Change
    from pytest_fusealias.baseline.schema import Entry
    from pytest_fusealias.measurement import MemoryComparison
    from pytest_fusealias.options import Settings
    from pytest_fusealias.recording import Baseline

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
BASELINE: pytest.StashKey[Baseline | None] = pytest.StashKey()
DEVICE: pytest.StashKey[str] = pytest.StashKey()
COLLECTED: pytest.StashKey[list[dict[str, Any]]] = pytest.StashKey()
VERDICTS: pytest.StashKey[list[dict[str, Any]]] = pytest.StashKey()
REPORT_FIELD = "fusealias"
_TIMELINE_POINTS = 240


def record(
    item: pytest.Item, verdict: Verdict, entry: Entry | None = None, changes: Sequence[Change] = ()
) -> None:
    """Keeps a verdict on its item, with what was measured, and writes the junit properties."""
    kept = _entry(item.nodeid, verdict)
    kept["location"] = [str(item.location[0]), (item.location[1] or 0) + 1]
    kept["bench"] = None if entry is None else entry.to_dict()
    kept["changes"] = [change_dict(change) for change in changes]
    item.stash.setdefault(VERDICTS, []).append(kept)
    item.user_properties.append(("fusealias.backend", verdict.backend))
    item.user_properties.append(("fusealias.outcome", verdict.outcome.value))
    for result in verdict.checks:
        item.user_properties.append((f"fusealias.{result.check}", result.outcome.value))
    if entry is not None and entry.ratio is not None:
        item.user_properties.append(("fusealias.time_ratio", f"{entry.ratio:.4f}"))


def measured(item: pytest.Item, backend: str) -> int:
    """Returns how many measurements the item has under a backend so far."""
    kept = item.stash.get(VERDICTS, [])
    return sum(1 for entry in kept if entry.get("bench") and entry["backend"] == backend)


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
        "findings": [[f.check, f.path, f.text] for c in verdict.failures for f in c.findings],
        "timeline": None if verdict.memory is None else _timeline(verdict.memory),
        "diagram": list(verdict.diagram),
    }


def _timeline(measured: MemoryComparison) -> dict[str, Any]:
    """Returns both timelines, thinned, for the HTML report."""
    arms = {"eager": measured.eager, "compiled": measured.compiled}
    return {name: arm.timeline.thinned(_TIMELINE_POINTS) for name, arm in arms.items()}


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Puts the item's verdicts on its call report, on which they reach the controller under xdist."""
    if report.when == "call" and VERDICTS in item.stash:
        setattr(report, REPORT_FIELD, item.stash[VERDICTS])
        del item.stash[VERDICTS]


def device_of(config: pytest.Config) -> str:
    """Returns the device of this process: the settings', shared out among xdist's workers."""
    if DEVICE not in config.stash:
        config.stash[DEVICE] = own_device(config, config.stash[SETTINGS].device)
    return config.stash[DEVICE]


class Collector:
    """Gathers verdicts from the reports of all workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._collected = config.stash[COLLECTED]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds a report's verdicts to the session's."""
        self._collected.extend(getattr(report, REPORT_FIELD, ()))
