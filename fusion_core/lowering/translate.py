"""One graph node into one operation: arguments in the form in which programs have them."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from fusion_core.alias import tensor_of
from fusion_core.lowering.rows import ROWS, aten
from fusion_core.lowering.types import fake

# Operators that choose between operands: the condition stays what it is, and values are cast to the result.
_CHOOSING = (aten.where.self, aten.masked_fill.Scalar, aten.masked_fill.Tensor)


def reduced_dims(node: Node) -> tuple[int, ...]:
    """Returns the dimensions that a reduction removes, ascending; none given means all."""
    rank = fake(_operand(node)).dim()
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if given is None or given == [] or rank == 0:
        return tuple(range(rank))
    dims: Any = [given] if isinstance(given, int) else given
    return tuple(sorted({d % rank for d in dims}))


def reduction_keywords(node: Node) -> dict[str, Any]:
    """Returns `keepdim` and, for a variance, `correction`."""
    keywords: dict[str, Any] = {"keepdim": fake(node).dim() == fake(_operand(node)).dim()}
    if node.target is aten.var.correction:
        correction = node.kwargs.get("correction")
        keywords["correction"] = 1 if correction is None else correction
    return keywords


def view_argument(node: Node) -> tuple[int, ...] | None:
    """Returns the dimensions of a permutation, squeeze or unsqueeze; None where the result's shape says it all."""
    name, rank = ROWS[node.target].name, fake(_operand(node)).dim()
    if name == "permute":
        return _permutation(node, rank)
    if name == "unsqueeze":
        return (int(node.args[1]) % (rank + 1),)  # type: ignore[arg-type]
    if name == "squeeze":
        sizes = fake(_operand(node)).shape
        given: Any = node.args[1] if len(node.args) > 1 else range(rank)
        dims = [given] if isinstance(given, int) else given
        return tuple(sorted({d % max(rank, 1) for d in dims if rank and sizes[d] == 1}))
    return None


def _permutation(node: Node, rank: int) -> tuple[int, ...]:
    if node.target is aten.permute.default:
        order: Any = node.args[1]
        return tuple(d % rank for d in order)
    dims = list(range(rank))
    if node.target is aten.t.default or rank == 0:
        return tuple(reversed(dims))
    first, second = (int(a) % rank for a in node.args[1:3])  # type: ignore[arg-type]
    dims[first], dims[second] = dims[second], dims[first]
    return tuple(dims)


def common_dtype(node: Node) -> torch.dtype | None:
    """Returns the dtype in which a pointwise operator computes, where an operand without dimensions has another.

    Given to a program as a tensor with dimensions, such an operand would take part in type promotion.
    """
    tensors = [t for t in map(tensor_of, node.all_input_nodes) if t is not None]
    if all(t.dtype == tensors[0].dtype for t in tensors) or node.target in _CHOOSING:
        return None
    scalars = [a for a in node.args if isinstance(a, (bool, int, float, complex))]
    dtype: torch.dtype | None = None
    meta = [torch.empty(() if t.dim() == 0 else (1,), dtype=t.dtype, device="meta") for t in tensors]
    value: Any = meta[0]
    for other in (*meta[1:], *scalars):
        dtype = torch.result_type(value, other)
        shape = () if value.dim() == 0 and (not isinstance(other, torch.Tensor) or other.dim() == 0) else (1,)
        value = torch.empty(shape, dtype=dtype, device="meta")
    return dtype


def _operand(node: Node) -> Node:
    operand = node.args[ROWS[node.target].operand]
    assert isinstance(operand, Node)
    return operand
