"""What was measured of a program's time and compilation: plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_fusealias.decision import ALPHA, interval, median, order_statistic, threshold

if TYPE_CHECKING:
    from pytest_fusealias.decision import Interval

# Names how numbers were made; numbers of different estimators are never compared.
ESTIMATOR = "abba-sign-test-1"


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a time measurement may cost, and how it is made.

    `seconds` bound one test's timing; `least_quads` are made even where fewer would decide. `threads` are the intra-op
    threads on the CPU. `cache` is `warm` or `cold`: before each call on CUDA the L2 cache is overwritten. With
    `cold_compile` disk caches of compilers are empty, so that compile seconds can be compared. `everything` measures also
    where no bound asks for it; with `skipped` nothing is.
    """

    seconds: float = 3.0
    least_quads: int = 10
    threads: int = 1
    cache: str = "warm"
    cold_compile: bool = False
    everything: bool = False
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class CompileFacts:
    """What compiling took and gave; None is not known. `seconds` are wall time of the calls that compile, less
    a steady call each.

    `attempts` has the seconds of every compilation that was timed; `recompile_reasons` one failed guard each.
    """

    seconds: float
    graphs: int | None = None
    graph_breaks: tuple[str, ...] | None = None
    recompile_reasons: tuple[str, ...] | None = None
    regions: int | None = None
    kernels: int | None = None
    is_steady: bool = True
    is_cold: bool = False
    attempts: tuple[float, ...] = ()

    @property
    def recompiles(self) -> int | None:
        """Compilations that a failed guard caused."""
        return None if self.recompile_reasons is None else len(self.recompile_reasons)


@dataclass(frozen=True, slots=True)
class TimeComparison:
    """Times of both arms over the same memory, in seconds a call.

    `log_ratios` has one number a quad, natural logarithm of compiled over eager; `eager_quads_s` and `compiled_quads_s`
    have the median of each quad. `clock` is `cpu` (CPU time of the process), `wall`, or `cuda` (events). `host_s` is what a
    call costs on the host before it returns, (eager, compiled), measured apart. `dropped` quads ran while the device was
    throttled.
    """

    device: str
    clock: str
    cache: str
    threads: int
    calls_a_quad: int
    log_ratios: tuple[float, ...]
    eager_quads_s: tuple[float, ...]
    compiled_quads_s: tuple[float, ...]
    host_s: tuple[float, float] | None = None
    dropped: int = 0
    throttling: str = "not known"
    alpha: float = ALPHA
    spent_s: float = 0.0
    recompile_reasons: tuple[str, ...] = field(default=())

    @property
    def eager_s(self) -> float:
        """Median time of an eager call."""
        return median(list(self.eager_quads_s))

    @property
    def compiled_s(self) -> float:
        """Median time of a compiled call."""
        return median(list(self.compiled_quads_s))

    @property
    def compiled_bounds_s(self) -> tuple[float, float]:
        """One-sided bounds of the median time of a compiled call, within this run."""
        ordered = sorted(self.compiled_quads_s)
        rank = order_statistic(len(ordered), self.alpha)
        return (ordered[rank - 1], ordered[-rank]) if rank else (0.0, math.inf)

    @property
    def interval(self) -> Interval:
        """The ratio with its bounds, each at the level of the look that ended the measurement."""
        return interval(list(self.log_ratios), self.alpha)

    @property
    def ratio(self) -> float:
        """Compiled over eager: the median of the quads."""
        return math.exp(median(list(self.log_ratios)))

    def threshold(self, limit: float) -> float:
        """The ratio above which `limit` counts as exceeded."""
        return threshold(limit, self.eager_s)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What compiling and running a program costs; `time` is None where it was not timed, for the `reason`."""

    facts: CompileFacts
    time: TimeComparison | None = None
    reason: str = ""
