"""Which bytes do two tensors share? And how do the arguments of one call overlap, the key under which plans are kept?

Exact, from address, shape and byte strides; memory is never read. Torch's own predicates are too coarse here:
`_is_alias_of` compares storages, so it misses memory shared through numpy or dlpack and calls disjoint columns aliases;
`_base` is absent after `detach`. `numpy.shares_memory` on a description of the memory decides exactly, also for device
addresses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fusion_core.errors import InputError

# Candidate solutions that numpy may look at before it gives up; beyond it two tensors count as overlapping.
MAX_WORK = 100_000


@dataclass(frozen=True, slots=True)
class Geometry:
    """The bytes of one tensor: `[start, stop)` is its extent, `dims` are (size, byte stride) in canonical form."""

    device: str
    start: int
    stop: int
    dims: tuple[tuple[int, int], ...]


def address(tensor: torch.Tensor) -> int:
    """Returns where the tensor's elements begin, or 0 where it owns no strided memory (sparse, meta, wrapper)."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return 0
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def addresses_of(arguments: Sequence[Any]) -> list[Any]:
    """Returns where the tensors begin, and other arguments as they are."""
    try:
        return [a.data_ptr() for a in arguments]
    except (AttributeError, RuntimeError):  # sizes among them, or tensors without memory of their own
        return [address(a) if isinstance(a, torch.Tensor) else a for a in arguments]


def refuse_freed(arguments: Sequence[Any], written: Collection[int]) -> None:
    """Raises InputError where the memory of a tensor that is written was given back, which a kernel would not see."""
    for position, argument in enumerate(arguments):
        if position in written and isinstance(argument, torch.Tensor) and _is_freed(argument):
            what = f"{argument.dtype} {tuple(argument.shape)} on {argument.device}"
            raise InputError(
                f"input {position} of the compiled graph, {what}, is written, but its storage has 0 bytes: its memory was "
                "freed. Give it memory again (`untyped_storage().resize_`) before the call. Nothing was written"
            )


def _is_freed(tensor: torch.Tensor) -> bool:
    """True where elements should lie and no memory is; a view's address is its offset then."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return False
    nowhere = 0, tensor.storage_offset() * tensor.element_size()
    return address(tensor) in nowhere and not tensor.untyped_storage().nbytes()


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """Returns a uint8 tensor over the whole storage, sharing its memory."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def geometry(tensor: torch.Tensor) -> Geometry | None:
    """Returns the tensor's bytes, or None where it has no strided memory (sparse, fake, empty)."""
    start = address(tensor)
    if start == 0 or tensor.numel() == 0:
        return None
    item = tensor.element_size()
    dims = _canonical([*zip(tensor.shape, (s * item for s in tensor.stride()), strict=True), (item, 1)])
    stop = start + sum((size - 1) * stride for size, stride in dims) + 1
    return Geometry(str(tensor.device), start, stop, dims)


