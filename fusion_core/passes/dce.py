"""Remove operators whose results nobody uses and that do nothing else."""

from __future__ import annotations

from torch.fx import Graph, Node

from fusion_core.alias import AliasFacts
from fusion_core.passes.copying import copy_graph


def remove_dead_code(graph: Graph, facts: AliasFacts) -> Graph:
    """Returns `graph` without unused operators; writes, random draws and unknown effects stay."""
    alive: set[Node] = set()
    for node in reversed(graph.nodes):
        mine = facts.effects[node]
        is_needed = node.op not in ("call_function", "get_attr") or mine.writes or mine.barrier
        if is_needed or not alive.isdisjoint(node.users):
            alive.add(node)
    if len(alive) == len(graph.nodes):
        return graph
    return copy_graph(graph, (n for n in graph.nodes if n in alive))[0]
