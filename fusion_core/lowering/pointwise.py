"""The pointwise operators that can be part of a FusionProgram: one row an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Row:
    """How an aten operator becomes an operation.

    `kind` is `apply` (the operation of the same name), `identity` (its operand's value in memory of its own) or
    `convert` (the operand broadcast and cast to the result's type). `operand` is the position of that operand.
    """

    kind: str = "apply"
    operand: int = 0


_UNARY = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bitwise_not",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "frac",
    "isinf",
    "isnan",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "logical_not",
    "neg",
    "reciprocal",
    "relu",
    "rsqrt",
    "sgn",
    "sigmoid",
    "sign",
    "signbit",
    "silu",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
    "round",
    "gelu",
]
_BINARY_DEFAULT = [
    "maximum",
    "minimum",
    "atan2",
    "hypot",
    "nextafter",
    "logical_and",
    "logical_or",
    "logical_xor",
    "sigmoid_backward",
    "tanh_backward",
    "threshold_backward",
    "silu_backward",
    "gelu_backward",
]
_TENSOR_OR_SCALAR = [
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "fmod",
    "remainder",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
]
_MORE = (
    aten.add.Tensor,
    aten.add.Scalar,
    aten.sub.Tensor,
    aten.sub.Scalar,
    aten.mul.Tensor,
    aten.mul.Scalar,
    aten.div.Tensor,
    aten.div.Scalar,
    aten.rsub.Tensor,
    aten.rsub.Scalar,
    aten.pow.Tensor_Tensor,
    aten.pow.Tensor_Scalar,
    aten.pow.Scalar,
    aten.lerp.Scalar,
    aten.lerp.Tensor,
    aten.addcmul.default,
    aten.addcdiv.default,
    aten.where.self,
    aten.clamp.default,
    aten.clamp.Tensor,
    aten.clamp_min.default,
    aten.clamp_max.default,
    aten.masked_fill.Scalar,
    aten.leaky_relu.default,
    aten.hardtanh.default,
    aten.threshold.default,
    torch.ops.prims.fma.default,
)

# Constants of another tensor's shape; they fuse into their readers, and are pointless as kernels of their own.
CREATIONS = frozenset({aten.full_like.default, aten.zeros_like.default, aten.ones_like.default})

ROWS: dict[Any, Row] = {
    **{getattr(aten, name).default: Row() for name in (*_UNARY, *_BINARY_DEFAULT)},
    **{getattr(getattr(aten, name), o): Row() for name in _TENSOR_OR_SCALAR for o in ("Tensor", "Scalar")},
    **{target: Row() for target in (*_MORE, *CREATIONS)},
    aten.clone.default: Row("identity"),
    aten.copy.default: Row("convert", operand=1),
    aten._to_copy.default: Row("convert"),
    torch.ops.prims.convert_element_type.default: Row("convert"),
}


def operation_name(target: Any) -> str:
    """Returns `add.Tensor` for an aten overload, `prims.fma.default` for one of another namespace."""
    name = f"{target.overloadpacket.__name__}.{target._overloadname or 'default'}"
    return name if target.namespace == "aten" else f"{target.namespace}.{name}"
