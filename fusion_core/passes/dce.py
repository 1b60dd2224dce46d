"""Remove operators whose results nobody uses and that do nothing else."""

from __future__ import annotations

from torch.fx import Graph

from fusion_core.alias import analyze
from fusion_core.passes.copying import copy_graph


def remove_dead_code(graph: Graph) -> Graph:
    """Returns `graph` without unused operators; writes, random draws and unknown effects stay."""
    copied, _ = copy_graph(graph)
    effects = analyze(copied).effects
    for node in reversed(list(copied.nodes)):
        mine = effects[node]
        if (
            node.op in ("call_function", "get_attr")
            and not node.users
            and not mine.writes
            and not mine.barrier
        ):
            copied.erase_node(node)
    return copied
