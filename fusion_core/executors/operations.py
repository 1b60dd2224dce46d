"""What each operation of a FusionProgram computes, in torch operators on any device.

An operation reads and writes numbered slots; the last slot holds the device, for constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusion_core.lowering.types import DTYPES
from fusion_core.program.ir import Argument, Constant, Op, Value

Step = Callable[[list[Any], dict[str, int]], None]


def bind(op: Op) -> Step:
    """Returns the callable that computes `op` from slots and the values of symbolic sizes."""
    return _BINDERS.get(op.name, _bind_operator)(op)


def _bind_move(op: Op) -> Step:
    move = _MOVES[op.name]
    source, result = op.operands()[0].index, op.result.index
    dtype, shape = DTYPES[op.result.type.dtype], op.result.type.shape

    def run(slots: list[Any], sizes: dict[str, int]) -> None:
        size = [sizes[d] if isinstance(d, str) else d for d in shape]
        slots[result] = move(slots[source], size, dtype, op)

    return run


def _dims(op: Op) -> list[int]:
    dims = op.arguments[1]
    assert isinstance(dims, Constant)
    return list(dims.value)  # type: ignore[arg-type]


def _bind_full(op: Op) -> Step:
    value = op.arguments[0]
    assert isinstance(value, Constant)
    result, dtype, rank = op.result.index, DTYPES[op.result.type.dtype], len(op.result.type.shape)

    def run(slots: list[Any], sizes: dict[str, int]) -> None:
        del sizes
        slots[result] = torch.full((1,) * rank, value.value, dtype=dtype, device=slots[-1])  # type: ignore[arg-type]

    return run


def _bind_positions(op: Op) -> Step:
    result, (size,) = op.result.index, op.result.type.shape

    def run(slots: list[Any], sizes: dict[str, int]) -> None:
        count = sizes[size] if isinstance(size, str) else size
        slots[result] = torch.arange(count, device=slots[-1])

    return run


def _bind_full_like(op: Op) -> Step:
    value = op.arguments[1]
    assert isinstance(value, Constant)
    source, result, dtype = op.operands()[0].index, op.result.index, DTYPES[op.result.type.dtype]

    def run(slots: list[Any], sizes: dict[str, int]) -> None:
        del sizes
        slots[result] = torch.full_like(slots[source], value.value, dtype=dtype)  # type: ignore[arg-type]

    return run


def _bind_reduction(op: Op) -> Step:
    source, result = op.operands()[0].index, op.result.index
    dims, dtype = _dims(op), DTYPES[op.result.type.dtype]
    keywords = {name: argument.value for name, argument in op.keywords if isinstance(argument, Constant)}

    def run(slots: list[Any], sizes: dict[str, int]) -> None:
        del sizes
        slots[result] = _REDUCE[op.name](slots[source], dims, dtype, keywords)

    return run


def _product(
    tensor: torch.Tensor, dims: list[int], dtype: torch.dtype, keywords: dict[str, Any]
) -> torch.Tensor:
    for dim in reversed(dims):
        tensor = torch.prod(tensor, dim, dtype=dtype, **keywords)
    return tensor


_REDUCE: dict[str, Callable[..., torch.Tensor]] = {
    "sum": lambda t, dims, dtype, k: torch.sum(t, dims, dtype=dtype, **k),
    "mean": lambda t, dims, dtype, k: torch.mean(t, dims, dtype=dtype, **k),
    "amax": lambda t, dims, dtype, k: torch.amax(t, dims, **k).to(dtype),
    "amin": lambda t, dims, dtype, k: torch.amin(t, dims, **k).to(dtype),
    "prod": _product,
    "var": lambda t, dims, dtype, k: torch.var(t, dims, **k).to(dtype),
    "any": lambda t, dims, dtype, k: torch.any(t, dims, **k).to(dtype),
    "all": lambda t, dims, dtype, k: torch.all(t, dims, **k).to(dtype),
}
# Views share memory with their operand, as they may on a GPU.
_MOVES: dict[str, Callable[..., torch.Tensor]] = {
    "set": lambda t, _size, _dtype, _op: t,
    "clone": lambda t, size, dtype, op: torch.empty_permuted(
        size, op.result.type.order, dtype=dtype, device=t.device
    ).copy_(t),
    "convert": lambda t, size, dtype, _op: t.to(dtype).expand(size).clone(),
    "permute": lambda t, _size, _dtype, op: t.permute(_dims(op)),
    "reshape": lambda t, size, _dtype, _op: t.reshape(size),
    "unsqueeze": lambda t, size, _dtype, _op: t.reshape(size),
    "squeeze": lambda t, size, _dtype, _op: t.reshape(size),
    "expand": lambda t, size, _dtype, _op: t.expand(size),
}


def _bind_operator(op: Op) -> Step:
    function, dtype = operator_of(op.name), DTYPES[op.result.type.dtype]
    getters = [_getter(a) for a in op.arguments]
    keywords = {name: _getter(a) for name, a in op.keywords}
    result = op.result.index

    def run(slots: list[Any], sizes: dict[str, int]) -> None:
        del sizes
        value = function(*[get(slots) for get in getters], **{k: get(slots) for k, get in keywords.items()})
        slots[result] = value if value.dtype == dtype else value.to(dtype)

    return run


def bind_in_place(op: Op) -> Step | None:
    """Returns the callable that computes `op` over its first operand; None where torch has no such operator."""
    first = op.arguments[0] if op.arguments else None
    function = _in_place_operator(op.name)
    if function is None or not isinstance(first, Value) or first.type != op.result.type or first.type.host:
        return None
    getters = [_getter(a) for a in op.arguments]
    keywords = {name: _getter(a) for name, a in op.keywords}
    result = op.result.index

    def run(slots: list[Any], sizes: dict[str, int]) -> None:
        del sizes
        slots[result] = function(
            *[get(slots) for get in getters], **{k: get(slots) for k, get in keywords.items()}
        )

    return run


def _in_place_operator(name: str) -> Callable[..., Any] | None:
    packet, _, overload = name.partition(".")
    if name in _BINDERS or name == "masked_fill.Tensor" or "." in overload:
        return None
    found: Callable[..., Any] | None = getattr(getattr(torch.ops.aten, f"{packet}_", None), overload, None)
    return found


def _getter(argument: Argument) -> Callable[[list[Any]], Any]:
    if isinstance(argument, Constant):
        constant = argument.value
        return lambda _slots: constant
    index = argument.index
    return lambda slots: slots[index]


def operator_of(name: str) -> Callable[..., Any]:
    """Returns the torch operator of an operation name: `add.Tensor` is aten's, `prims.fma.default` another's."""
    if (
        name == "masked_fill.Tensor"
    ):  # whose own kernel takes no value with dimensions, as a program may give it
        return lambda tensor, mask, value: torch.where(mask, value, tensor)
    *namespace, packet, overload = name.split(".")
    operators: Any = getattr(torch.ops, namespace[0]) if namespace else torch.ops.aten
    operator: Callable[..., Any] = getattr(getattr(operators, packet), overload)
    return operator


def _bind_random(op: Op) -> Step:
    draw = {"uniform": torch.rand_like, "normal": torch.randn_like}[op.name]
    source, result, dtype = op.operands()[0].index, op.result.index, DTYPES[op.result.type.dtype]

    def run(slots: list[Any], sizes: dict[str, int]) -> None:
        del sizes
        slots[result] = draw(slots[source], dtype=dtype)

    return run


_BINDERS: dict[str, Callable[[Op], Step]] = {
    **dict.fromkeys(_MOVES, _bind_move),
    **dict.fromkeys(_REDUCE, _bind_reduction),
    **dict.fromkeys(("uniform", "normal"), _bind_random),
    "iota": _bind_positions,
    "full": _bind_full,
    "full_like": _bind_full_like,
}
