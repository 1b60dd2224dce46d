"""Measure what the bounds of a marker ask for, and decide about it."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import TYPE_CHECKING

import torch

from pytest_fusealias.bounds import bench_decisions, memory_findings
from pytest_fusealias.compare import decide
from pytest_fusealias.locks import NoLockError
from pytest_fusealias.measure.bench import measure_bench
from pytest_fusealias.measure.memory import measure_memory
from pytest_fusealias.measurement import NotMeasuredError
from pytest_fusealias.model import CheckResult, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_fusealias.build import Program
    from pytest_fusealias.compilers import Compiler
    from pytest_fusealias.locks import DeviceGate
    from pytest_fusealias.measurement import MemoryComparison
    from pytest_fusealias.model import Spec
    from pytest_fusealias.timing import Benchmark, Budget

_CHECK_OF_BOUND = {
    "max_time_ratio": "time",
    "max_compile_s": "compile_time",
    "max_recompiles": "recompiles",
    "max_graph_breaks": "graph_breaks",
    "min_regions": "regions",
}


class Bounds:
    """The measurements of one program under one compiler, each made once and kept."""

    def __init__(
        self,
        factory: Callable[[], Program],
        spec: Spec,
        compiler: Compiler,
        budget: Budget,
        gate: DeviceGate,
    ) -> None:
        self._factory = factory
        self._spec = spec
        self._compiler = compiler
        self._budget = budget
        self._gate = gate
        self.memory: MemoryComparison | None = None
        self.bench: Benchmark | None = None

    def measured_memory(self) -> MemoryComparison:
        """Returns the memory of both arms; raises NotMeasuredError."""
        if self.memory is None:
            with self._gate.shared(), kept_random_state():
                self.memory = measure_memory(self._factory, self._spec, self._compiler)
        return self.memory

    def measured_bench(self, *, timed: bool = True) -> Benchmark:
        """Returns compile facts and, where `timed`, times, made with the device to ourselves; raises NotMeasuredError."""
        if self.bench is None:
            exact = timed or self._spec.max_compile_s is not None
            lock = self._gate.exclusive() if exact else self._gate.shared()
            try:
                with lock, kept_random_state():
                    self.bench = measure_bench(
                        self._factory, self._spec, self._compiler, self._budget, timed=timed
                    )
            except NoLockError as reason:
                raise NotMeasuredError(f"no lock: {reason}") from None
        return self.bench

    def decide(self, raised: str) -> list[CheckResult]:
        """Returns the checks that bounds add; `raised` says that an arm raises, so that nothing can be measured."""
        return [*self._memory_checks(raised), *self._bench_checks(raised)]

    def _memory_checks(self, raised: str) -> Iterator[CheckResult]:
        spec = self._spec
        if not (spec.bounds_memory or spec.keeps_timeline or self._budget.everything):
            return
        try:
            if raised:
                raise NotMeasuredError(raised)
            measured = self.measured_memory()
        except NotMeasuredError as reason:
            yield CheckResult("memory", Outcome.NOT_MEASURED, (), str(reason))
            return
        if spec.bounds_memory:
            yield decide("memory", memory_findings(measured, spec), spec, self._compiler.name)

    def _bench_checks(self, raised: str) -> Iterator[CheckResult]:
        spec, budget = self._spec, self._budget
        if not (spec.bounds_bench or budget.everything):
            return
        asked = [c for bound, c in _CHECK_OF_BOUND.items() if getattr(spec, bound) is not None]
        timed = budget.everything or spec.max_time_ratio is not None
        try:
            if raised:
                raise NotMeasuredError(raised)
            if budget.skipped:
                raise NotMeasuredError("--fusion-bench-skip")
            measured = self.measured_bench(timed=timed)
        except NotMeasuredError as reason:
            yield from (CheckResult(c, Outcome.NOT_MEASURED, (), str(reason)) for c in asked or ["time"])
            return
        for name, found in bench_decisions(measured, spec):
            if isinstance(found, str):
                yield CheckResult(name, Outcome.NOT_MEASURED, (), found)
            else:
                yield decide(name, found, spec, self._compiler.name)
        if timed and measured.time is None and spec.max_time_ratio is None:
            yield CheckResult("time", Outcome.NOT_MEASURED, (), measured.reason)


@contextlib.contextmanager
def kept_random_state() -> Iterator[None]:
    """Leaves the test's random generators as they were found."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    python_state = random.getstate()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
