"""The file of a saved run: pytest-benchmark's schema, with everything of ours under `fusealias`."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_fusealias.timing import Benchmark

SCHEMA = 1
BLOCK = "fusealias"


class FormatError(ValueError):
    """The text of a file is not a run that this version can read."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One measured program under one backend on one machine; None is not measured. Seconds are of one call.

    `machine` is the machine key and `estimator` the way in which times were made: entries that differ in either are
    never compared. Bounds (`*_low`, `*_high`) are of the median, one-sided.
    """

    test: str
    backend: str
    machine: str
    estimator: str
    outcome: str = ""
    file: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    clock: str | None = None
    cache: str | None = None
    threads: int | None = None
    eager_s: float | None = None
    compiled_s: float | None = None
    compiled_low_s: float | None = None
    compiled_high_s: float | None = None
    host_eager_s: float | None = None
    host_compiled_s: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    max_time_ratio: float | None = None
    log_ratios: tuple[float, ...] = ()
    compiled_quads_s: tuple[float, ...] = ()
    calls_a_quad: int | None = None
    throttling: str | None = None
    compile_s: float | None = None
    peak_bytes: int | None = None
    eager_peak_bytes: int | None = None
    retained_bytes: int | None = None
    regions: int | None = None
    kernels: int | None = None
    recompiles: int | None = None
    graph_breaks: int | None = None
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What must be equal for two entries to be compared."""
        return self.test, self.backend, self.machine, self.estimator

    def to_dict(self) -> dict[str, Any]:
        """Returns builtins, fit for reports between processes and for JSON."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}


def entry_from(values: Mapping[str, Any]) -> Entry:
    """Returns the entry of `to_dict`'s values; names that this version does not know are left out."""
    known = {f.name for f in dataclasses.fields(Entry)}
    read: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known
    }
    return Entry(**read)


@dataclass(frozen=True, slots=True)
class Run:
    """A saved run. `datetime` is ISO 8601, UTC."""

    datetime: str
    version: str
    entries: tuple[Entry, ...]
    machine_info: Mapping[str, Any] = field(default_factory=dict)
    commit_info: Mapping[str, Any] = field(default_factory=dict)


def measured_values(bench: Benchmark) -> dict[str, Any]:
    """Returns the values of an Entry that a benchmark gives."""
    facts, time = bench.facts, bench.time
    breaks = facts.graph_breaks
    values: dict[str, Any] = {
        "compile_s": facts.seconds if facts.is_cold else None,
        "regions": facts.regions,
        "kernels": facts.kernels,
        "recompiles": facts.recompiles,
        "graph_breaks": None if breaks is None else len(breaks),
        "reason": bench.reason,
    }
    if time is None:
        return values
    low, high = time.compiled_bounds_s
    host = time.host_s or (None, None)
    return values | {
        "clock": time.clock,
        "cache": time.cache,
        "threads": time.threads,
        "eager_s": time.eager_s,
        "compiled_s": time.compiled_s,
        "compiled_low_s": low,
        "compiled_high_s": high,
        "host_eager_s": host[0],
        "host_compiled_s": host[1],
        "ratio": time.ratio,
        "ratio_low": time.interval.low,
        "ratio_high": time.interval.high,
        "log_ratios": time.log_ratios,
        "compiled_quads_s": time.compiled_quads_s,
        "calls_a_quad": time.calls_a_quad,
        "throttling": time.throttling,
    }


def to_json(run: Run) -> dict[str, Any]:
    """Returns the run as JSON-ready builtins."""
    return {
        "machine_info": dict(run.machine_info),
        "commit_info": dict(run.commit_info),
        "benchmarks": [_benchmark(e) for e in run.entries],
        "datetime": run.datetime,
        "version": run.version,
        BLOCK: {"schema": SCHEMA},
    }


def dumps(document: Mapping[str, Any]) -> str:
    """Returns the text of a file; raises ValueError for numbers that JSON has not."""
    return json.dumps(document, indent=1, allow_nan=False, sort_keys=False) + "\n"


