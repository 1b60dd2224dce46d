"""Why a plan cannot be recorded as a CUDA graph, or is not without being asked; an empty reason means that it can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from fusion_core.alias import is_free

aten = torch.ops.aten

# A step costs the host about 15 us, a replay of any number of them as much, and a recording milliseconds and memory.
FEWEST_STEPS = 16
_ON_HOST_FOR_GOOD = frozenset({aten.full.default, aten.scalar_tensor.default})


def obstacle(
    graph: Graph, kind: str, *, steps: int, asked: bool, rebuilt: frozenset[int] = frozenset()
) -> str:
    """Returns why no recording of `graph` is made, or an empty string.

    What is recorded must do the same work at every call: nothing is read by the host, nothing decides sizes. Without being
    asked, only plans are recorded that return nothing but their own inputs: nothing that they return can go stale. Outputs
    at `rebuilt` positions are made from inputs by the host.
    """
    reason = _unrecordable(graph)
    if reason or asked:
        return reason
    returned = graph.output_node().args[0]
    assert isinstance(returned, (tuple, list))
    if kind != "inference":
        return f"the {kind} graph of a training step is replayed with graphs=True only"
    new = (v for i, v in enumerate(returned) if isinstance(v, Node) and i not in rebuilt)
    if any(value.op != "placeholder" for value in new):
        return "it returns new tensors; it is replayed with graphs=True only"
    if steps < FEWEST_STEPS:
        return f"it has {steps} step(s), which a replay would not speed up"
    return _unknown(graph)


def _unrecordable(graph: Graph) -> str:
    devices = set()
    for node in graph.nodes:
        if "unbacked_bindings" in node.meta or _is_data_dependent(node):
            return f"the host needs the result of {node.target}"
        for tensor in _tensors(node.meta.get("val")):
            if tensor.device.type == "cuda":
                devices.add(tensor.device)
            elif node.target not in _ON_HOST_FOR_GOOD:
                what = (
                    f"the input {node.name}" if node.op in ("placeholder", "get_attr") else str(node.target)
                )
                return f"{what} is on {tensor.device}"
    if len(devices) == 1:
        return ""
    return "it uses several devices" if devices else "it computes nothing on a CUDA device"


def _unknown(graph: Graph) -> str:
    """An operator of somebody else may do anything on the host."""
    for node in graph.nodes:
        if node.op != "call_function" or is_free(node):
            continue
        if not isinstance(node.target, OpOverload) or node.target.namespace not in ("aten", "prims"):
            return f"what {node.target} does on the host is not known"
    return ""


def _is_data_dependent(node: Node) -> bool:
    if node.target is aten.index.Tensor:  # only masks decide sizes
        indices = (i.meta.get("val") for i in node.all_input_nodes[1:])
        return any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(list(indices)))
    return _has_tag(node, "data_dependent_output", "dynamic_output_shape")


def _has_tag(node: Node, *names: str) -> bool:
    tags = getattr(node.target, "tags", ())
    return any(getattr(torch.Tag, name) in tags for name in names)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
