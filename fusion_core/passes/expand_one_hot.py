"""Pick one element along a dimension by comparing positions, so that picking fuses with what surrounds it.

A cross entropy takes one logit of each row, and its gradient puts one number into each row. As a library call each of them
would read or write the whole tensor once more. Compared with positions, `gather` is the largest of one and `scatter` a
choice between two numbers. Where an index is out of bounds, eager stops the device; here the result is not a number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from fusion_core.alias import tensor_of
from fusion_core.passes.copying import copy_graph

aten = torch.ops.aten


def expand_one_hot(graph: Graph, devices: frozenset[str] = frozenset({"cuda"})) -> Graph:
    """Returns `graph` with every pick of one element a row, on these kinds of devices, in terms of positions.

    On a host, eager's kernels report a bad index as an error, and stay.
    """
    picks = [n for n in graph.nodes if _is_pick(n, devices)]
    if not picks:
        return graph
    copied, new = copy_graph(graph)
    for pick in picks:
        _expand(copied, new[pick])
    return copied


def _is_pick(node: Node, devices: frozenset[str]) -> bool:
    if node.target not in (aten.gather.default, aten.scatter.value) or "reduce" in node.kwargs:
        return False
    source, index = tensor_of(node.args[0]), tensor_of(node.args[2])  # type: ignore[arg-type]
    if source is None or index is None or source.dim() == 0 or source.device.type not in devices:
        return False
    dim = int(node.args[1]) % source.dim()  # type: ignore[arg-type]
    expected = [1 if d == dim else size for d, size in enumerate(source.shape)]
    static = all(type(size) is int and size > 0 for size in (*source.shape, *index.shape))
    is_zero = node.target is aten.gather.default or _is_zeros(node.args[0])
    return static and list(index.shape) == expected and source.dtype.is_floating_point and is_zero


def _is_zeros(node: Any) -> bool:
    is_full = node.target is aten.full.default and node.args[1] == 0
    return node.target is aten.zeros_like.default or is_full or node.target is aten.zeros.default


def _expand(graph: Graph, node: Node) -> None:
    """Replaces one pick by the operators that do the same, with the source line of the original."""
    source, index = node.args[0], node.args[2]
    assert isinstance(source, Node)
    assert isinstance(index, Node)
    shape = source.meta["val"].shape
    dim = int(node.args[1]) % len(shape)  # type: ignore[arg-type]
    size, emit = shape[dim], _Emitter(graph, node)
    with graph.inserting_before(node):
        places = emit(aten.arange.default, size, device=source.meta["val"].device)
        for d in [d for d in range(len(shape)) if d != dim]:
            places = emit(aten.unsqueeze.default, places, d)
        here = emit(aten.eq.Tensor, places, index)
        outside = emit(
            aten.logical_or.default, emit(aten.lt.Scalar, index, 0), emit(aten.ge.Scalar, index, size)
        )
        if node.target is aten.gather.default:
            chosen = emit(aten.where.self, here, source, emit.number(-float("inf")))
            value = emit(aten.amax.default, chosen, [dim], True)  # unlike a sum, it keeps the sign of zero
        else:
            value = emit(aten.where.self, here, emit.number(node.args[3]), emit.number(0.0))
        result = emit(aten.where.self, outside, emit.number(float("nan")), value)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


class _Emitter:
    """Adds operators at the insertion point, with fake values of their own."""

    def __init__(self, graph: Graph, like: Node) -> None:
        self._graph = graph
        self._like = like

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        node = self._graph.call_function(target, args, kwargs)
        given, named = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        value = self._like.meta["val"]
        with value.fake_mode:
            node.meta = {"val": target(*given, **named), "stack_trace": self._like.meta.get("stack_trace")}
        return node

    def number(self, value: Any) -> Node:
        """Returns a scalar of the picked values' type."""
        like = self._like.meta["val"]
        return self(aten.scalar_tensor.default, value, dtype=like.dtype, device=like.device)
