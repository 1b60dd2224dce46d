"""Graph and facts in, steps out: fused components and eager nodes in a legal order. Pure.

Every node gets a stage: fused nodes an even one, eager nodes an odd one, each as early as data and order edges allow. Fused
nodes of one stage form a region, which is acyclic by construction; a region splits into connected components.

Views move no data and have no stage. A component takes the views that it reads into itself where its program can express
them; everyone else reads a view that the host makes, after the node whose memory it shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from fusion_core.alias import AliasFacts, is_free, tensor_of
from fusion_core.components import Component, Region, components

COPY_ = torch.ops.aten.copy_.default


@dataclass(frozen=True, slots=True)
class Partition:
    """Steps in a legal order. Components of one stage are independent of each other; views may turn out unread."""

    steps: tuple[Component | Node, ...]


@dataclass(frozen=True, slots=True)
class Kinds:
    """What may be done with each node: computed in a program, taken into a program as a view; the rest runs eager."""

    fusible: frozenset[Node]
    views: frozenset[Node]


@dataclass(frozen=True, slots=True)
class _Edge:
    """A needed node. `host`: between them is a view that only the host can make; `moved`: some view is between them."""

    node: Node
    host: bool
    moved: bool


def partition(graph: Graph, facts: AliasFacts, kinds: Kinds) -> Partition:
    """Returns the steps of `graph`; no `copy_` is among the fusible nodes."""
    return _Partitioner(graph, facts, kinds).partition()


class _Partitioner:
    """The edges of one graph and the stages under construction; used once."""

    def __init__(self, graph: Graph, facts: AliasFacts, kinds: Kinds) -> None:
        self._graph = graph
        self._facts = facts
        self._kinds = kinds
        self._position = {n: i for i, n in enumerate(graph.nodes)}
        calls = [n for n in graph.nodes if n.op == "call_function"]
        self._free = {n for n in calls if is_free(n)}
        self._calls = [n for n in calls if n not in self._free]
        self._needs = {n: [self._edge(m) for m in n.all_input_nodes] for n in self._calls}
        self._before = {n: [self._edge(m).node for m in facts.before[n]] for n in self._calls}
        self._readers = self._invert()
        self._writes = {c for c in self._calls if self._is_fused_write(c)}
        self._spread: set[Node] = set()

    def partition(self) -> Partition:
        self._spread = self._spread_sources()
        stages = self._earliest_stages()
        while late := {c for c in self._writes if stages[c] != stages[_source(c)]}:
            self._writes -= late  # the old value is read after the region: an eager copy follows that reader
            self._spread = self._spread_sources()
            stages = self._earliest_stages()
        return Partition(tuple(self._steps(self._sink(stages))))

    def _edge(self, node: Node) -> _Edge:
        host = moved = False
        while node in self._free:
            host |= node not in self._kinds.views
            moved = True
            tensors = [n for n in node.all_input_nodes if n.meta.get("val") is not None and _is_source(n)]
            if not tensors:
                break
            node = tensors[0]
        return _Edge(node, host, moved)

    def _invert(self) -> dict[Node, list[tuple[Node, _Edge]]]:
        readers: dict[Node, list[tuple[Node, _Edge]]] = {n: [] for n in self._graph.nodes}
        for node, edges in self._needs.items():
            for edge in edges:
                readers[edge.node].append((node, edge))
        output = self._graph.output_node()
        for node in output.all_input_nodes:
            edge = self._edge(node)
            readers[edge.node].append((output, edge))
        return readers

    def _is_fused_write(self, node: Node) -> bool:
        if node.target is not COPY_:
            return False
        target, source = node.args[0], node.args[1]
        return isinstance(target, Node) and target.op == "placeholder" and source in self._kinds.fusible

    def _is_fused(self, node: Node) -> bool:
        return node in self._kinds.fusible or node in self._writes

    def _spread_sources(self) -> set[Node]:
        """Returns written values that fused operators read at other indices than their own.

        In one kernel, a thread could read the input at an index that another thread has already overwritten. The readers of
        such a value go to a later stage, where they read the written input.
        """
        spread: set[Node] = set()
        for node in reversed(self._calls):
            for user, edge in self._readers[node]:
                fused = node in self._kinds.fusible and user in self._kinds.fusible
                if fused and (edge.moved or _shape(user) != _shape(node) or user in spread):
                    spread.add(node)
        return {_source(c) for c in self._writes} & spread

    def _earliest_stages(self) -> dict[Node, int]:
        stages: dict[Node, int] = {}
        write_of = {_source(c): c for c in self._writes}
        for node in self._calls:
            fused = self._is_fused(node)
            stage = 0 if fused else -1
            needed = [(e.node, e.host) for e in self._needs[node]]
            needed += [
                (b, b in self._writes) for b in self._before[node]
            ]  # it reads what a launch has written
            for source, host in needed:
                if source in stages:
                    same_kind = fused == self._is_fused(source)
                    stage = max(stage, stages[source] + ((2 if host and fused else 0) if same_kind else 1))
                copy = write_of.get(source)
                if fused and source in self._spread and copy is not node and copy in stages:
                    stage = max(stage, stages[copy] + 2)
            stages[node] = stage
        return stages

    def _sink(self, stages: dict[Node, int]) -> dict[Node, int]:
        """Moves fused nodes to the stage of their readers where all of them are later, so that both fuse."""
        sunk = dict(stages)
        after: dict[Node, list[Node]] = {}
        for node in self._calls:
            for needed in self._before[node]:
                after.setdefault(needed, []).append(node)
        write_of = {_source(c): c for c in self._writes}
        for node in reversed(self._calls):
            copy = write_of.get(node)
            readers = [(u, e) for u, e in self._readers[node] if u is not copy]
            if node not in self._kinds.fusible or node in self._spread or not readers:
                continue
            if any(u.op == "output" for u, _ in readers):
                continue
            followers = [(u, e.host) for u, e in readers] + [(u, False) for u in after.get(node, ())]
            followers += [(u, True) for u in after.get(copy, ())] if copy is not None else []
            bounds = [
                sunk[f] - ((2 if host else 0) if self._is_fused(f) else 1)
                for f, host in followers
                if f is not copy
            ]
            target = min(bounds)
            if target > sunk[node]:
                sunk[node] = target
                if copy is not None:
                    sunk[copy] = target
        return sunk

    def _steps(self, stages: dict[Node, int]) -> Iterator[Component | Node]:
        by_stage: dict[int, list[Node]] = {}
        for node in self._calls:
            by_stage.setdefault(stages[node], []).append(node)
        waiting = [n for n in self._graph.nodes if n in self._free]
        done: set[Node] = {n for n in self._graph.nodes if n.op in ("placeholder", "get_attr")}
        yield from self._ready_views(waiting, done)
        for stage in sorted(by_stage):
            members = by_stage[stage]
            if any(self._is_fused(n) for n in members):
                yield from components(self._region(stage, members, stages))
                done.update(members)
                yield from self._ready_views(waiting, done)
                continue
            for node in members:
                yield node
                done.add(node)
                yield from self._ready_views(waiting, done)

    def _ready_views(self, waiting: list[Node], done: set[Node]) -> Iterator[Node]:
        """Takes from `waiting` the views whose memory exists; they are in graph order, so a view precedes its views."""
        left: list[Node] = []
        for node in waiting:
            if all(n in done for n in node.all_input_nodes):
                done.add(node)
                yield node
            else:
                left.append(node)
        waiting[:] = left

    def _region(self, stage: int, members: list[Node], stages: dict[Node, int]) -> Region:
        inside = frozenset(members)
        leaving = {
            n
            for n in members
            for user, edge in self._readers[n]
            if user not in inside or edge.host or stages.get(user) != stage
        }
        return Region(
            stage=stage,
            members=tuple(members),
            writes=frozenset(self._writes & inside),
            needs={n: tuple(e.node for e in self._needs[n]) for n in members},
            before={n: tuple(b for b in self._before[n] if b in inside) for n in members},
            views=self._kinds.views,
            leaving=frozenset(leaving - self._writes),
            effects=self._facts.effects,
            position=self._position,
        )


def _is_source(node: Node) -> bool:
    """True for values that can be the memory behind a view: tensors, and lists and tuples of tensors."""
    return isinstance(node.meta.get("val"), (torch.Tensor, list, tuple))


def _shape(node: Node) -> tuple[str, ...]:
    tensor = tensor_of(node)
    return () if tensor is None else tuple(map(str, tensor.shape))


def _source(copy: Node) -> Node:
    source = copy.args[1]
    assert isinstance(source, Node)
    return source
