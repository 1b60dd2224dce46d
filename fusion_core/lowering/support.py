"""Can this node be part of a FusionProgram? A refusal is a value with its reason, which `explain` reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fusion_core.alias import tensor_of
from fusion_core.lowering.rows import CREATIONS, ROWS
from fusion_core.lowering.types import fake, layout_of, static_sizes

WHOLE_GRAPH = "the whole graph"  # stands for an operator where nothing of a graph could be compiled
MAX_RANK = 8  # nvFuser's limit
COMPUTED = frozenset(
    {
        torch.bool,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    }
)
ALLOCATIONS = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.new_empty_strided.default,
    }
)
# Operators whose fake results torch makes row-major for every operand.
MISFORETOLD = frozenset(
    {torch.ops.aten.floor_divide.default, torch.ops.aten.div.Tensor_mode, torch.ops.aten.div.Scalar_mode}
)
# Operators that are lowered for complex numbers too.
COMPLEX = frozenset(
    {
        getattr(getattr(torch.ops.aten, name), overload)
        for name in ("add", "sub", "mul", "div", "eq", "ne")
        for overload in ("Tensor", "Scalar")
    }
    | {
        getattr(torch.ops.aten, name).default
        for name in ("neg", "exp", "sin", "cos", "sqrt", "reciprocal", "addcmul")
    }
)


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Why an operator runs eager inside the plan, and where the user wrote it."""

    operator: str
    reason: str
    line: str


def refusal(node: Node, *, fuses_random: bool = False) -> Unsupported | None:
    """Returns None where the node can be lowered, else the reason why not."""
    row = ROWS.get(node.target)
    keeps = row is not None and row.kind == "random" and not fuses_random
    reason = 'draws eager\'s numbers (rng="eager")' if keeps else _reason(node)
    return Unsupported(str(node.target), reason, source_line(node)) if reason else None


def source_line(node: Node) -> str:
    """Returns `file.py:12` of the last user frame that made the node, or an empty string."""
    trace = node.meta.get("stack_trace") or ""
    frames = [line.strip() for line in trace.splitlines() if line.strip().startswith('File "')]
    if not frames:
        return ""
    file, _, rest = frames[-1][6:].partition('", line ')
    return f"{file.rsplit('/', 1)[-1]}:{rest.split(',')[0]}"


def _reason(node: Node) -> str:
    row = ROWS.get(node.target)
    if node.target is torch.ops.aten.copy_.default:
        return "a write into a view, or one that waits for readers of the old value"
    if node.target in ALLOCATIONS:
        return "memory without a value"
    if row is None:
        return "no lowering rule for this operator"
    result = tensor_of(node)
    if result is None:
        return "its result is no single tensor"
    if node.target in CREATIONS and not all(u.target in ROWS for u in node.users):
        return "a constant tensor that is needed as such"
    operands = [tensor_of(n) for n in node.all_input_nodes]
    if any(t is None for t in operands):
        return "a size or scalar is only known at run time"
    if row.kind == "positions":
        return _positions_reason(node)
    if row.kind == "constant" and 0 in result.shape:
        return "an empty tensor"
    if row.kind == "constant":
        return "" if result.dim() == 0 and result.dtype in COMPUTED else "a constant tensor with dimensions"
    tensors = [result, *(t for t in operands if t is not None)]
    return _tensor_reason(tensors) or _KINDS[row.kind](node) or _layout_reason(node)


def _tensor_reason(tensors: list[torch.Tensor]) -> str:
    result = tensors[0]
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return f"layout {tensor.layout} or a quantized dtype"
        if tensor.dtype not in COMPUTED:
            return f"dtype {str(tensor.dtype).removeprefix('torch.')}, which nvFuser does not have"
        if tensor.dim() > MAX_RANK:
            return f"rank {tensor.dim()} exceeds {MAX_RANK}"
        if tensor.is_conj() or tensor.is_neg():
            return "a lazy conj or neg bit"
        if tensor.device != result.device and not (tensor.dim() == 0 and tensor.device.type == "cpu"):
            return f"operands on {tensor.device} and {result.device}"
        if any(type(s) is int and s == 0 for s in tensor.shape):
            return "an empty tensor"
    if not any(t.device == result.device for t in tensors[1:]):
        return "no operand on the result's device"
    return ""


def _layout_reason(node: Node) -> str:
    """A tensor whose layout is not known even for the traced call."""
    return "" if layout_of(fake(node)) is not None else "its layout is only known at run time"


def _apply_reason(node: Node) -> str:
    values: list[Any] = [*node.args, *node.kwargs.values()]
    for value in values:
        if not isinstance(value, (Node, bool, int, float, complex, str, type(None))):
            return f"argument {value!r}"
    if _is_misforetold(node):
        return "its layout is only known at run time"
    if fake(node).dtype.is_complex or any(fake(n).dtype.is_complex for n in node.all_input_nodes):
        return "" if node.target in COMPLEX else "complex numbers"
    return ""


def _move_reason(node: Node) -> str:
    allowed = {"dtype", "memory_format", "layout", "device", "non_blocking", "pin_memory"}
    extra = [k for k, v in node.kwargs.items() if v and k not in allowed]
    if extra:
        return f"argument {extra[0]}"
    source = node.args[ROWS[node.target].operand]
    if not isinstance(source, Node):
        return "a copy of a number"
    operand = fake(source)
    if list(map(str, fake(node).shape)) != list(map(str, operand.shape)):
        return "a copy that broadcasts"
    return "a copy to another device" if operand.device != fake(node).device else ""


def _reduce_reason(node: Node) -> str:
    operand, result = fake(node.all_input_nodes[0]), fake(node)
    if operand.dim() == 0 and ROWS[node.target].name == "var":
        return "the variance of a tensor without dimensions"
    if operand.dtype.is_complex:
        return "complex numbers"
    correction = node.kwargs.get("correction")
    if correction is not None and (not isinstance(correction, (int, float)) or correction != int(correction)):
        return f"correction {correction}"
    if ROWS[node.target].name in ("amax", "amin") and result.dtype is torch.bool:
        return "the largest or smallest of booleans"
    return ""


def _view_reason(node: Node) -> str:
    if ROWS[node.target].name not in ("reshape", "expand"):
        return ""
    tensors = [fake(node), fake(node.all_input_nodes[0])]
    return "" if all(static_sizes(t) is not None for t in tensors) else "sizes only known at run time"


def _is_misforetold(node: Node) -> bool:
    """True where the fake result is row-major though the operator keeps its operands' layout."""
    if node.target not in MISFORETOLD:
        return False
    layouts = [layout_of(fake(n)) for n in node.all_input_nodes if fake(n).dim() > 1]
    return not all(layout is not None and layout.is_row_major for layout in layouts)


def _create_reason(node: Node) -> str:
    return "" if not fake(node).dtype.is_complex else "complex numbers"


def _positions_reason(node: Node) -> str:
    result = fake(node)
    known = static_sizes(result) not in (None, (0,)) and result.dtype is torch.int64
    return "" if known and len(node.args) == 1 else "a range whose size or type is not fixed"


def _random_reason(node: Node) -> str:
    return "" if fake(node).dtype.is_floating_point else "a random number that is no real number"


_KINDS = {
    "random": _random_reason,
    "create": _create_reason,
    "apply": _apply_reason,
    "identity": _move_reason,
    "convert": _move_reason,
    "reduce": _reduce_reason,
    "view": _view_reason,
    "alias": _view_reason,
}
