"""Make `aten.copy(dst, src)` depend on what it depends on.

The result has `dst`'s type and `src`'s values. Where both types are the same it is a clone of `src`, and the operators that
made `dst`'s old values may be dead.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from fusion_core.alias import tensor_of
from fusion_core.passes.copying import copy_graph

aten = torch.ops.aten


def normalize_copies(graph: Graph) -> Graph:
    """Returns `graph` with a clone in place of each functional copy between equal types."""
    if not any(node.target is aten.copy.default for node in graph.nodes):
        return graph
    copied, _ = copy_graph(graph)
    for node in copied.nodes:
        if node.target is aten.copy.default and _is_clone(node, node.args[1]):
            node.target = aten.clone.default
            node.args = (node.args[1],)
            node.kwargs = {}
    return copied


def _is_clone(node: Node, source: object) -> bool:
    result = tensor_of(node)
    given = tensor_of(source) if isinstance(source, Node) else None
    if (
        result is None
        or given is None
        or result.layout is not torch.strided
        or given.layout is not torch.strided
    ):
        return False
    sizes = list(map(str, result.shape)) == list(map(str, given.shape))
    same = sizes and (result.dtype, result.device) == (given.dtype, given.device)
    return same and _strides_of_clone(given) == list(map(str, result.stride()))


def _strides_of_clone(tensor: torch.Tensor) -> list[str]:
    """A clone keeps dense strides; its fake tensor knows."""
    return list(map(str, tensor.clone().stride()))