def _canonical(dims: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Drops dims that add no bytes and merges those that walk on where the next inner one ends."""
    merged: list[tuple[int, int]] = []
    for size, stride in sorted((d for d in dims if d[0] > 1 and d[1] > 0), key=lambda d: d[1]):
        if merged and stride == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, stride))
    return tuple(reversed(merged))


class _Description:
    """The array interface of a geometry: what numpy needs to reason about memory without touching it."""

    def __init__(self, geom: Geometry) -> None:
        self.__array_interface__ = {
            "data": (geom.start, True),
            "shape": tuple(size for size, _ in geom.dims),
            "strides": tuple(stride for _, stride in geom.dims),
            "typestr": "|V1",
            "version": 3,
        }


def overlap(a: Geometry, b: Geometry) -> str:
    """Returns `none`, `partial` or `full` (the same bytes)."""
    if a.device != b.device or a.start >= b.stop or b.start >= a.stop:
        return "none"
    if a.start == b.start and a.dims == b.dims:
        return "full"
    try:
        shares = np.shares_memory(np.asarray(_Description(a)), np.asarray(_Description(b)), max_work=MAX_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        shares = True
    return "partial" if shares else "none"


def overlapping_pairs(geometries: Mapping[Any, Geometry]) -> Iterator[tuple[Any, Any, str]]:
    """Yields every pair of keys whose bytes overlap, the one with the lower address first, and how.

    Sweeps over sorted extents, so that disjoint tensors cost n log n and only near ones are compared.
    """
    active: list[tuple[Any, Geometry]] = []
    for key, geom in sorted(geometries.items(), key=lambda entry: (entry[1].device, entry[1].start)):
        active = [e for e in active if e[1].device == geom.device and e[1].stop > geom.start]
        for other, other_geom in active:
            kind = overlap(other_geom, geom)
            if kind != "none":
                yield other, key, kind
        active.append((key, geom))


@dataclass(frozen=True, slots=True)
class Pattern:
    """How written arguments overlap others: `places` are the geometry of all that do.

    `foreign` tells that two of them belong to different storages (numpy, dlpack), where torch's capture sees no alias.
    """

    places: tuple[Any, ...] = ()
    foreign: bool = False


def overlap_pattern(arguments: tuple[Any, ...], written: frozenset[int]) -> Pattern:
    """Returns the pattern of a call; an empty one where no written argument shares a byte with another."""
    tensors = {i: a for i, a in enumerate(arguments) if isinstance(a, torch.Tensor)}
    known = {i: geom for i, a in tensors.items() if (geom := geometry(a)) is not None}
    pairs = [(i, j) for i, j, _ in overlapping_pairs(known) if i in written or j in written]
    if not pairs:
        return Pattern()
    base = {i: tensors[i].untyped_storage().data_ptr() for pair in pairs for i in pair}
    groups = {address: number for number, address in enumerate(dict.fromkeys(base.values()))}
    places = tuple(_place(i, groups[base[i]], tensors[i]) for i in sorted(base))
    return Pattern(places, foreign=any(base[i] != base[j] for i, j in pairs))


# Memory lies above it on 64-bit systems; where it does not, more calls are looked at closely.
_LOWEST_ADDRESS = 1 << 32
_MOST_COMPARED = 256  # pairs of extents, which cost about as much as looking at everything anew


class Apart:
    """A call in which no written argument overlaps another. Tells at little cost that a later one is such a call too.

    `addresses` are those of `addresses_of`. Later calls have the same sizes and strides where they have the same numbers.
    """

    def __init__(self, arguments: Sequence[Any], addresses: Sequence[Any], written: frozenset[int]) -> None:
        known = (geometry(a) if isinstance(a, torch.Tensor) else None for a in arguments)
        self._reach = [0 if geom is None else geom.stop - geom.start for geom in known]
        self._written = written
        self._addresses = addresses

    def is_still(self, addresses: Sequence[Any]) -> bool:
        """True if arguments at these addresses lie apart; False where that takes a closer look."""
        moved = [i for i, (now, old) in enumerate(zip(addresses, self._addresses, strict=True)) if now != old]
        if any(not self._reach[i] or addresses[i] < _LOWEST_ADDRESS for i in moved):
            return False  # a number, or memory that is not there: views of that begin at their offset
        others = {i: range(len(addresses)) if i in self._written else self._written for i in moved}
        if sum(map(len, others.values())) > _MOST_COMPARED:
            return False
        if any(self._touch(i, j, addresses) for i, near in others.items() for j in near if i != j):
            return False
        self._addresses = addresses
        return True

    def _touch(self, i: int, j: int, addresses: Sequence[Any]) -> bool:
        reach = self._reach
        return bool(reach[j]) and -reach[i] < addresses[i] - addresses[j] < reach[j]


def _place(index: int, group: int, tensor: torch.Tensor) -> tuple[Any, ...]:
    storage = tensor.untyped_storage()
    offset = tensor.data_ptr() - storage.data_ptr()
    return (index, group, offset, storage.nbytes(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
