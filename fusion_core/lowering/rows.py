"""Every aten operator that can be part of a FusionProgram: one row an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fusion_core.lowering import pointwise

aten = torch.ops.aten
prims = torch.ops.prims


@dataclass(frozen=True, slots=True)
class Row:
    """How an aten operator becomes an operation.

    `apply` (the operation of the same name), `identity` (its operand's value in memory of its own), `convert` (the operand
    broadcast and cast to the result's type), `reduce` and `view` (the operation `name`), `alias` (the operand itself),
    `create` (a constant of its operand's shape), `constant` (a scalar, given as a tensor without dimensions),
    `positions` (0, 1, 2, ...), `random` (numbers drawn in the shape of its operand). `operand` is
    the position of the operand that is moved, reduced or viewed.
    """

    kind: str = "apply"
    operand: int = 0
    name: str = ""


_REDUCTIONS = {
    "sum": (aten.sum.default, aten.sum.dim_IntList),
    "mean": (aten.mean.default, aten.mean.dim),
    "amax": (aten.amax.default, aten.max.default),
    "amin": (aten.amin.default, aten.min.default),
    "prod": (aten.prod.default, aten.prod.dim_int),
    "var": (aten.var.correction,),
    "any": (aten.any.default, aten.any.dim, aten.any.dims),
    "all": (aten.all.default, aten.all.dim, aten.all.dims),
}
_VIEWS = {
    "permute": (aten.permute.default, aten.t.default, aten.transpose.int),
    "reshape": (aten.view.default, aten._unsafe_view.default, aten.reshape.default),
    "unsqueeze": (aten.unsqueeze.default,),
    "squeeze": (aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default),
    "expand": (aten.expand.default,),
}

# Constants of another tensor's shape; they fuse into their readers, and are pointless as kernels of their own.
# `empty_like` may hold anything, so it is 0 where it fuses.
CREATIONS = frozenset(
    {aten.full_like.default, aten.zeros_like.default, aten.ones_like.default, aten.empty_like.default}
)

ROWS: dict[Any, Row] = {
    **{target: Row() for target in pointwise.TARGETS},
    **{target: Row("create") for target in CREATIONS},
    **{target: Row("reduce", name=name) for name, targets in _REDUCTIONS.items() for target in targets},
    **{target: Row("view", name=name) for name, targets in _VIEWS.items() for target in targets},
    aten.arange.default: Row("positions", name="iota"),
    aten.full.default: Row("constant", operand=1),
    aten.scalar_tensor.default: Row("constant"),
    aten.detach.default: Row("alias"),
    aten.alias.default: Row("alias"),
    aten.rand_like.default: Row("random", name="uniform"),
    aten.randn_like.default: Row("random", name="normal"),
    aten.clone.default: Row("identity"),
    aten.copy.default: Row("convert", operand=1),
    aten._to_copy.default: Row("convert"),
    prims.convert_element_type.default: Row("convert"),
}


def operation_name(target: Any) -> str:
    """Returns `add.Tensor` for an aten overload, `prims.fma.default` for one of another namespace."""
    name = f"{target.overloadpacket.__name__}.{target._overloadname or 'default'}"
    return name if target.namespace == "aten" else f"{target.namespace}.{name}"
