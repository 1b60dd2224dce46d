"""Copies of graphs, in the same or another node order, with their metadata."""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Graph, Node


def copy_graph(graph: Graph, order: Iterable[Node] | None = None) -> tuple[Graph, dict[Node, Node]]:
    """Returns a copy of `graph` and the map from old to new nodes; `order` gives the nodes to copy, in a legal order."""
    copied = Graph()
    new: dict[Node, Node] = {}
    for node in order if order is not None else graph.nodes:
        new[node] = copied.node_copy(node, new.__getitem__)
    return copied, new
