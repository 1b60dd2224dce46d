"""Decompositions of our own, for operators that torch takes apart into what cannot be lowered, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION
from torch._prims_common.wrappers import elementwise_type_promotion_wrapper

aten = torch.ops.aten


def _promoted(kind: PROMOTION) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    return elementwise_type_promotion_wrapper(type_promoting_args=("a", "b"), type_promotion_kind=kind)


@_promoted(PROMOTION.DEFAULT)
def _fmax(a: Tensor, b: Tensor) -> Tensor:
    """The larger one; a number where one is NaN."""
    if not a.dtype.is_floating_point:
        return torch.maximum(a, b)
    return torch.where((a >= b) | torch.isnan(b), a, b)


@_promoted(PROMOTION.DEFAULT)
def _fmin(a: Tensor, b: Tensor) -> Tensor:
    """The smaller one; a number where one is NaN."""
    if not a.dtype.is_floating_point:
        return torch.minimum(a, b)
    return torch.where((a <= b) | torch.isnan(b), a, b)


@_promoted(PROMOTION.INT_TO_FLOAT)
def _copysign(a: Tensor, b: Tensor) -> Tensor:
    """The first one's magnitude with the second one's sign."""
    magnitude = torch.abs(a)
    return torch.where(torch.signbit(b), torch.neg(magnitude), magnitude)


@_promoted(PROMOTION.DEFAULT)
def _lcm(a: Tensor, b: Tensor) -> Tensor:
    """The least common multiple, 0 where both are 0."""
    divisor = torch.gcd(a, b)
    divisor = torch.where(divisor == 0, 1, divisor)
    return torch.abs(torch.div(a, divisor, rounding_mode="trunc") * b)


def _ldexp(a: Tensor, b: Tensor) -> Tensor:
    """`a * 2 ** b`, as eager composes it."""
    return torch.mul(a, torch.pow(2.0, b))


def _round_decimals(a: Tensor, *, decimals: int) -> Tensor:
    """Rounds to so many decimals, or to tens where the number is negative, in eager's order of operations."""
    if decimals == 0:
        return torch.round(a)
    power = 10.0 ** abs(decimals)
    return torch.round(a * power) / power if decimals > 0 else torch.round(a / power) * power


def _repeat(a: Tensor, repeats: Sequence[int]) -> Tensor:
    """Repeats as a broadcast that is copied once."""
    missing = len(repeats) - a.dim()
    shape = [1] * missing + list(a.shape)
    spread = [size for pair in ((1, n) for n in shape) for size in pair]
    wanted = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    tiled = a.reshape(spread).expand(wanted).clone(memory_format=torch.contiguous_format)
    return tiled.reshape([r * n for r, n in zip(repeats, shape, strict=True)])


TABLE: dict[Any, Callable[..., Any]] = {
    aten.fmax.default: _fmax,
    aten.fmin.default: _fmin,
    aten.copysign.Tensor: _copysign,
    aten.lcm.default: _lcm,
    aten.ldexp.Tensor: _ldexp,
    aten.round.decimals: _round_decimals,
    aten.repeat.default: _repeat,
}
