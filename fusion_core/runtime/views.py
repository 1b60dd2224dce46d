"""Chains of views as one view each: the host makes every view, and a model has more of them than kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fusion_core.alias import is_free, storage_of
from fusion_core.lowering.types import static_sizes, static_strides
from fusion_core.runtime.steps import RunEager, Slots

AS_STRIDED = torch.ops.aten.as_strided.default


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes, strides and the distance from where its base begins, of a view, in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    distance: int


@dataclass(frozen=True, slots=True)
class View:
    """Makes the view that `chain` makes of the base in one step, where the base has the `expected` strides (in elements).

    Fake tensors foretell the strides of some operators wrongly; where they did, the chain itself runs. Its first step reads
    slot 0 of slots of its own.
    """

    base: int
    output: int
    expected: tuple[int, ...]
    geometry: Geometry
    chain: tuple[RunEager, ...]

    def run(self, slots: Slots) -> None:
        """Makes the view."""
        slots[self.output] = self.of(slots[self.base])

    def of(self, base: torch.Tensor) -> Any:
        """Returns the view of a base."""
        if base.layout is not torch.strided or base.stride() != self.expected:
            return run_chain(self.chain, base)
        view = self.geometry
        try:
            return base.as_strided(view.sizes, view.strides, base.storage_offset() + view.distance)
        except RuntimeError:  # of a storage whose memory was freed, which some operators view none the less
            return run_chain(self.chain, base)


def run_chain(chain: Iterable[RunEager], base: torch.Tensor) -> Any:
    """Returns what the operators of the chain make of the base, one after another."""
    slots: list[Any] = [base]
    for step in chain:
        slots.append(None)
        step.run(slots)
    return slots[-1]


def chain_of(node: Node, steps: frozenset[Node]) -> list[Node]:
    """Returns the nodes from a tensor to the view `node`, which comes last; only nodes that run as `steps` of their own."""
    chain: list[Node] = []
    while (
        node in steps and is_free(node) and node.target is not AS_STRIDED and len(node.all_input_nodes) == 1
    ):
        chain.append(node)
        node = node.all_input_nodes[0]
    chain.reverse()
    while chain and not isinstance(chain[0].all_input_nodes[0].meta.get("val"), torch.Tensor):
        del chain[0]
    return chain


def geometry_of(base: torch.Tensor, chain: Iterable[RunEager], *, is_shown: bool) -> Geometry | None:
    """Returns the geometry of what the chain makes of a tensor like `base`, found on a tensor without memory.

    None where sizes are symbolic, or where the result is no view of the same elements in the same dtype. `detach` and
    `_unsafe_view` make tensors that are views to nobody, and what is returned, or a view of it, must stay so (`is_shown`).
    """
    sizes, strides = static_sizes(base), static_strides(base)
    if base.layout is not torch.strided or sizes is None or strides is None:
        return None
    if base.is_complex() or base.is_quantized:
        return None  # their views may differ by bits that no stride tells
    with torch.inference_mode(False):  # in inference mode no tensor knows its base
        like = torch.empty_strided(sizes, strides, dtype=base.dtype, device="meta")
        view = run_chain(chain, like)
    if not isinstance(view, torch.Tensor) or view.dtype != base.dtype or view.is_neg():
        return None
    is_view = view._base is like if is_shown else storage_of(view) == storage_of(like)  # noqa: SLF001 - no public name
    return Geometry(tuple(view.shape), view.stride(), int(view.storage_offset())) if is_view else None
