"""Which bytes do two tensors share? Exact, from address, shape and byte strides; memory is never read.

Torch's own predicates are too coarse here: `_is_alias_of` compares storages, so it misses memory shared through numpy
or dlpack and calls disjoint columns aliases; `_base` is absent after `detach`. `numpy.shares_memory` on a description of
the memory decides exactly, also for device addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pytest_fusealias.model import Relation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Candidate solutions that numpy may look at before it gives up; beyond it two tensors count as overlapping.
MAX_WORK = 100_000


@dataclass(frozen=True, slots=True)
class Geometry:
    """The bytes of one tensor: `[start, stop)` is its extent, `dims` are (size, byte stride) in canonical form."""

    device: str
    start: int
    stop: int
    dims: tuple[tuple[int, int], ...]


def geometry(tensor: torch.Tensor) -> Geometry | None:
    """Returns the tensor's bytes, or None where it has no strided memory (sparse, fake, empty)."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.numel() == 0:
        return None
    try:
        start = tensor.data_ptr()
    except RuntimeError:  # wrapper subclasses own no memory
        return None
    if start == 0:
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
        shares = np.shares_memory(
            np.asarray(_Description(a)), np.asarray(_Description(b)), max_work=MAX_WORK
        )
    except np.exceptions.TooHardError:
        shares = True
    return "partial" if shares else "none"


def relations(tensors: Mapping[str, torch.Tensor]) -> dict[tuple[str, str], Relation]:
    """Returns every pair of paths whose tensors share at least one byte, in the order of `tensors`.

    Sweeps over sorted extents, so that disjoint tensors cost n log n and only near ones are compared.
    """
    order = {path: index for index, path in enumerate(tensors)}
    known = [(path, geom) for path, tensor in tensors.items() if (geom := geometry(tensor)) is not None]
    known.sort(key=lambda entry: (entry[1].device, entry[1].start))
    found: dict[tuple[str, str], Relation] = {}
    active: list[tuple[str, Geometry]] = []
    for path, geom in known:
        active = [e for e in active if e[1].device == geom.device and e[1].stop > geom.start]
        for other, other_geom in active:
            kind = overlap(other_geom, geom)
            if kind != "none":
                first, second = sorted((other, path), key=order.__getitem__)
                distance = (geom.start - other_geom.start) * (1 if first == other else -1)
                found[first, second] = Relation(kind, distance)
        active.append((path, geom))
    return dict(sorted(found.items(), key=lambda e: (order[e[0][0]], order[e[0][1]])))


def storage_extents(tensors: Iterable[torch.Tensor]) -> list[tuple[str, int, int]]:
    """Returns (device, first byte, one past the last) of every storage behind `tensors`, without empty ones."""
    extents = set()
    for tensor in tensors:
        if geometry(tensor) is None:
            continue
        storage = tensor.untyped_storage()
        extents.add((str(tensor.device), storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
    return sorted(extents)
