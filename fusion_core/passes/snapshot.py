"""Keep the old value of a written input that leaves the graph.

A graph output that is a written placeholder, or a view of one, means its value before the write: autograd saves it for
backward. Torch's own graphs return the placeholder itself, so that backward reads the new value.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Graph, Node

from fusion_core.alias import analyze
from fusion_core.passes.copying import copy_graph


def snapshot_outputs(graph: Graph, rebuilt: frozenset[int]) -> Graph:
    """Returns `graph` with a clone, taken before the write, in place of each such output.

    `rebuilt` are output positions that the host makes from the written input itself; they need no old value.
    """
    facts = analyze(graph)
    copied, new = copy_graph(graph)
    written = facts.written_inputs()
    output = copied.output_node()
    values = list(output.args[0])  # type: ignore[arg-type]
    clones: dict[Node, Node] = {}
    for position, old in enumerate(graph.output_node().args[0]):  # type: ignore[arg-type]
        if isinstance(old, Node) and position not in rebuilt and _is_overwritten(old, facts.storage, written):
            if old not in clones:
                clones[old] = _clone_before(copied, new[old], new[written[facts.storage[old]]])
            values[position] = clones[old]
    output.args = (tuple(values),)
    for node in copied.nodes:
        if node.target is torch.ops.aten.copy_.default and node.users:
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
    found: Node = next(n for n in graph.nodes if n.target is torch.ops.aten.copy_.default or n is writer)
    return found