def _benchmark(entry: Entry) -> dict[str, Any]:
    shown = entry.test if entry.backend in entry.test else f"{entry.test}[{entry.backend}]"
    return {
        "group": None,
        "name": shown.rpartition("::")[2],
        "fullname": shown,
        "params": dict(entry.params) or None,
        "param": "-".join(entry.params.values()) or None,
        "extra_info": {BLOCK: entry.to_dict()},
        "options": {},
        "stats": _stats(list(entry.compiled_quads_s) or [entry.compiled_s or 0.0]),
    }


def _stats(data: list[float]) -> dict[str, Any]:
    """pytest-benchmark's statistics, of the compiled arm's quads."""
    ordered, count = sorted(data), len(data)
    mean = sum(data) / count
    stddev = math.sqrt(sum((v - mean) ** 2 for v in data) / (count - 1)) if count > 1 else 0.0
    q1, median, q3 = (_quantile(ordered, q) for q in (0.25, 0.5, 0.75))
    iqr = q3 - q1
    inside = [v for v in ordered if q1 - 1.5 * iqr <= v <= q3 + 1.5 * iqr]
    by_iqr, by_stddev = count - len(inside), sum(abs(v - mean) > stddev for v in data)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": stddev,
        "rounds": count,
        "median": median,
        "iqr": iqr,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": by_iqr,
        "stddev_outliers": by_stddev,
        "outliers": f"{by_stddev};{by_iqr}",
        "ld15iqr": inside[0],
        "hd15iqr": inside[-1],
        "ops": 1 / mean if mean else 0.0,
        "total": sum(data),
        "iterations": 1,
        "data": data,
    }


def _quantile(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def loads(text: str) -> Run:
    """Returns the run of a file's text; raises FormatError with what was found and what was expected."""
    try:
        document = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise FormatError(f"it is not complete JSON ({error})") from None
    if not isinstance(document, dict) or not isinstance(document.get(BLOCK), dict):
        raise FormatError(f"it was not written by this plugin: the block {BLOCK!r} is missing")
    schema = document[BLOCK].get("schema")
    if schema != SCHEMA:
        newer = isinstance(schema, int) and schema > SCHEMA
        advice = "; update pytest-fusealias, or save the run again" if newer else ""
        raise FormatError(f"its schema is {schema!r}, this version reads {SCHEMA}{advice}")
    benchmarks = document.get("benchmarks")
    if not isinstance(benchmarks, list):
        raise FormatError("'benchmarks' is not a list")
    return Run(
        datetime=str(document.get("datetime", "")),
        version=str(document.get("version", "")),
        entries=tuple(_entry(b, position) for position, b in enumerate(benchmarks)),
        machine_info=document.get("machine_info") or {},
        commit_info=document.get("commit_info") or {},
    )


def _no_constant(name: str) -> NoReturn:
    raise FormatError(f"it holds the number {name}, which no measurement gives")


_STRINGS = ("test", "backend", "machine", "estimator")
_NUMBERS = tuple(
    f.name
    for f in dataclasses.fields(Entry)
    if str(f.type) in ("float | None", "int | None")
)  # fmt: skip


def _entry(benchmark: object, position: int) -> Entry:
    where = f"benchmark {position}"
    if not isinstance(benchmark, dict):
        raise FormatError(f"{where} is not an object")
    found = (benchmark.get("extra_info") or {}).get(BLOCK)
    if not isinstance(found, dict):
        raise FormatError(f"{where} has no block extra_info.{BLOCK}")
    for name in _STRINGS:
        if not isinstance(found.get(name), str):
            raise FormatError(f"{where}: {name} is {found.get(name)!r}, expected text")
    for name in _NUMBERS:
        _require_number(found.get(name), f"{where}: {name}")
    for name in ("log_ratios", "compiled_quads_s"):
        _require_numbers(found.get(name, ()), f"{where}: {name}")
    return entry_from(found)


def _require_numbers(values: Iterable[object], where: str) -> None:
    for value in values:
        if value is None:
            raise FormatError(f"{where} holds null")
        _require_number(value, where)


def _require_number(value: object, where: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise FormatError(f"{where} is {value!r}, expected a number")
