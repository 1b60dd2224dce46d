"""Move each write into an input to the first point at which nobody needs the old value any more.

AOTAutograd puts all `copy_` nodes at the end, so that new and old value of every input live through the whole graph.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from fusion_core.alias import AliasFacts
from fusion_core.passes.copying import copy_graph


def hoist_copies(graph: Graph, facts: AliasFacts) -> Graph:
    """Returns `graph` in an order in which each `copy_` follows its source and the last reader of the old value."""
    position = {node: index for index, node in enumerate(graph.nodes)}
    copies = [n for n in graph.nodes if n.target is torch.ops.aten.copy_.default]
    order: dict[Node, None] = {n: None for n in graph.nodes if n.op == "placeholder"}
    for copy in sorted(copies, key=lambda c: max(position[n] for n in c.all_input_nodes)):
        for node in sorted(_needed(copy, facts, order), key=position.__getitem__):
            order[node] = None
    for node in graph.nodes:
        order.setdefault(node)
    return graph if list(order) == list(graph.nodes) else copy_graph(graph, order)[0]


def _needed(node: Node, facts: AliasFacts, done: dict[Node, None]) -> set[Node]:
    """Returns `node` and all that must run before it and has not been placed."""
    needed: set[Node] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current in done or current in needed:
            continue
        needed.add(current)
        stack += [*current.all_input_nodes, *facts.before[current]]
    return needed
