"""Types of graph nodes as types of a FusionProgram."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Node

from fusion_core.alias import tensor_of
from fusion_core.program.ir import Dim, Layout, TensorType

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


def fake(node: Node) -> torch.Tensor:
    """Returns the fake tensor of a node that is known to have one."""
    tensor = tensor_of(node)
    assert tensor is not None, node
    return tensor


def static_sizes(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the shape where it is known at compile time."""
    return tuple(tensor.shape) if all(type(s) is int for s in tensor.shape) else None


def static_strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the strides where they are known at compile time."""
    return tuple(tensor.stride()) if all(type(s) is int for s in tensor.stride()) else None


def layout_of(tensor: torch.Tensor) -> Layout | None:
    """Returns the layout of a strided tensor; of a fake one with symbolic sizes, that of the call it was traced with."""
    sizes, strides = [_hint(s) for s in tensor.shape], [_hint(s) for s in tensor.stride()]
    if any(s is None for s in (*sizes, *strides)):
        return None
    return layout_of_strides(tuple(sizes), tuple(strides))


def _hint(size: Any) -> int | None:
    if type(size) is int:
        return size
    hint = size.node.hint
    return None if hint is None else int(hint)


@lru_cache(maxsize=4096)
def layout_of_strides(sizes: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    """Returns the layout of these sizes and strides (in elements)."""
    rank = len(sizes)
    placed = list(strides)  # single and expanded dimensions stay beside their right neighbour
    for dim in reversed(range(rank)):
        if sizes[dim] == 1 or strides[dim] == 0:
            placed[dim] = placed[dim + 1] if dim + 1 < rank else 0
    order = tuple(sorted(range(rank), key=lambda dim: (-placed[dim], dim)))
    flags, expected = "", 1
    for dim in reversed(order):
        if sizes[dim] == 1:
            flags += "b"
        elif strides[dim] == 0:
            flags += "e"
        else:
            flags += "c" if strides[dim] == expected else "g"
            expected = strides[dim] * sizes[dim]
    return Layout(order, flags[::-1])


def is_dense(tensor: torch.Tensor) -> bool:
    """True if the elements fill one gapless stretch of memory, each once; false where that is unknown."""
    layout = layout_of(tensor)
    return layout is not None and layout.is_dense


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if both have the same dtype, sizes and strides, as far as is known at compile time."""
    return (a.dtype, a.device) == (b.dtype, b.device) and _strides(a) == _strides(b)


def _strides(tensor: torch.Tensor) -> list[tuple[str, str]]:
    return [
        (str(sz), str(st)) for sz, st in zip(tensor.shape, tensor.stride(), strict=True) if str(sz) != "1"
    ] + [("rank", str(tensor.dim()))]


@dataclass(frozen=True, slots=True)
class Form:
    """How the tensors of one program are given to it.

    `collapsed`: dense tensors as one dimension, those of fewer than `sized` dimensions as one element. `rank`: tensors of
    lower rank get leading dimensions of size 1 (0: as they are), since an operand of lower rank costs nvFuser a kernel
    (rule R8). `static`: sizes are part of the program, which operators that compute sizes need.
    """

    collapsed: bool = False
    sized: int = 1
    rank: int = 0
    static: bool = False


class TypeTable:
    """Names sizes `s0`, `s1`, ... in order of appearance; equal sizes share a name, 0 and 1 stay numbers."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._symbols: dict[str, str] = {}

    def type_of(self, node: Node, *, device: torch.device) -> TensorType:
        """Returns the node's type in a program on `device`."""
        tensor = fake(node)
        dtype = DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
        if tensor.device != device:
            return TensorType(dtype, (), host=True)
        if self._form.collapsed:
            return TensorType(dtype, (1 if tensor.dim() < self._form.sized else "s0",))
        missing = max(self._form.rank - tensor.dim(), 0)
        shape = (*[1] * missing, *(self._dim(size) for size in tensor.shape))
        layout = layout_of(tensor)
        if layout is None or layout.is_row_major:
            return TensorType(dtype, shape)
        order = (*range(missing), *(dim + missing for dim in layout.order))
        return TensorType(dtype, shape, Layout(order, "b" * missing + layout.flags))

    def _dim(self, size: object) -> Dim:
        if type(size) is int and (self._form.static or size in (0, 1)):
            return size
        return self._symbols.setdefault(str(size), f"s{len(self._symbols)}")
