"""One plan recorded as a CUDA graph on given tensors, over several streams."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import cycle
from threading import Lock
from typing import Any

import torch

from fusion_core.replay.concurrency import Group, Grouping
from fusion_core.replay.lending import Loan
from fusion_core.runtime.plan import Plan

STREAMS = 8
URGENT_STREAMS = 4


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Of an output: its dtype, size, strides and offset in elements, from the start of what it shows."""

    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def of(self, storage: torch.UntypedStorage, first: int = 0) -> torch.Tensor:
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, first + self.offset, self.size, self.stride)


@dataclass(frozen=True, slots=True)
class Source:
    """Where an output comes from: `plain` is the value itself, `argument` and `view` name an argument by position.

    What lies in the pool is copied out, since the next replay overwrites it: `clone` is a tensor that is all of its
    storage, `copy` names a storage by position that several outputs may show. `lent` is a tensor that backward alone gets.
    """

    kind: str
    value: Any
    geometry: _Geometry | None = None

    def make(self, arguments: list[Any], copies: list[torch.UntypedStorage]) -> Any:
        """Returns the output of one call."""
        if self.kind == "plain":
            return self.value
        if self.kind == "argument":
            return arguments[self.value]
        if self.kind == "clone":
            return self.value.clone()
        if self.kind == "lent":
            return self.value.detach()
        assert self.geometry is not None
        if self.kind == "copy":
            return self.geometry.of(copies[self.value])
        base: torch.Tensor = arguments[self.value]
        item = torch.empty(0, dtype=self.geometry.dtype).element_size()
        return self.geometry.of(
            base.untyped_storage(), int(base.storage_offset()) * base.element_size() // item
        )


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded call, what it returns, and the storages of the pool that this shows.

    Outputs that share a storage share the copy of it. A replay overwrites what is on `loan`.
    """

    graph: torch.cuda.CUDAGraph
    recorder: Recorder  # which owns the pool
    outputs: tuple[Source, ...]
    storages: list[torch.UntypedStorage]
    loan: Loan

    def replay(self, arguments: list[Any]) -> tuple[Any, ...]:
        """Does the recorded work again, on the current stream; `arguments` are those of this call."""
        self.graph.replay()
        copies = [_cloned(storage) for storage in self.storages]
        return tuple(source.make(arguments, copies) for source in self.outputs)


def _cloned(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return whole.clone().untyped_storage()


class Recorder:
    """Records plans on one device for one stream of the caller; recordings share a memory pool.

    They may, because they are replayed on one stream, and none of them leaves a value in the pool that a later call
    needs: what is returned is copied out. One that lends memory to backward has a pool of its own. The pool lives as long
    as recordings in it, so a recorder must not outlive them.
    """

    def __init__(self, device: torch.device) -> None:
        self._main = _stream(device)
        self._side = [_stream(device) for _ in range(STREAMS)]
        self._urgent = [_stream(device, priority=-1) for _ in range(URGENT_STREAMS)]
        self._pool = torch.cuda.graph_pool_handle()
        self.lock = Lock()

    def record(self, plan: Plan, arguments: list[Any], lent_from: int | None = None) -> Recording:
        """Records a call of `plan`, which has been called on these tensors before, so that its kernels are compiled.

        Outputs from `lent_from` on go to backward alone, which lets go of them. Nothing runs, so nothing is written. Raises
        what the recording raises. Recordings made before are not usable then.
        """
        graph = torch.cuda.CUDAGraph()
        pool = self._pool if lent_from is None else torch.cuda.graph_pool_handle()
        with torch.cuda.stream(self._main):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                values = self._run(plan, list(arguments))
            except BaseException:
                self._abandon(graph, pool)
                raise
            graph.capture_end()
        sources, copied, lent = _sources(values, arguments, lent_from)
        return Recording(graph, self, sources, copied, Loan(lent))

    def _run(self, plan: Plan, arguments: list[Any]) -> tuple[Any, ...]:
        slots = plan.filled(arguments)
        grouping = Grouping()
        for step in plan.steps:
            group = grouping.add(step, slots)
            if group is not None:
                self._run_group(group, slots)
        group = grouping.rest()
        if group is not None:
            self._run_group(group, slots)
        return plan.returned(slots)

    def _abandon(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """Ends a recording that cannot be completed.

        Where CUDA reports once more that it is invalid, torch (seen in 2.11) leaves the random generator and the allocator
        as if the recording went on. The generator gets an equal state that no recording knows.
        """
        try:
            graph.capture_end()
        except RuntimeError:
            index = self._main.device_index
            torch._C._cuda_endAllocateToPool(index, pool)  # noqa: SLF001 - torch has no other way
            generator = torch.cuda.default_generators[index]
            generator.graphsafe_set_state(generator.clone_state())

    def _run_group(self, group: Group, slots: list[Any]) -> None:
        """Forks over the streams and joins again; a single step stays where it is.

        Chains come first, and before the blocks of other kernels: small as they are, they would else end after all others.
        """
        if len(group.steps) > 1:
            placed = [
                *zip(cycle(self._urgent), group.chains(), strict=False),
                *zip(cycle(self._side), group.largest_first(), strict=False),
            ]
            used = dict.fromkeys(stream for stream, _ in placed)
            for stream in used:
                stream.wait_stream(self._main)
            for stream, step in placed:
                with torch.cuda.stream(stream):
                    step.run(slots)
            for stream in used:
                self._main.wait_stream(stream)
        else:
            for step in group.steps:
                step.run(slots)
        for free in group.frees:
            free.run(slots)


def _stream(device: torch.device, priority: int = 0) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]


def rebased(values: tuple[Any, ...], given: list[Any], arguments: list[Any]) -> tuple[Any, ...]:
    """Returns the outputs of a call on `given` as outputs of a call on `arguments`: those that show one show the other."""
    sources, *_ = _sources(values, given)
    shown = [source.kind in ("argument", "view") for source in sources]
    return tuple(
        source.make(arguments, []) if is_shown else value
        for source, is_shown, value in zip(sources, shown, values, strict=True)
    )


def _sources(
    values: tuple[Any, ...], arguments: list[Any], lent_from: int | None = None
) -> tuple[tuple[Source, ...], list[torch.UntypedStorage], list[torch.UntypedStorage]]:
    """Returns for each output where it comes from, the storages of the pool that have to be copied out, and those on loan.

    Outputs from `lent_from` on go to backward alone.
    """
    owners = {a.untyped_storage()._cdata: i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor)}
    shown = Counter(v.untyped_storage()._cdata for v in values if isinstance(v, torch.Tensor))
    seen = {v.untyped_storage()._cdata for v in values[:lent_from] if isinstance(v, torch.Tensor)}
    kept: dict[int, torch.UntypedStorage] = {}
    lent: dict[int, torch.UntypedStorage] = {}
    sources: list[Source] = []
    for position, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            sources.append(Source("plain", value))
            continue
        same = next((i for i, a in enumerate(arguments) if a is value), None)
        storage = value.untyped_storage()
        owner = owners.get(storage._cdata)
        if same is not None:
            sources.append(Source("argument", same))
        elif owner is not None:
            offset = int(value.storage_offset()) - _elements_before(arguments[owner], value)
            sources.append(
                Source("view", owner, _Geometry(value.dtype, value.size(), value.stride(), offset))
            )
        elif lent_from is not None and position >= lent_from and storage._cdata not in seen:
            lent.setdefault(storage._cdata, storage)
            sources.append(Source("lent", value))
        elif shown[storage._cdata] == 1 and _fills_its_storage(value):
            sources.append(Source("clone", value))  # one call does what takes five for a storage
        else:
            kept.setdefault(storage._cdata, storage)
            place = list(kept).index(storage._cdata)
            geometry = _Geometry(value.dtype, value.size(), value.stride(), int(value.storage_offset()))
            sources.append(Source("copy", place, geometry))
    return tuple(sources), list(kept.values()), list(lent.values())


def is_dense(tensor: torch.Tensor) -> bool:
    """True where each element between the first and the last belongs to the tensor, once."""
    return tensor.layout is torch.strided and torch.ops.aten.is_non_overlapping_and_dense(tensor)


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    whole = not tensor.storage_offset() and tensor.nbytes == tensor.untyped_storage().nbytes()
    return whole and is_dense(tensor)


def _elements_before(argument: torch.Tensor, value: torch.Tensor) -> int:
    """Where an argument begins in its storage, in elements of `value`."""
    return int(argument.storage_offset()) * argument.element_size() // value.element_size()
