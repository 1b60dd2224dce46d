"""Element types: what nvFuser calls them, and in which one it computes."""

from __future__ import annotations

import torch

from fusion_core.lowering.types import DTYPE_NAMES, DTYPES

NVFUSER_NAMES = {
    "bool": "Bool",
    "i32": "Int32",
    "i64": "Int",
    "f16": "Half",
    "bf16": "BFloat16",
    "f32": "Float",
    "f64": "Double",
    "c64": "ComplexFloat",
    "c128": "ComplexDouble",
}
# Half types have no arithmetic of their own, and truth values add up as whole numbers.
_COMPUTED_IN = {"f16": "f32", "bf16": "f32", "bool": "i32"}


def computing(dtype: str) -> str:
    """Returns the type in which values of `dtype` are computed."""
    return _COMPUTED_IN.get(dtype, dtype)


def scalar_name(dtype: str) -> str:
    """Returns nvFuser's type for a Python number that stands for a scalar of `dtype`."""
    kind = DTYPES[dtype]
    if kind.is_complex:
        return "ComplexDouble"
    if kind.is_floating_point:
        return "Double"
    return "Bool" if dtype == "bool" else "Int"


def common(tensors: list[tuple[str, bool]], numbers: list[bool | complex]) -> str:
    """Returns the type that torch combines operands in; a tensor is its dtype and whether it has dimensions."""
    values = [torch.empty((1,) if shaped else (), dtype=DTYPES[d], device="meta") for d, shaped in tensors]
    result = values[0]
    for other in (*values[1:], *numbers):
        shaped = result.dim() > 0 or (isinstance(other, torch.Tensor) and other.dim() > 0)
        dtype = torch.result_type(result, other)
        result = torch.empty((1,) if shaped else (), dtype=dtype, device="meta")
    return DTYPE_NAMES[result.dtype]


def as_number(value: bool | complex, dtype: str) -> bool | complex:
    """Returns a Python number in the category of `dtype`, since nvFuser types its constants by Python's types."""
    kind = DTYPES[dtype]
    if kind.is_complex:
        return complex(value)
    if isinstance(value, complex):
        return value.real
    if kind.is_floating_point:
        return float(value)
    return bool(value) if dtype == "bool" else int(value)
