"""Tangents with the lazy bits that a backward graph was traced with: autograd hands over others, for which no guard exists.

A kernel reads memory, and the graph tells which values are stored conjugated or negated. So a tangent that comes otherwise
is written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph

Run = Callable[[list[Any]], Any]


def with_traced_bits(run: Run, graph: Graph) -> Run:
    """Returns what runs a backward graph on tangents that have the conj and neg bits of the traced ones."""
    expected = tuple(_expected(graph))
    if not expected:
        return run

    def run_checked(arguments: list[Any]) -> Any:
        for position, is_conj, is_neg in expected:
            tangent = arguments[position]
            if tangent is None:
                continue  # nobody differentiates that output, and the graph does not read it
            if tangent.is_conj() is not is_conj or tangent.is_neg() is not is_neg:
                arguments[position] = with_bits(tangent, is_conj=is_conj, is_neg=is_neg)
        return run(arguments)

    return run_checked


def _expected(graph: Graph) -> Iterator[tuple[int, bool, bool]]:
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    for position, node in enumerate(placeholders):
        value = node.meta.get("val")
        # torch's partitioners know tangents by this name too
        if "tangents" in str(node.target) and isinstance(value, Tensor):
            yield position, value.is_conj(), value.is_neg()


def with_bits(tensor: Tensor, *, is_conj: bool, is_neg: bool) -> Tensor:
    """Returns a tensor of the same values and strides whose memory holds their conjugates or negatives, as told."""
    shape, strides = tensor.shape, tensor.stride()
    if not tensor.is_contiguous() and 0 in strides:
        strides = torch.empty_like(tensor, device="meta").stride()  # an expanded one cannot be written
    made = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    if is_conj:
        made = made.conj()
    if is_neg:
        made = torch._neg_view(made)  # noqa: SLF001 - torch has no public name for it
    return made.copy_(tensor.detach())
