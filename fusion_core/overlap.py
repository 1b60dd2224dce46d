"""How do the arguments of one call overlap? The key under which plans are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

Pattern = tuple[Any, ...]


def overlap_pattern(arguments: tuple[Any, ...], written: frozenset[int]) -> Pattern:
    """Returns () where no written argument may share bytes with another, else the geometry of those that do.

    Extents are compared, not elements: interleaved views count as overlapping, which costs a plan and no correctness.
    """
    extents = sorted(_extents(arguments))
    pairs: set[tuple[int, int]] = set()
    active: list[tuple[str, int, int, int]] = []
    for entry in extents:
        device, start, _, index = entry
        active = [a for a in active if a[0] == device and a[2] > start]
        pairs.update((a[3], index) for a in active if a[3] in written or index in written)
        active.append(entry)
    if not pairs:
        return ()
    base = {i: arguments[i].untyped_storage().data_ptr() for pair in pairs for i in pair}
    groups = {address: number for number, address in enumerate(dict.fromkeys(base.values()))}
    foreign = any(base[i] != base[j] for i, j in pairs)
    return (foreign, *(_place(i, groups[base[i]], arguments[i]) for i in sorted(base)))


def _extents(arguments: tuple[Any, ...]) -> Iterator[tuple[str, int, int, int]]:
    for index, tensor in enumerate(arguments):
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.numel() == 0:
            continue
        start = tensor.data_ptr()
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        yield str(tensor.device), start, start + (last + 1) * tensor.element_size(), index


def _place(index: int, group: int, tensor: torch.Tensor) -> tuple[Any, ...]:
    storage = tensor.untyped_storage()
    return (
        index,
        group,
        tensor.data_ptr() - storage.data_ptr(),
        storage.nbytes(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
    )


def shares_foreign_memory(pattern: Pattern) -> bool:
    """True if overlapping arguments belong to different storages (numpy, dlpack): torch's capture sees no alias there."""
    return bool(pattern and pattern[0])
