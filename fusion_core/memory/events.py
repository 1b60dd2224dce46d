"""What torch's allocators report while a profiler runs, in order, with the operators around each event."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.profiler import profile


@dataclass(frozen=True, slots=True)
class AllocatorEvent:
    """Memory taken (`nbytes` > 0) or given back at an address; `inside` names the operators around it, outermost first."""

    time_ns: int
    nbytes: int
    address: int
    device: str
    inside: tuple[str, ...]


@dataclass(slots=True)
class Recording:
    """Filled when the block of `recorded` ends."""

    events: tuple[AllocatorEvent, ...] = field(default=())


class ProfilerUnavailableError(RuntimeError):
    """A profiler is active already, of which torch has room for one; or this torch was built without."""


@contextmanager
def recorded() -> Iterator[Recording]:
    """Records the allocator's events of the block: those of all devices, from this thread and from torch's own.

    The profiler knows the size of what is given back only if it saw it taken, so tensors made while none ran are missed.
    Raises ProfilerUnavailableError.
    """
    if not torch.profiler.kineto_available():
        raise ProfilerUnavailableError("this torch was built without its profiler (kineto)")
    if torch._C._autograd._profiler_enabled():
        raise ProfilerUnavailableError("a torch profiler is active already")
    recording = Recording()
    profiler = profile(use_kineto=True, profile_memory=True)
    with _muted():
        profiler.__enter__()  # type: ignore[no-untyped-call]
    try:
        yield recording
    finally:
        with _muted():
            profiler.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    roots = profiler.kineto_results.experimental_event_tree() if profiler.kineto_results else []
    recording.events = tuple(sorted(_events(roots), key=lambda event: event.time_ns))


@contextmanager
def _muted() -> Iterator[None]:
    """Keeps what the profiler's C++ side logs as it starts and stops off the terminal: it has no switch for that."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _events(roots: list[Any]) -> Iterator[AllocatorEvent]:
    waiting: list[tuple[Any, tuple[str, ...]]] = [(root, ()) for root in reversed(roots)]
    while waiting:
        node, inside = waiting.pop()
        taken = getattr(node.extra_fields, "alloc_size", None)
        if taken is not None:
            device = str(node.extra_fields.device.type)
            yield AllocatorEvent(node.start_time_ns, taken, node.extra_fields.ptr, device, inside)
        inner = (*inside, node.name)
        waiting += [(child, inner) for child in reversed(node.children)]
