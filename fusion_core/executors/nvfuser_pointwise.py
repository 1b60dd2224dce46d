"""Pointwise operations as compositions of nvFuser's: one entry an operation, in the arithmetic of eager's kernels.

A rule takes the module of nvFuser's operations, the operands in the type in which it computes (Python numbers among them),
and the keywords. It returns a value of any type; the caller casts it to the operation's result type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]


def _direct(name: str) -> Rule:
    return lambda o, *operands: getattr(o, name)(*operands)


def _scaled(o: Any, value: Any, factor: Any) -> Any:
    return value if isinstance(factor, (bool, int, float)) and factor == 1 else o.mul(value, factor)


def _truth(o: Any, value: Any) -> Any:
    return bool(value) if isinstance(value, (bool, int, float)) else o.ne(value, 0)


def _power(o: Any, base: Any, exponent: Any) -> Any:
    """The special exponents are those that eager's kernel computes without `pow`."""
    if not isinstance(exponent, (int, float)) or isinstance(base, (int, float)):
        return o.pow(base, exponent)
    special: dict[float, Callable[[], Any]] = {
        2.0: lambda: o.mul(base, base),
        3.0: lambda: o.mul(o.mul(base, base), base),
        0.5: lambda: o.sqrt(base),
        -0.5: lambda: o.rsqrt(base),
        -1.0: lambda: o.reciprocal(base),
        -2.0: lambda: o.reciprocal(o.mul(base, base)),
        1.0: lambda: o.mul(base, 1.0),  # the operand itself, as an output, would be returned as it is
    }
    return special.get(float(exponent), lambda: o.pow(base, exponent))()


def _lerp(o: Any, start: Any, end: Any, weight: Any) -> Any:
    """As eager: from whichever end is nearer."""
    near = o.add(start, o.mul(weight, o.sub(end, start)))
    if isinstance(weight, (int, float)):
        return near if abs(weight) < 0.5 else o.sub(end, o.mul(o.sub(end, start), 1 - weight))
    far = o.sub(end, o.mul(o.sub(end, start), o.sub(1.0, weight)))
    return o.where(o.lt(o.abs(weight), 0.5), near, far)


def _clamp(o: Any, value: Any, low: Any = None, high: Any = None) -> Any:
    if low is not None:
        value = o.maximum(value, low)
    return value if high is None else o.minimum(value, high)


