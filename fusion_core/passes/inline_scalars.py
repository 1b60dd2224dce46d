"""Numbers that a traced program holds as tensors become numbers again, part of the kernels that use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from fusion_core.passes.copying import copy_graph

aten = torch.ops.aten
_CONVERSIONS = frozenset({aten._to_copy.default, torch.ops.prims.convert_element_type.default})


def inline_scalars(graph: Graph, attribute: Callable[[str], Any]) -> Graph:
    """Returns `graph` with `torch.tensor(2.0)` as a constant: a fresh copy of an attribute without dimensions.

    A conversion of such a constant to another dtype or device is done here and now. `attribute` returns what a
    `get_attr` node stands for.
    """
    values = _values(graph, attribute)
    if not values:
        return graph
    copied, new = copy_graph(graph)
    for node, value in values.items():
        replaced = new[node]
        result = node.meta["val"]
        with copied.inserting_before(replaced):
            constant = copied.call_function(
                aten.full.default, ([], value), {"dtype": result.dtype, "device": result.device}
            )
        constant.meta = dict(replaced.meta)
        replaced.replace_all_uses_with(constant)
    for node in reversed(values):
        copied.erase_node(new[node])
    return copied


def _values(graph: Graph, attribute: Callable[[str], Any]) -> dict[Node, Any]:
    """Returns the nodes that are constants, with their numbers, in the order of the graph."""
    known: dict[Node, torch.Tensor] = {}
    for node in graph.nodes:
        source = node.args[0] if node.args else None
        if not isinstance(source, Node) or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        if node.target is aten.lift_fresh_copy.default and source.op == "get_attr":
            value = attribute(str(source.target))
            if _is_number(value):
                known[node] = value
        elif node.target in _CONVERSIONS and source in known:
            known[node] = known[source].to(node.meta["val"].dtype)
    return {node: value.item() for node, value in known.items()}


def _is_number(value: object) -> bool:
    plain = type(value) is torch.Tensor and value.dim() == 0 and value.device.type == "cpu"
    return plain and not value.dtype.is_complex and not value.requires_grad  # type: ignore[attr-defined]
