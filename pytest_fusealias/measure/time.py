"""Time a program in eager and compiled, interleaved, over the same memory.

Both arms run on one build. Two builds of the same program differ by several percent for as long as they live, by where
their tensors happen to lie in the caches; over the same memory only the code differs.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from fusion_core.collection import frozen_heap, without_collection
from pytest_fusealias.build import Program
from pytest_fusealias.decision import LOOKS, decide, interval, median, threshold
from pytest_fusealias.dynamo import DynamoNotes
from pytest_fusealias.measure.clocks import Clock, CudaClock, cpu_clock, host_seconds, wall_clock
from pytest_fusealias.measure.state import restorer
from pytest_fusealias.measure.throttle import Throttle
from pytest_fusealias.measurement import NotMeasuredError
from pytest_fusealias.model import Outcome, Spec
from pytest_fusealias.run import cotangents_of, roots_of
from pytest_fusealias.timing import Budget, TimeComparison

QUAD_S = 8e-3  # what a quad shall last: short calls share it
_MOST_CALLS = 200  # ABBA groups in a quad
_CALIBRATION_CALLS = 5
_HOST_CALLS = 21
_PATIENCE = 4  # a first look may cost so many budgets, since less decides nothing
_SETTLE_S = 0.05

Call = Callable[[], Any]


def time_program(
    program: Program, arms: tuple[Call, Call], device: torch.device, budget: Budget, limit: float | None
) -> TimeComparison:
    """Times two ways to run one program, (eager, compiled), both warm.

    With a limit, quads are made until the rule of `decision` decides or the budget is spent; without, `least_quads`.
    Raises NotMeasuredError with the reason.
    """
    begun = time.perf_counter()
    restore = restorer(program, [*arms])
    race = _Race(arms, restore, _clock(arms, restore, device, budget), Throttle(device), begun)
    with frozen_heap(), without_collection():
        notes = DynamoNotes()
        calls = race.calibrate(budget)
        alpha = race.run(calls, budget, limit)
        host = race.host_seconds() if device.type == "cuda" else None
    return TimeComparison(
        device=device.type,
        clock=race.clock.name,
        cache=budget.cache if device.type == "cuda" else "warm",
        threads=torch.get_num_threads(),
        calls_a_quad=4 * calls,
        log_ratios=tuple(race.log_ratios),
        eager_quads_s=tuple(race.eager_s),
        compiled_quads_s=tuple(race.compiled_s),
        host_s=host,
        dropped=race.dropped,
        throttling=race.throttle.known,
        alpha=alpha,
        spent_s=time.perf_counter() - begun,
        recompile_reasons=notes.recompile_reasons,
    )


@dataclass(slots=True)
class _Race:
    """The quads made so far."""

    arms: tuple[Call, Call]
    restore: Call
    clock: Clock
    throttle: Throttle
    begun: float
    log_ratios: list[float] = field(default_factory=list)
    eager_s: list[float] = field(default_factory=list)
    compiled_s: list[float] = field(default_factory=list)
    dropped: int = 0

    def calibrate(self, budget: Budget) -> int:
        """Settles clocks and caches; returns the ABBA groups in a quad. Raises NotMeasuredError for calls too long."""
        begun, calls = time.perf_counter(), 0
        while calls < _CALIBRATION_CALLS or time.perf_counter() - begun < _SETTLE_S:
            self.clock.time(self.arms, self.restore)
            calls += 1
        begun = time.perf_counter()
        times = self.clock.time(self.arms * _CALIBRATION_CALLS, self.restore)
        wall = (time.perf_counter() - begun) / _CALIBRATION_CALLS
        group = 2 * (median(times[::2]) + median(times[1::2]))
        groups = max(1, min(int(QUAD_S / group), _MOST_CALLS))
        first_look = LOOKS[0][0] * 2 * wall * groups
        if first_look > _PATIENCE * budget.seconds:
            raise NotMeasuredError(
                f"{LOOKS[0][0]} quads would take {first_look:.0f} s, the budget is {budget.seconds:g} s; raise "
                f"--fusion-bench-max-time to {math.ceil(first_look / _PATIENCE)} or make the program smaller"
            )
        return groups

    def run(self, groups: int, budget: Budget, limit: float | None) -> float:
        """Makes quads up to the look that decides; returns that look's share of alpha."""
        spent = 0.0
        for quads, alpha in LOOKS:
            while len(self.log_ratios) < quads:
                self._quad(groups)
                spent = time.perf_counter() - self.begun
                if spent > budget.seconds and len(self.log_ratios) >= LOOKS[0][0] and quads > LOOKS[0][0]:
                    return alpha
                if spent > 2 * _PATIENCE * budget.seconds:
                    raise NotMeasuredError(
                        f"{len(self.log_ratios)} quads in {spent:.0f} s ({self.dropped} dropped: device throttled)"
                    )
            if quads < budget.least_quads:
                continue
            if limit is None or spent > budget.seconds or self._decided(alpha, limit):
                break
        return alpha

    def _decided(self, alpha: float, limit: float) -> bool:
        bound = threshold(limit, median(self.eager_s))
        return decide(interval(self.log_ratios, alpha), bound) is not Outcome.NOT_MEASURED

    def _quad(self, groups: int) -> None:
        eager, compiled = self.arms
        swapped = [(len(self.log_ratios) + group) % 2 == 1 for group in range(groups)]
        orders = [
            (compiled, eager, eager, compiled) if s else (eager, compiled, compiled, eager) for s in swapped
        ]
        was_throttled = self.throttle.is_throttled()
        times = self.clock.time([call for order in orders for call in order], self.restore)
        if was_throttled or self.throttle.is_throttled():
            self.dropped += 1
            return
        logs: list[float] = []
        arms: tuple[list[float], list[float]] = ([], [])
        for group, swap in enumerate(swapped):
            first, second, third, fourth = times[4 * group : 4 * group + 4]
            log = 0.5 * (math.log(second / first) + math.log(third / fourth))
            logs.append(-log if swap else log)
            arms[swap].extend((first, fourth))
            arms[not swap].extend((second, third))
        self.log_ratios.append(median(logs))
        self.eager_s.append(median(arms[0]))
        self.compiled_s.append(median(arms[1]))

    def host_seconds(self) -> tuple[float, float]:
        """Returns the median host time of a call of each arm."""
        times = host_seconds(self.arms * _HOST_CALLS, self.restore)
        return median(times[::2]), median(times[1::2])


