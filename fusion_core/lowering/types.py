"""Types of graph nodes as types of a FusionProgram."""

from __future__ import annotations

import torch
from torch.fx import Node

from fusion_core.alias import tensor_of
from fusion_core.program.ir import Dim, TensorType

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


def is_dense(tensor: torch.Tensor) -> bool:
    """True if the elements fill one gapless stretch of memory, each once; false where that is unknown."""
    sizes, strides = static_sizes(tensor), static_strides(tensor)
    if sizes is None or strides is None:
        return bool(static_sizes(tensor) == ())
    expected = 1
    for stride, size in sorted((st, sz) for sz, st in zip(sizes, strides, strict=True) if sz != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if both have the same dtype, sizes and strides, as far as is known at compile time."""
    return (a.dtype, a.device) == (b.dtype, b.device) and _layout(a) == _layout(b)


def _layout(tensor: torch.Tensor) -> list[tuple[str, str]]:
    return [
        (str(sz), str(st)) for sz, st in zip(tensor.shape, tensor.stride(), strict=True) if str(sz) != "1"
    ] + [("rank", str(tensor.dim()))]


class TypeTable:
    """Names sizes `s0`, `s1`, ... in order of appearance; equal sizes share a name, 0 and 1 stay numbers."""

    def __init__(self, *, collapse: bool) -> None:
        self._collapse = collapse
        self._symbols: dict[str, str] = {}

    def type_of(self, node: Node, *, is_input: bool = False) -> TensorType:
        """Returns the node's type; collapsed, every tensor has one dimension and every scalar none."""
        tensor = fake(node)
        dtype = DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
        if self._collapse:
            shape: tuple[Dim, ...] = () if tensor.dim() == 0 else (1 if tensor.numel() == 1 else "s0",)
            return TensorType(dtype, shape)
        shape = tuple(self._dim(size) for size in tensor.shape)
        layout = (
            "dense"
            if not is_input or _is_row_major(tensor)
            else f"{{{', '.join(map(str, tensor.stride()))}}}"
        )
        return TensorType(dtype, shape, layout)

    def _dim(self, size: object) -> Dim:
        if type(size) is int and size in (0, 1):
            return size
        return self._symbols.setdefault(str(size), f"s{len(self._symbols)}")


def _is_row_major(tensor: torch.Tensor) -> bool:
    expected = "1"
    sizes = static_sizes(tensor)
    if sizes is None:
        return tensor.dim() == 0
    for size, stride in reversed(list(zip(sizes, tensor.stride(), strict=True))):
        if size != 1 and str(stride) != expected:
            return False
        expected = str(int(expected) * size)
    return True
