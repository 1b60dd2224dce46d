"""Which steps of a plan may run at the same time, seen on the tensors of one call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from fusion_core.runtime.packed import PackedLaunch
from fusion_core.runtime.plan import AnyStep
from fusion_core.runtime.steps import Free, Launch

# By storage: addresses of the first byte, and of the first one behind.
Extents = dict[int, list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Group:
    """Steps that are independent of each other, with the bytes that each of them touches; frees come after all of them."""

    steps: tuple[AnyStep, ...]
    touched_bytes: tuple[int, ...]
    frees: tuple[Free, ...]

    def chains(self) -> list[AnyStep]:
        """Returns the steps that are several small kernels, each of which waits for the one before."""
        return [step for step in self.steps if isinstance(step, PackedLaunch)]

    def largest_first(self) -> list[AnyStep]:
        """Returns the other steps in the order in which they are best begun."""
        order = sorted(range(len(self.steps)), key=lambda i: -self.touched_bytes[i])
        return [self.steps[i] for i in order if not isinstance(self.steps[i], PackedLaunch)]


@dataclass
class _Open:
    """A group under construction."""

    steps: list[AnyStep] = field(default_factory=list)
    touched_bytes: list[int] = field(default_factory=list)
    frees: list[Free] = field(default_factory=list)
    read: Extents = field(default_factory=dict)
    written: Extents = field(default_factory=dict)
    results: set[int] = field(default_factory=set)

    def closed(self) -> Group:
        return Group(tuple(self.steps), tuple(self.touched_bytes), tuple(self.frees))


class Grouping:
    """Puts steps into groups as they come, before they run: a step joins unless it needs or disturbs another of the group.

    Kernels that reduce stay alone, since nvFuser's reductions share semaphores in memory. Eager steps stay alone too: what
    memory they write is not told by their slots.
    """

    def __init__(self) -> None:
        self._open = _Open()

    def add(self, step: AnyStep, slots: list[Any]) -> Group | None:
        """Takes a step; returns the group that has to run before it, if one has."""
        if isinstance(step, Free):
            self._open.frees.append(step)
            return None
        done = None
        if self._open.steps and not self._joins(step, slots):
            done = self.rest()
        self._take(step, slots)
        return done

    def rest(self) -> Group | None:
        """Returns what has not been given out yet."""
        group, self._open = self._open.closed(), _Open()
        return group if group.steps or group.frees else None

    def _joins(self, step: AnyStep, slots: list[Any]) -> bool:
        opened = self._open
        if not (_is_free_to_move(step) and all(map(_is_free_to_move, opened.steps))):
            return False
        if not opened.results.isdisjoint(_reads(step)):
            return False
        if any(slots[i] is None for i in _reads(step)):
            return False  # it was freed in this group or is not there yet
        read, written = _extents(_reads(step), slots), _extents(_writes(step), slots)
        return not (
            _overlap(written, opened.read)
            or _overlap(written, opened.written)
            or _overlap(read, opened.written)
        )

    def _take(self, step: AnyStep, slots: list[Any]) -> None:
        opened = self._open
        opened.steps.append(step)
        if not _is_free_to_move(step):
            opened.touched_bytes.append(0)
            return
        read, written = _extents(_reads(step), slots), _extents(_writes(step), slots)
        opened.touched_bytes.append(sum(stop - start for of in read.values() for start, stop in of))
        for mine, all_of_them in ((read, opened.read), (written, opened.written)):
            for storage, extents in mine.items():
                all_of_them.setdefault(storage, []).extend(extents)
        opened.results.update(_results(step))


def _is_free_to_move(step: AnyStep) -> bool:
    return isinstance(step, (Launch, PackedLaunch)) and not step.reduces


def _reads(step: AnyStep) -> Iterator[int]:
    if isinstance(step, Launch):
        yield from step.inputs.slots
    elif isinstance(step, PackedLaunch):
        yield from (index for inputs in step.inputs for index in inputs.slots)


def _writes(step: AnyStep) -> Iterator[int]:
    if isinstance(step, Launch):
        yield from step.written
    elif isinstance(step, PackedLaunch):
        yield from (index for target in step.targets for index in step.inputs[target].slots)


def _results(step: AnyStep) -> Iterator[int]:
    """Slots that a step fills."""
    if isinstance(step, Launch):
        yield from (output.slot for output in step.outputs)
        yield from (value for value, _ in step.reused)
    if isinstance(step, (Launch, PackedLaunch)):
        yield from (value for value, _ in step.forwarded)


def _extents(indices: Iterator[int], slots: list[Any]) -> Extents:
    found: Extents = {}
    for index in indices:
        tensor = slots[index]
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            reach = 1 + sum((size - 1) * stride for size, stride in steps)
            start = tensor.data_ptr()
            storage = tensor.untyped_storage().data_ptr()
            found.setdefault(storage, []).append((start, start + reach * tensor.element_size()))
    return found


def _overlap(some: Extents, others: Extents) -> bool:
    shared = some.keys() & others.keys()
    return any(a[0] < b[1] and b[0] < a[1] for key in shared for a in some[key] for b in others[key])
