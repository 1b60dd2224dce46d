"""How the tensors of one arm share memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusion_core.overlap import geometry, overlapping_pairs
from pytest_fusealias.observation import Relation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch


def relations(tensors: Mapping[str, torch.Tensor]) -> dict[tuple[str, str], Relation]:
    """Returns every pair of paths whose tensors share at least one byte, in the order of `tensors`."""
    order = {path: index for index, path in enumerate(tensors)}
    known = {path: geom for path, tensor in tensors.items() if (geom := geometry(tensor)) is not None}
    found: dict[tuple[str, str], Relation] = {}
    for low, high, kind in overlapping_pairs(known):
        first, second = sorted((low, high), key=order.__getitem__)
        found[first, second] = Relation(kind, known[second].start - known[first].start)
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


_MOST_PAIRS = 40


def alias_diagram(
    eager: Mapping[tuple[str, str], Relation], compiled: Mapping[tuple[str, str], Relation]
) -> tuple[tuple[str, str, str, str], ...]:
    """Returns (path, path, relation in eager, relation compiled) for pairs around those that differ, these first."""
    pairs = list(dict.fromkeys([*eager, *compiled]))
    odd = [pair for pair in pairs if eager.get(pair) != compiled.get(pair)]
    involved = {path for pair in odd for path in pair}
    near = [pair for pair in pairs if pair not in odd and involved & set(pair)]
    rows = [(*pair, _text(eager.get(pair)), _text(compiled.get(pair))) for pair in [*odd, *near]]
    return tuple(rows[:_MOST_PAIRS])


def _text(relation: Relation | None) -> str:
    if relation is None:
        return "distinct"
    return f"{relation.overlap} overlap, {relation.offset_bytes:+d} B"