def _divide(o: Any, a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return o.truediv(a, b)
    return o.trunc(o.truediv(a, b)) if rounding_mode == "trunc" else _floor_divide(o, a, b)


def _divide_whole(o: Any, a: Any, b: Any, rounding_mode: str) -> Any:
    return o.div(a, b) if rounding_mode == "trunc" else o.div(o.sub(a, o.remainder(a, b)), b)


def _floor_divide(o: Any, a: Any, b: Any) -> Any:
    """Python's floor division for floating point, as eager computes it: from the remainder, not from the quotient."""
    rest = o.fmod(a, b)
    quotient = o.truediv(o.sub(a, rest), b)
    is_below = o.logical_and(o.ne(rest, 0.0), o.ne(o.lt(b, 0.0), o.lt(rest, 0.0)))
    quotient = o.where(is_below, o.sub(quotient, 1.0), quotient)
    floor = o.floor(quotient)
    floor = o.where(o.gt(o.sub(quotient, floor), 0.5), o.add(floor, 1.0), floor)
    return o.where(o.eq(b, 0.0), o.truediv(a, b), floor)


def _gelu(o: Any, x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        inner = o.mul(math.sqrt(2 / math.pi), o.add(x, o.mul(0.044715, o.mul(o.mul(x, x), x))))
        return o.mul(o.mul(0.5, x), o.add(1.0, o.tanh(inner)))
    return o.mul(o.mul(x, 0.5), o.add(1.0, o.erf(o.mul(x, math.sqrt(0.5)))))


def _gelu_backward(o: Any, gradient: Any, x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        beta, kappa = math.sqrt(2 / math.pi), 0.044715
        square = o.mul(x, x)
        inner = o.tanh(o.mul(beta, o.add(x, o.mul(kappa, o.mul(square, x)))))
        left = o.mul(0.5, o.add(1.0, inner))
        slope = o.mul(beta, o.add(1.0, o.mul(3 * kappa, square)))
        right = o.mul(o.mul(o.mul(0.5, x), o.sub(1.0, o.mul(inner, inner))), slope)
        return o.mul(gradient, o.add(left, right))
    cdf = o.mul(0.5, o.add(1.0, o.erf(o.mul(x, math.sqrt(0.5)))))
    pdf = o.mul(o.exp(o.mul(o.mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return o.mul(gradient, o.add(cdf, o.mul(x, pdf)))


def _silu_backward(o: Any, gradient: Any, x: Any) -> Any:
    gate = o.truediv(1.0, o.add(1.0, o.exp(o.neg(x))))
    return o.mul(o.mul(gradient, gate), o.add(1.0, o.mul(x, o.sub(1.0, gate))))


def _xlogy(o: Any, x: Any, y: Any) -> Any:
    product = o.where(o.eq(x, 0.0), 0.0, o.mul(x, o.log(y)))
    return o.where(o.isnan(y), y, product)


_DIRECT_UNARY = """
    acos acosh asin asinh atan atanh ceil cos cosh erf erfc erfinv exp exp2 expm1 floor frac lgamma log
    log10 log1p log2 reciprocal relu round rsqrt sigmoid sign silu sin sinh sqrt tan tanh trunc abs neg
    bitwise_not
""".split()
_DIRECT_BINARY = [
    "maximum",
    "minimum",
    "atan2",
    "fmod",
    "remainder",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "gcd",
]

# Rules whose operands have the result's type; by the name without overload.
ARITHMETIC: dict[str, Rule] = {
    **{name: _direct(name) for name in (*_DIRECT_UNARY, *_DIRECT_BINARY)},
    "sgn": _direct("sign"),
    "bitwise_left_shift": _direct("bitwise_left_shift"),
    "bitwise_right_shift": _direct("bitwise_right_shift"),
    "add": lambda o, a, b, alpha=1: o.add(a, _scaled(o, b, alpha)),
    "sub": lambda o, a, b, alpha=1: o.sub(a, _scaled(o, b, alpha)),
    "rsub": lambda o, a, b, alpha=1: o.sub(b, _scaled(o, a, alpha)),
    "mul": _direct("mul"),
    "div": _divide,
    "floor_divide": _floor_divide,
    "pow": _power,
    "lerp": _lerp,
    "addcmul": lambda o, a, b, c, value=1: o.add(a, _scaled(o, o.mul(b, c), value)),
    "addcdiv": lambda o, a, b, c, value=1: o.add(a, _scaled(o, o.truediv(b, c), value)),
    "prims.fma": lambda o, a, b, c: o.add(o.mul(a, b), c),
    "clamp": lambda o, x, min=None, max=None: _clamp(o, x, min, max),  # noqa: A006 - aten's keywords
    "clamp_min": lambda o, x, low: _clamp(o, x, low),
    "clamp_max": lambda o, x, high: _clamp(o, x, None, high),
    "hardtanh": lambda o, x, low=-1.0, high=1.0: _clamp(o, x, low, high),
    "leaky_relu": lambda o, x, slope=0.01: o.where(o.gt(x, 0.0), x, o.mul(x, slope)),
    "threshold": lambda o, x, limit, value: o.where(o.le(x, limit), value, x),
    "xlogy": _xlogy,
    "gelu": _gelu,
    "gelu_backward": _gelu_backward,
    "sigmoid_backward": lambda o, g, y: o.mul(o.mul(g, o.sub(1.0, y)), y),
    "tanh_backward": lambda o, g, y: o.mul(g, o.sub(1.0, o.mul(y, y))),
    "threshold_backward": lambda o, g, x, limit: o.where(o.le(x, limit), 0.0, g),
    "silu_backward": _silu_backward,
}
# Whole numbers divide otherwise.
WHOLE: dict[str, Rule] = {
    "div": _divide_whole,
    "floor_divide": lambda o, a, b: _divide_whole(o, a, b, "floor"),
    **dict.fromkeys(("ceil", "floor", "round", "trunc"), lambda o, x: o.mul(x, 1)),
}
# Rules whose first operand is a condition, and the others of the result's type.
CONDITIONAL: dict[str, Rule] = {
    "where": lambda o, condition, a, b: o.where(condition, a, b),
    "masked_fill": lambda o, mask, x, value: o.where(mask, value, x),
}
# Rules that compare: the operands have their common type, the result is a truth value.
COMPARING: dict[str, Rule] = {
    **{
        name: _direct(name)
        for name in ["eq", "ne", "lt", "le", "gt", "ge", "isinf", "isnan", "isneginf", "isposinf"]
    },
    "signbit": lambda o, x: o.signbit(x),
    "logical_not": lambda o, x: o.eq(x, 0),
    "logical_and": lambda o, a, b: o.logical_and(_truth(o, a), _truth(o, b)),
    "logical_or": lambda o, a, b: o.logical_or(_truth(o, a), _truth(o, b)),
    "logical_xor": lambda o, a, b: o.ne(_truth(o, a), _truth(o, b)),
}
