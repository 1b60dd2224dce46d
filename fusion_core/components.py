"""A region splits into connected components, each of which becomes one program. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch.fx import Node

from fusion_core.alias import Effects, tensor_of


@dataclass(frozen=True, slots=True)
class Region:
    """The fused nodes of one stage in graph order, with their edges (`needs` looks through views).

    `views` can be part of a program; `leaving` are the members that are read outside the region.
    """

    stage: int
    members: tuple[Node, ...]
    writes: frozenset[Node]
    needs: Mapping[Node, tuple[Node, ...]]
    before: Mapping[Node, tuple[Node, ...]]
    views: frozenset[Node]
    leaving: frozenset[Node]
    effects: Mapping[Node, Effects]
    position: Mapping[Node, int]


@dataclass(frozen=True, slots=True)
class Component:
    """Nodes that become one FusionProgram.

    `nodes` are in order; those not in `own` are views of what is computed here, and scalars that are owned by another
    component and recomputed here. `leading` are views of the component's inputs, in order. `writes` are the `copy_` nodes
    whose source is computed here and that may be done by the program itself. `leaving` are own nodes that others read.
    """

    stage: int
    nodes: tuple[Node, ...]
    own: frozenset[Node]
    leading: tuple[Node, ...]
    writes: tuple[Node, ...]
    leaving: frozenset[Node]


def components(region: Region) -> Iterator[Component]:
    """Splits a region. Scalars (0-d) shared by several components connect nothing: each recomputes what it needs."""
    inside = frozenset(region.members)
    shared = _recomputable_scalars(region, inside)
    root = {n: n for n in region.members}

    def find(node: Node) -> Node:
        while root[node] is not node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for node in region.members:
        for needed in (*region.needs[node], *region.before[node]):
            recomputed = needed in shared and node not in shared and node not in region.writes
            if needed in inside and not recomputed:
                root[find(needed)] = find(node)
    groups: dict[Node, list[Node]] = {}
    for node in region.members:
        groups.setdefault(find(node), []).append(node)
    sources = {c.args[1] for c in region.writes}
    for group in groups.values():
        own = frozenset(n for n in group if n not in region.writes)
        useful = any(n in region.leaving or n in sources for n in own)
        if own and own <= shared and not useful:
            continue  # every reader recomputes it
        yield _component(region, group, own, own | _pulled(region, own, inside & shared))


def _component(
    region: Region, group: list[Node], own: frozenset[Node], computed: frozenset[Node]
) -> Component:
    views = _views(region, computed)
    of_inputs: set[Node] = set()
    for view in views:
        if all(n not in computed and (n not in views or n in of_inputs) for n in view.all_input_nodes):
            of_inputs.add(view)
    within = [*computed, *(v for v in views if v not in of_inputs)]
    return Component(
        stage=region.stage,
        nodes=tuple(sorted(within, key=region.position.__getitem__)),
        own=own,
        leading=tuple(v for v in views if v in of_inputs),
        writes=tuple(c for c in group if c in region.writes),
        leaving=region.leaving & own,
    )


def _views(region: Region, computed: frozenset[Node]) -> list[Node]:
    """Returns the views between `computed` nodes and what they read, bases first."""
    found: dict[Node, None] = {}

    def visit(node: Node) -> None:
        for needed in node.all_input_nodes:
            if needed in region.views and needed not in found:
                visit(needed)
                found[needed] = None

    for node in computed:
        visit(node)
    return sorted(found, key=region.position.__getitem__)


def _recomputable_scalars(region: Region, inside: frozenset[Node]) -> set[Node]:
    """Returns the 0-d nodes that read nothing that this region writes, directly or through other such nodes."""
    written = {cls for c in region.writes for cls in region.effects[c].writes}
    safe: set[Node] = set()
    for node in region.members:
        tensor = tensor_of(node)
        if node in region.writes or tensor is None or tensor.dim() > 0:
            continue
        small = all(t is None or t.dim() == 0 for t in map(tensor_of, region.needs[node]))
        reads_written = any(cls in written for cls in region.effects[node].reads)
        depends = [n for n in region.needs[node] if n in inside]
        repeatable = not region.effects[node].writes  # a random number drawn twice is two numbers
        if repeatable and small and not reads_written and all(n in safe for n in depends):
            safe.add(node)
    return safe


def _pulled(region: Region, own: frozenset[Node], recomputable: frozenset[Node]) -> frozenset[Node]:
    """Returns the scalars of other components that `own` needs, directly or through each other."""
    pulled: set[Node] = set()
    stack = list(own)
    while stack:
        needed = [
            n for n in region.needs[stack.pop()] if n in recomputable and n not in own and n not in pulled
        ]
        pulled.update(needed)
        stack += needed
    return frozenset(pulled)