def _clock(arms: tuple[Call, Call], restore: Call, device: torch.device, budget: Budget) -> Clock:
    """CUDA events, or CPU time where one thread works and never waits, or wall time."""
    if device.type == "cuda":
        return CudaClock(budget.cache)
    if device.type != "cpu":
        raise NotMeasuredError(f"time is measured on cpu and cuda, not on {device.type}")
    return wall_clock() if torch.get_num_threads() > 1 or _waits(arms, restore) else cpu_clock()


def _waits(arms: tuple[Call, Call], restore: Call) -> bool:
    """True where a call gives up the CPU by itself (sleeps, waits for other threads), which CPU time does not see."""
    try:
        from resource import RUSAGE_THREAD, getrusage
    except ImportError:
        return True
    for arm in arms:
        waits = []
        for _ in range(_CALIBRATION_CALLS):
            restore()
            before = getrusage(RUSAGE_THREAD).ru_nvcsw
            arm()
            waits.append(getrusage(RUSAGE_THREAD).ru_nvcsw - before)
        if median([float(w) for w in waits]) > 0:
            return True
    return False


class Runner:
    """One arm of a program as a function of no argument: the call, and backward where an output requires grad.

    The cotangents are made at the first call and kept, so that making them is not timed.
    """

    def __init__(self, program: Program, call: Callable[..., Any], spec: Spec) -> None:
        self._program = program
        self._call = call
        self._spec = spec
        self._has_backward = spec.train or (spec.train is None and program.drive is None)
        self._cotangents: list[torch.Tensor] | None = None

    def __call__(self) -> None:
        """Runs once, and drops the result."""
        result = self._program.run(self._call)
        if not self._has_backward:
            return
        roots = roots_of(result)
        if self._cotangents is None:
            self._cotangents = cotangents_of(roots, self._spec.seed)
        if roots:
            torch.autograd.backward(roots, self._cotangents)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Runs the block with so many intra-op threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
