"""Clocks: what a call costs on the CPU, on the wall, or on a CUDA stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from pytest_fusealias.decision import median
from pytest_fusealias.measurement import NotMeasuredError

Call = Callable[[], Any]
_LARGEST_CACHE_BYTES = 256 * 2**20


class Clock(Protocol):
    """Times calls. `name` is that of `TimeComparison.clock`."""

    name: str

    def time(self, calls: Sequence[Call], before: Call) -> list[float]:
        """Runs `before`, untimed, and a call, for each call; returns the seconds of each."""


class HostClock:
    """Reads a clock of the host around each call; what reading costs is taken off."""

    def __init__(self, name: str, nanoseconds: Callable[[], int]) -> None:
        self.name = name
        self._now = nanoseconds
        self._overhead_ns = median([float(-nanoseconds() + nanoseconds()) for _ in range(101)])

    def time(self, calls: Sequence[Call], before: Call) -> list[float]:
        """Runs each call and drops its result; raises NotMeasuredError where the clock goes backwards."""
        now, times = self._now, []
        for call in calls:
            before()
            start = now()
            call()
            times.append(now() - start)
        if min(times) < 0:
            raise NotMeasuredError(f"the {self.name} clock went backwards by {-min(times)} ns")
        return [max(t - self._overhead_ns, 1.0) * 1e-9 for t in times]


def cpu_clock() -> HostClock:
    """CPU time of the whole process: other processes that take turns on the CPU do not count."""
    return HostClock("cpu", time.process_time_ns)


def wall_clock() -> HostClock:
    """Elapsed time, monotonic."""
    return HostClock("wall", time.perf_counter_ns)


class CudaClock:
    """Records events around each call on the current stream, and waits once for all of them."""

    name = "cuda"

    def __init__(self, cache: str) -> None:
        self._flush: torch.Tensor | None = None
        if cache == "cold":
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            nbytes = min(2 * int(properties.L2_cache_size), _LARGEST_CACHE_BYTES)
            self._flush = torch.empty(nbytes, dtype=torch.int8, device="cuda")

    def time(self, calls: Sequence[Call], before: Call) -> list[float]:
        """Runs each call and drops its result; with a cold cache the L2 cache is overwritten before each."""
        events = [(_event(), _event()) for _ in calls]
        for call, (start, end) in zip(calls, events, strict=True):
            before()
            if self._flush is not None:
                self._flush.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [max(start.elapsed_time(end) * 1e-3, 1e-9) for start, end in events]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def host_seconds(calls: Sequence[Call], before: Call) -> list[float]:
    """Returns what each call costs on the host before it returns, the device idle at its start."""
    times = []
    for call in calls:
        before()
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) * 1e-9)
    torch.cuda.synchronize()
    return times
