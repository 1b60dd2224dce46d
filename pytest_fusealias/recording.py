"""From a verdict to the entry that tables, reports and saved runs show, and its comparison with the baseline."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_fusealias.baseline.judge import Change, compare_entry
from pytest_fusealias.baseline.machine import machine_key
from pytest_fusealias.baseline.schema import Entry, Run, measured_values
from pytest_fusealias.baseline.storage import locate, read_run
from pytest_fusealias.model import CheckResult, Finding, Outcome
from pytest_fusealias.timing import ESTIMATOR

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from pytest_fusealias.bench_options import BenchOptions
    from pytest_fusealias.model import Spec, Verdict


@dataclass(frozen=True, slots=True)
class Baseline:
    """The saved run to compare with: `run` is None where none was found, and `where` says which one was looked for."""

    where: str
    run: Run | None = None


def load_baseline(options: BenchOptions, base: Path) -> Baseline | None:
    """Returns the baseline that the options name, None where they name none; raises StorageError."""
    if options.compare is None:
        return None
    path = locate(options.storage, options.compare, base)
    if path is None:
        return Baseline(f"{options.compare} (nothing saved in {options.storage})")
    return Baseline(str(path), read_run(path))


def entry_of(item: pytest.Function, verdict: Verdict, spec: Spec, place: int = 1) -> Entry | None:
    """Returns the item's entry, or None where nothing was measured.

    `place` counts the measurements of one test under one backend: from the second on it is part of the id.
    """
    bench, memory = verdict.bench, verdict.memory
    if bench is None:
        return None
    device = bench.time.device if bench.time is not None else str(spec.device).partition(":")[0]
    given = item.config.hook.pytest_fusealias_machine_key(config=item.config, device=device)
    values: dict[str, Any] = measured_values(bench)
    if memory is not None:
        values |= {
            "peak_bytes": memory.peak_bytes.compiled,
            "eager_peak_bytes": memory.peak_bytes.eager,
            "retained_bytes": memory.retained_bytes.compiled,
        }
    return Entry(
        test=stable_id(item) + ("" if place == 1 else f"#{place}"),
        backend=verdict.backend,
        machine=given or machine_key(device, verdict.backend),
        estimator=ESTIMATOR,
        file=str(item.location[0]),
        params=_parameters(item),
        outcome=verdict.outcome.value,
        max_time_ratio=spec.max_time_ratio,
        **values,
    )


def stable_id(item: pytest.Item) -> str:
    """Returns the node id without the group that xdist's `--dist loadgroup` adds to it."""
    node_id = item.nodeid
    if item.get_closest_marker("xdist_group") is None or getattr(item.config, "workerinput", None) is None:
        return node_id
    return node_id.rpartition("@")[0] or node_id


def _parameters(item: pytest.Function) -> dict[str, str]:
    given = item.callspec.params if hasattr(item, "callspec") else {}
    plain = (str, int, float, bool, type(None))
    return {k: str(v) for k, v in given.items() if not k.startswith("_") and isinstance(v, plain)}


def against_baseline(
    verdict: Verdict, entry: Entry, baseline: Baseline, options: BenchOptions
) -> tuple[Verdict, list[Change]]:
    """Returns the verdict with a check `baseline`, where limits are given, and the changes."""
    if baseline.run is None:
        changes = [
            Change(
                entry.test,
                entry.backend,
                "baseline",
                Outcome.NOT_MEASURED,
                f"no baseline: {baseline.where}",
            )
        ]
    else:
        changes = compare_entry(entry, baseline.run, options.limits)
    failed = [c for c in changes if c.outcome is Outcome.FAIL]
    unknown = [c for c in changes if c.outcome is Outcome.NOT_MEASURED]
    if not (options.limits or unknown):
        return verdict, changes
    outcome = Outcome.FAIL if failed else Outcome.NOT_MEASURED if unknown else Outcome.PASS
    findings = tuple(Finding("baseline", c.field, c.text) for c in failed)
    reason = "" if failed else "; ".join(c.text for c in unknown)
    result = CheckResult("baseline", outcome, findings, reason)
    return dataclasses.replace(verdict, checks=(*verdict.checks, result)), changes


def change_dict(change: Change) -> dict[str, Any]:
    """Returns builtins."""
    return dataclasses.asdict(change) | {"outcome": change.outcome.value}
