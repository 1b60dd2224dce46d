"""The pointwise aten operators that nvFuser computes, or that a few of its operations compose."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

_UNARY = """
    abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf erfc erfinv exp exp2 expm1 floor frac
    gelu isinf isnan isneginf isposinf lgamma log log10 log1p log2 logical_not neg reciprocal relu round
    rsqrt sgn sigmoid sign signbit silu sin sinh sqrt tan tanh trunc
""".split()
_BINARY_DEFAULT = """
    atan2 gelu_backward logical_and logical_or logical_xor maximum minimum sigmoid_backward silu_backward
    tanh_backward threshold_backward
""".split()
_TENSOR_OR_SCALAR = [
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "eq",
    "fmod",
    "ge",
    "gt",
    "le",
    "lt",
    "ne",
    "remainder",
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
    aten.xlogy.Tensor,
    aten.masked_fill.Tensor,
    aten.div.Tensor_mode,
    aten.div.Scalar_mode,
    aten.floor_divide.default,
    aten.bitwise_left_shift.Tensor,
    aten.bitwise_left_shift.Tensor_Scalar,
    aten.bitwise_right_shift.Tensor,
    aten.bitwise_right_shift.Tensor_Scalar,
    aten.clamp_min.Tensor,
    aten.clamp_max.Tensor,
    aten.gcd.default,
    torch.ops.prims.fma.default,
)


TARGETS: tuple[Any, ...] = (
    *(getattr(aten, name).default for name in (*_UNARY, *_BINARY_DEFAULT)),
    *(getattr(getattr(aten, name), o) for name in _TENSOR_OR_SCALAR for o in ("Tensor", "Scalar")),
    *_MORE,
)
