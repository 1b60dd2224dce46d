"""Measured calls: what the allocator shows of one call, on CPU and on CUDA."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.autograd.profiler import record_function

from fusion_core.collection import without_collection
from fusion_core.memory.events import AllocatorEvent, ProfilerUnavailableError, recorded
from pytest_fusealias.measurement import NotMeasuredError

LARGEST_NUMBER_BYTES = 16  # complex128
_DYNAMO = "dynamo"  # the label of a compilation
_DROP = "fusealias: the result is dropped"


@dataclass(frozen=True, slots=True)
class Seen:
    """One call, in bytes above its start: the most, what is held with its result, and what is held without it.

    `events` are those up to the end of the call; `peak_allocated_bytes` is the peak as the allocator rounds it.
    """

    peak_bytes: int
    held_bytes: int
    left_bytes: int
    events: tuple[AllocatorEvent, ...] = ()
    peak_allocated_bytes: int = 0

    @property
    def numbers(self) -> tuple[int, int, int]:
        """What two calls must agree on."""
        return self.peak_bytes, self.held_bytes, self.left_bytes


class Meter(Protocol):
    """Measures calls on one kind of device. `unit` says what its bytes are."""

    unit: str

    def call(self, run: Callable[[], Any]) -> Seen:
        """Runs, drops the result, and returns what was seen."""

    def events(self, run: Callable[[], Any]) -> tuple[AllocatorEvent, ...]:
        """Runs, and returns the allocator's events up to the end of the call."""


def meter_for(device: str) -> Meter:
    """Returns the meter of a device type; raises NotMeasuredError where memory cannot be measured."""
    if device == "cpu":
        return CpuMeter()
    if device != "cuda":
        raise NotMeasuredError(f"memory is measured on cpu and cuda, not on {device}")
    backend = torch.cuda.memory.get_allocator_backend()
    if backend != "native":
        raise NotMeasuredError(f"the CUDA allocator {backend!r} keeps no statistics of requested bytes")
    return CudaMeter()


class CpuMeter:
    """Reads the profiler's allocator events: exact, for tensors that were themselves made while a profiler ran."""

    unit = "bytes of the CPU allocator"

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def call(self, run: Callable[[], Any]) -> Seen:
        """Runs, drops the result, and returns what was seen; raises NotMeasuredError where no profiler can run."""
        gc.collect()
        with profiled() as events:
            _run_and_drop(run)
        mine = [e for e in events if e.device == "cpu" and not self._is_traced_number(e)]
        during = tuple(e for e in mine if _DROP not in e.inside)
        live = most = 0
        for event in during:
            live += event.nbytes
            most = max(most, live)
        return Seen(most, live, sum(e.nbytes for e in mine), during, most)

    def events(self, run: Callable[[], Any]) -> tuple[AllocatorEvent, ...]:
        """Runs, and returns the allocator's events up to the end of the call."""
        return self.call(run).events

    def _is_traced_number(self, event: AllocatorEvent) -> bool:
        """True for Python numbers that Dynamo wraps while it traces, and keeps: no backend is to blame for them."""
        if event.nbytes < 0:
            known = event.address in self._numbers
            self._numbers.discard(event.address)
            return known
        by_operator = any("::" in name for name in event.inside)
        number = event.nbytes <= LARGEST_NUMBER_BYTES and _DYNAMO in event.inside and not by_operator
        if number:
            self._numbers.add(event.address)
        return number


class CudaMeter:
    """Reads the caching allocator's statistics of requested bytes, which neither rounding nor its cache changes."""

    unit = "bytes requested from the CUDA allocator"

    def call(self, run: Callable[[], Any]) -> Seen:
        """Runs, drops the result, and returns what was seen."""
        gc.collect()
        torch.cuda.synchronize()
        start, allocated = _requested("current"), torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with without_collection():
            result = run()
        torch.cuda.synchronize()
        peak = _requested("peak") - start
        peak_allocated = torch.cuda.max_memory_allocated() - allocated
        gc.collect()
        held = _requested("current") - start
        del result
        gc.collect()
        return Seen(peak, held, _requested("current") - start, (), peak_allocated)

    def events(self, run: Callable[[], Any]) -> tuple[AllocatorEvent, ...]:
        """Runs, and returns the caching allocator's events up to the end of the call, in bytes as it rounds them."""
        gc.collect()
        with profiled() as events:
            _run_and_drop(run)
        return tuple(e for e in events if e.device == "cuda" and _DROP not in e.inside)


def _run_and_drop(run: Callable[[], Any]) -> None:
    with without_collection():
        result = run()
    gc.collect()
    with record_function(_DROP):
        del result
        gc.collect()


@contextmanager
def profiled() -> Iterator[list[AllocatorEvent]]:
    """Yields a list that holds, after the block, the allocator's events in it."""
    events: list[AllocatorEvent] = []
    try:
        with recorded() as recording:
            yield events
    except ProfilerUnavailableError as error:
        raise NotMeasuredError(str(error)) from None
    events += recording.events


def _requested(which: str) -> int:
    return int(torch.cuda.memory_stats().get(f"requested_bytes.all.{which}", 0))
