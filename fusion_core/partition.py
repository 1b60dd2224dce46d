"""Graph and facts in, steps out: fused components and eager nodes in a legal order. Pure.

Every node gets a stage: fused nodes an even one, eager nodes an odd one, each as early as data and order edges allow. Fused
nodes of one stage form a region, which is acyclic by construction; a region splits into connected components.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from fusion_core.alias import AliasFacts, tensor_of

COPY_ = torch.ops.aten.copy_.default


@dataclass(frozen=True, slots=True)
class Component:
    """Nodes that become one FusionProgram.

    `nodes` are in order; those not in `own` are scalars recomputed here and owned by another component. `writes` are the
    `copy_` nodes whose source is computed here and that may be done by the program itself. `region` are all nodes of the
    stage.
    """

    stage: int
    region: frozenset[Node]
    nodes: tuple[Node, ...]
    own: frozenset[Node]
    writes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """Steps in a legal order. Components of one stage are independent of each other."""

    steps: tuple[Component | Node, ...]


def partition(graph: Graph, facts: AliasFacts, fusible: frozenset[Node]) -> Partition:
    """Returns the steps of `graph`; `fusible` are the nodes that can be lowered, among them no `copy_`."""
    calls = [n for n in graph.nodes if n.op == "call_function"]
    writes = {c for c in calls if _is_fused_write(c, fusible)}
    spread = _spread_sources(calls, fusible, writes)
    stages = _earliest_stages(calls, facts, fusible, writes, spread)
    while late := {c for c in writes if stages[c] != stages[c.args[1]]}:
        writes -= late  # the old value is read after the region: an eager copy follows that reader
        stages = _earliest_stages(calls, facts, fusible, writes, spread)
    stages = _sink(calls, facts, fusible, writes, spread, stages)
    return Partition(tuple(_steps(calls, facts, fusible, writes, stages)))


def _is_fused_write(node: Node, fusible: frozenset[Node]) -> bool:
    return node.target is COPY_ and node.args[1] in fusible and node.args[0].op == "placeholder"  # type: ignore[union-attr]


def _shape(node: Node) -> tuple[str, ...]:
    tensor = tensor_of(node)
    return () if tensor is None else tuple(map(str, tensor.shape))


def _spread_sources(calls: list[Node], fusible: frozenset[Node], writes: set[Node]) -> set[Node]:
    """Returns written values that fused operators broadcast to another shape.

    In one kernel, a thread could read the input at an index that another thread has already overwritten. The readers of
    such a value go to a later stage, where they read the written input.
    """
    spread: set[Node] = set()
    for node in reversed(calls):
        for user in node.users:
            if node in fusible and user in fusible and (_shape(user) != _shape(node) or user in spread):
                spread.add(node)
    return {c.args[1] for c in writes if c.args[1] in spread}  # type: ignore[misc]


def _earliest_stages(
    calls: list[Node], facts: AliasFacts, fusible: frozenset[Node], writes: set[Node], spread: set[Node]
) -> dict[Node, int]:
    stages: dict[Node, int] = {}
    write_of = {c.args[1]: c for c in writes}
    for node in calls:
        fused = node in fusible or node in writes
        stage = 0 if fused else -1
        for needed in (*node.all_input_nodes, *facts.before[node]):
            if needed in stages:
                same_kind = fused == (needed in fusible or needed in writes)
                stage = max(stage, stages[needed] + (0 if same_kind else 1))
            copy = write_of.get(needed)
            if fused and needed in spread and copy is not node and copy in stages:
                stage = max(stage, stages[copy] + 2)
        stages[node] = stage
    return stages


def _sink(
    calls: list[Node],
    facts: AliasFacts,
    fusible: frozenset[Node],
    writes: set[Node],
    spread: set[Node],
    stages: dict[Node, int],
) -> dict[Node, int]:
    """Moves fused nodes to the stage of their readers where all of them are later, so that both fuse."""
    sunk = dict(stages)
    after: dict[Node, list[Node]] = {}
    for node in calls:
        for needed in facts.before[node]:
            after.setdefault(needed, []).append(node)
    write_of = {c.args[1]: c for c in writes}
    for node in reversed(calls):
        copy = write_of.get(node)
        readers = [u for u in node.users if u is not copy and u.op == "call_function"]
        if (
            node not in fusible
            or node in spread
            or not readers
            or len(readers) < len(node.users) - (copy is not None)
        ):
            continue
        followers = [*readers, *after.get(node, ()), *(after.get(copy, ()) if copy is not None else ())]
        bounds = [sunk[f] - (0 if f in fusible or f in writes else 1) for f in followers if f is not copy]
        target = min(bounds)
        if target > sunk[node]:
            sunk[node] = target
            if copy is not None:
                sunk[copy] = target
    return sunk


def _steps(
    calls: list[Node], facts: AliasFacts, fusible: frozenset[Node], writes: set[Node], stages: dict[Node, int]
) -> Iterator[Component | Node]:
    by_stage: dict[int, list[Node]] = {}
    for node in calls:
        by_stage.setdefault(stages[node], []).append(node)
    for stage in sorted(by_stage):
        members = by_stage[stage]
        eager = [n for n in members if n not in fusible and n not in writes]
        if len(eager) == len(members):
            yield from eager
        else:
            yield from _components(stage, members, facts, writes)


def _components(stage: int, members: list[Node], facts: AliasFacts, writes: set[Node]) -> Iterator[Component]:
    """Splits a region. Scalars (0-d) shared by several components connect nothing: each recomputes what it needs."""
    position = {n: index for index, n in enumerate(members)}
    inside = frozenset(members)
    shared = _recomputable_scalars(members, inside, facts, writes)
    root = {n: n for n in members}

    def find(node: Node) -> Node:
        while root[node] is not node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for node in members:
        for needed in (*node.all_input_nodes, *facts.before[node]):
            recomputed = needed in shared and node not in shared and node not in writes
            if needed in inside and not recomputed:
                root[find(needed)] = find(node)
    groups: dict[Node, list[Node]] = {}
    for node in members:
        groups.setdefault(find(node), []).append(node)
    for group in groups.values():
        own = frozenset(n for n in group if n not in writes)
        if own and own <= shared and not _has_leaf(own, inside):
            continue  # every reader recomputes it
        nodes = sorted(own | _pulled(own, inside & shared), key=position.__getitem__)
        yield Component(stage, inside, tuple(nodes), own, tuple(c for c in group if c in writes))


def _recomputable_scalars(
    members: list[Node], inside: frozenset[Node], facts: AliasFacts, writes: set[Node]
) -> set[Node]:
    """Returns the 0-d nodes that read nothing that this region writes, directly or through other such nodes."""
    written = {cls for c in writes & inside for cls in facts.effects[c].writes}
    safe: set[Node] = set()
    for node in members:
        if node in writes or _shape(node) != ():
            continue
        reads_written = any(cls in written for cls in facts.effects[node].reads)
        depends = [n for n in node.all_input_nodes if n in inside]
        if not reads_written and all(n in safe for n in depends):
            safe.add(node)
    return safe


def _pulled(own: frozenset[Node], recomputable: frozenset[Node]) -> frozenset[Node]:
    """Returns the scalars of other components that `own` needs, directly or through each other."""
    pulled: set[Node] = set()
    stack = list(own)
    while stack:
        needed = [
            n for n in stack.pop().all_input_nodes if n in recomputable and n not in own and n not in pulled
        ]
        pulled.update(needed)
        stack += needed
    return frozenset(pulled)


def _has_leaf(own: frozenset[Node], inside: frozenset[Node]) -> bool:
    """True if some value is needed outside the region, or written."""
    return any(u not in inside or u.target is COPY_ for n in own for u in n.users)
