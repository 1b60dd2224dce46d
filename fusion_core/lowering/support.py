"""Can this node be part of a FusionProgram? A refusal is a value with its reason, which `explain` reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fusion_core.alias import tensor_of
from fusion_core.lowering.pointwise import CREATIONS, ROWS
from fusion_core.lowering.types import fake, same_layout, static_strides

MAX_RANK = 8  # nvFuser's limit


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Why an operator runs eager inside the plan, and where the user wrote it."""

    operator: str
    reason: str
    line: str


def refusal(node: Node) -> Unsupported | None:
    """Returns None where the node can be lowered, else the reason why not."""
    reason = _reason(node)
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
    tensors = [result, *(t for t in operands if t is not None)]
    return _tensor_reason(tensors) or _argument_reason(node, row.kind) or _layout_reason(node, row.kind)


def _tensor_reason(tensors: list[torch.Tensor]) -> str:
    result = tensors[0]
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return f"layout {tensor.layout} or a quantized dtype"
        if tensor.dim() > MAX_RANK:
            return f"rank {tensor.dim()} exceeds {MAX_RANK}"
        if tensor.is_conj() or tensor.is_neg():
            return "a lazy conj or neg bit"
        if tensor.device != result.device and not (tensor.dim() == 0 and tensor.device.type == "cpu"):
            return f"operands on {tensor.device} and {result.device}"
    if any(type(s) is int and s == 0 for s in result.shape):
        return "an empty tensor"
    if not any(t.device == result.device for t in tensors[1:]):
        return "no operand on the result's device"
    return ""


def _layout_reason(node: Node, kind: str) -> str:
    """A copy into another layout needs sizes; pointwise operators make eager's layout by themselves."""
    result, operand = fake(node), fake(node.all_input_nodes[-1])
    if kind != "apply" and list(map(str, result.shape)) != list(map(str, operand.shape)):
        return "a copy that broadcasts"
    if kind == "apply" or static_strides(result) is not None or same_layout(result, operand):
        return ""
    return "its layout is only known at run time"


def _argument_reason(node: Node, kind: str) -> str:
    if kind != "apply":
        allowed = {"dtype", "memory_format", "layout", "device", "non_blocking", "pin_memory"}
        extra = [k for k, v in node.kwargs.items() if v and k not in allowed]
        return f"argument {extra[0]}" if extra else ""
    values: list[Any] = [*node.args, *node.kwargs.values()]
    for value in values:
        if not isinstance(value, (Node, bool, int, float, complex, str, type(None))):
            return f"argument {value!r}"
    return ""
