"""Decompositions of our own, for operators that torch takes apart into what cannot be lowered, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION
from torch._prims_common import get_computation_dtype
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


def _softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """The gradient of softmax as eager's CUDA kernels make it: of the product rounded to its dtype."""
    computed = get_computation_dtype(output.dtype)
    product = (grad * output).to(computed)
    whole = torch.sum(product, dim=dim, keepdim=True)
    return (product - output.to(computed) * whole).to(input_dtype).contiguous()


_COUNTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)


def _extreme(a: Tensor, dim: int, *, keepdim: bool, largest: bool) -> tuple[Tensor, Tensor]:
    """The largest or smallest along a dimension and the first index of it; a NaN, where there is one, is both."""
    if a.dim() == 0:
        return a.clone(), torch.zeros_like(a, dtype=torch.int64)
    size = a.shape[dim]
    shape = [size if d == dim % a.dim() else 1 for d in range(a.dim())]
    value = (torch.amax if largest else torch.amin)(a, [dim], keepdim=True)
    found = a == value
    if a.dtype.is_floating_point:
        found = found | torch.isnan(a)  # then no element equals the extreme, which is NaN
    places = torch.arange(size, device=a.device).reshape(shape)
    index = torch.amin(torch.where(found, places, size), [dim], keepdim=True)
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


def _is_counted(a: Tensor) -> bool:
    return a.dtype in _COUNTED and all(type(n) is int and n > 0 for n in a.shape)


def _extreme_and_index(*, largest: bool) -> Callable[..., Any]:
    def run(a: Tensor, dim: int, keepdim: bool = False) -> Any:
        if not _is_counted(a):
            return NotImplemented
        return _extreme(a, dim, keepdim=keepdim, largest=largest)

    return run


def _index_of_extreme(*, largest: bool) -> Callable[..., Any]:
    def run(a: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if not _is_counted(a):
            return NotImplemented
        if dim is not None:
            return _extreme(a, dim, keepdim=keepdim, largest=largest)[1]
        index = _extreme(a.reshape(-1), 0, keepdim=True, largest=largest)[1]
        return index.reshape([1] * a.dim() if keepdim else [])

    return run


def _arange(
    start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, device: Any = None, **rest: Any
) -> Any:
    """A range of whole numbers as 0, 1, 2, ... times its step; of other numbers eager rounds otherwise."""
    numbers = (start, end, step)
    if not all(type(n) is int for n in numbers) or dtype not in (None, torch.int64) or any(rest.values()):
        return NotImplemented
    count = max(0, -(-(end - start) // step))
    return torch.arange(count, device=device) * step + start


TABLE: dict[Any, Callable[..., Any]] = {
    aten.fmax.default: _fmax,
    aten.fmin.default: _fmin,
    aten.copysign.Tensor: _copysign,
    aten.lcm.default: _lcm,
    aten.ldexp.Tensor: _ldexp,
    aten.round.decimals: _round_decimals,
    aten.repeat.default: _repeat,
    aten._softmax_backward_data.default: _softmax_backward,  # noqa: SLF001 - the operator's name
    aten.max.dim: _extreme_and_index(largest=True),
    aten.min.dim: _extreme_and_index(largest=False),
    aten.argmax.default: _index_of_extreme(largest=True),
    aten.argmin.default: _index_of_extreme(largest=False),
    aten.arange.start_step: _arange,
}
