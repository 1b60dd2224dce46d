"""What the allocator shows while each step of a plan runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch.autograd.profiler import record_function

from fusion_core.memory.estimate import Size
from fusion_core.memory.events import AllocatorEvent, recorded

# By run of a plan and position of its step: what the step left taken, and the most above its start.
Seen = dict[tuple[int, int], tuple[Size, Size]]
_LABEL = "fusion_core step"


class Observer(Protocol):
    """Watches steps on one kind of device."""

    def call(self) -> AbstractContextManager[Any]:
        """The context of a whole call."""

    def step(self, run: int, position: int) -> AbstractContextManager[Any]:
        """The context of one step."""

    def seen(self) -> Seen:
        """What the last call showed."""


def observer_for(device: str) -> Observer | None:
    """Returns the observer of a device type; None where torch gives no such numbers."""
    if device == "cuda":
        return CudaObserver() if torch.cuda.memory.get_allocator_backend() == "native" else None
    return CpuObserver() if device == "cpu" else None


class CpuObserver:
    """Reads the profiler's allocator events; the CPU allocator rounds nothing."""

    def __init__(self) -> None:
        self._events: tuple[AllocatorEvent, ...] = ()

    @contextmanager
    def call(self) -> Iterator[None]:
        with recorded() as recording:
            yield
        self._events = recording.events

    def step(self, run: int, position: int) -> AbstractContextManager[Any]:
        return record_function(f"{_LABEL} {run} {position}")

    def seen(self) -> Seen:
        by_step: dict[tuple[int, int], list[int]] = {}
        for event in self._events:
            label = next((name for name in event.inside if name.startswith(_LABEL)), None)
            if label is not None and event.device == "cpu":
                run, position = label.removeprefix(_LABEL).split()
                by_step.setdefault((int(run), int(position)), []).append(event.nbytes)
        return {key: (Size(sum(d), sum(d)), _highest(d)) for key, d in by_step.items()}


def _highest(deltas: Iterable[int]) -> Size:
    live = most = 0
    for delta in deltas:
        live += delta
        most = max(most, live)
    return Size(most, most)


class CudaObserver:
    """Reads the caching allocator's statistics; taking memory is synchronous with the host, so no wait is needed."""

    def __init__(self) -> None:
        self._seen: Seen = {}

    def call(self) -> AbstractContextManager[Any]:
        self._seen = {}
        return nullcontext()

    @contextmanager
    def step(self, run: int, position: int) -> Iterator[None]:
        torch.cuda.reset_peak_memory_stats()
        before = _statistics("current")
        yield
        self._seen[run, position] = (_statistics("current") - before, _statistics("peak") - before)

    def seen(self) -> Seen:
        return self._seen


def _statistics(which: str) -> Size:
    numbers = torch.cuda.memory_stats()
    return Size(
        numbers.get(f"requested_bytes.all.{which}", 0), numbers.get(f"allocated_bytes.all.{which}", 0)
    )
