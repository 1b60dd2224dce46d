"""Keep the old value of a written input that leaves the graph.

A graph output that is a written placeholder, or a view of one, means its value before the write: autograd saves it for
backward. Torch's own graphs return the placeholder itself, so that backward reads the new value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph, Node

from fusion_core.alias import AliasFacts
from fusion_core.passes.copying import copy_graph

COPY_ = torch.ops.aten.copy_.default


def snapshot_outputs(graph: Graph, facts: AliasFacts, rebuilt: frozenset[int]) -> Graph:
    """Returns `graph` with a clone, taken before the write, in place of each such output.

    `rebuilt` are output positions that the host makes from the written input itself; they need no old value.
    """
    written = facts.written_inputs()
    outputs: tuple[Any, ...] = tuple(graph.output_node().args[0])  # type: ignore[arg-type]
    stale = [
        position
        for position, value in enumerate(outputs)
        if isinstance(value, Node)
        and position not in rebuilt
        and _is_overwritten(value, facts.storage, written)
    ]
    if not stale and not any(node.target is COPY_ and node.users for node in graph.nodes):
        return graph
    copied, new = copy_graph(graph)
    values = list(copied.output_node().args[0])  # type: ignore[arg-type]
    clones: dict[Node, Node] = {}
    for position in stale:
        old = outputs[position]
        if old not in clones:
            clones[old] = _clone_before(copied, new[old], new[written[facts.storage[old]]])
        values[position] = clones[old]
    copied.output_node().args = (tuple(values),)
    for node in copied.nodes:
        if node.target is COPY_ and node.users:
            node.replace_all_uses_with(node.args[0])  # its result is its target
    return copied


def _is_overwritten(node: Node, storage: Mapping[Node, int | str], written: Mapping[int | str, Node]) -> bool:
    writer = written.get(storage[node])
    return writer is not None and writer is not node and node.op in ("placeholder", "call_function")


def _clone_before(graph: Graph, node: Node, writer: Node) -> Node:
    with graph.inserting_before(_first_write(graph, writer)):
        clone = graph.call_function(torch.ops.aten.clone.default, (node,))
    clone.meta = {"val": node.meta["val"].clone(), "stack_trace": writer.meta.get("stack_trace")}
    return clone


def _first_write(graph: Graph, writer: Node) -> Node:
    """The clone goes right before the first copy of the epilogue: every view of the old value exists there."""
    found: Node = next(n for n in graph.nodes if n.target is COPY_ or n is writer)
    return found
