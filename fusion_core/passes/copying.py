"""Copies of graphs, in the same or another node order, with their metadata."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from torch.fx import Graph, Node

from fusion_core.alias import AliasFacts


def copy_graph(graph: Graph, order: Iterable[Node] | None = None) -> tuple[Graph, dict[Node, Node]]:
    """Returns a copy of `graph` and the map from old to new nodes; `order` gives the nodes to copy, in a legal order."""
    copied = Graph()
    new: dict[Node, Node] = {}
    for node in order if order is not None else graph.nodes:
        new[node] = copied.node_copy(node, new.__getitem__)
    return copied, new


def sorted_nodes(graph: Graph, facts: AliasFacts, later: list[tuple[Node, Node]]) -> list[Node] | None:
    """Returns the nodes in an order that also obeys the pairs (earlier, later), or None where there is none.

    Among the legal orders it is the one nearest to the graph's own.
    """
    nodes = list(graph.nodes)
    position = {node: index for index, node in enumerate(nodes)}
    needs = {n: {*n.all_input_nodes, *facts.before[n]} for n in nodes}
    for earlier, node in later:
        needs[node].add(earlier)
    followers: dict[Node, list[Node]] = {n: [] for n in nodes}
    for node, needed in needs.items():
        for other in needed:
            followers[other].append(node)
    ready = [position[n] for n in nodes if not needs[n]]
    order: list[Node] = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        order.append(node)
        for follower in followers[node]:
            needs[follower].discard(node)
            if not needs[follower]:
                heapq.heappush(ready, position[follower])
    return order if len(order) == len(nodes) else None
