"""Write parts of an input in place where the graph rebuilds the whole of it.

Functionalization turns `cache[:, 3] = token` into a copy of the cache with the token scattered into it, and a copy of that
back. Here the scatter becomes a write through the view, or the operator's in-place form, so that an update costs what the
token costs. A chain of such updates of one input is rewritten as a whole, from the first one on.

It is legal where everyone who needs the value before an update can run before it; otherwise the chain stays as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from fusion_core.alias import AliasFacts, is_free, tensor_of
from fusion_core.capture import call_in_place, functionalized_base
from fusion_core.passes.copying import copy_graph, sorted_nodes

aten = torch.ops.aten
COPY_ = aten.copy_.default

# Scatters into a view: the operator that makes the view, from the arguments after the source.
VIEW_OF_SCATTER: dict[Any, Any] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
    aten.as_strided_scatter.default: aten.as_strided.default,
}
_INDEXED = """
    index_put index_copy index_add index_fill scatter scatter_add scatter_reduce masked_scatter put zero
""".split()
# Operators that change elements of their first argument: their in-place form.
IN_PLACE: dict[Any, Any] = {
    getattr(getattr(aten, name), overload): getattr(getattr(aten, f"{name}_"), overload)
    for name in _INDEXED
    for overload in getattr(aten, name).overloads()
    if overload in getattr(aten, f"{name}_").overloads()
} | {aten.full_like.default: aten.fill_.Scalar}


# Views that keep the order of elements; `_unsafe_view` is one of a value that nobody else sees.
_ORDER_KEEPING = {
    aten.view.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
}


@dataclass(frozen=True, slots=True)
class Update:
    """`value` is `base` with some elements changed by `node`, which is `value` itself or a custom operator."""

    value: Node
    node: Node
    base: Node


@dataclass(frozen=True, slots=True)
class Chain:
    """Updates, first to last, whose last value `copy` writes to `owner`; `target` is that input, or a view of all of it."""

    owner: Node
    target: Node
    copy: Node
    updates: tuple[Update, ...]

    @property
    def root(self) -> Node:
        """What the first update changes: the target, or a value that is to be written to it first."""
        return self.updates[0].base


def reinplace(graph: Graph, facts: AliasFacts, rebuilt: frozenset[int]) -> Graph:
    """Returns `graph` with each legal chain written in place; output positions in `rebuilt` need no value."""
    chains = [c for c in map(_chain, graph.nodes) if c is not None]
    later: list[tuple[Node, Node]] = []
    accepted = []
    for chain in chains:
        edges = _order(graph, chain, facts, rebuilt)
        if edges is not None and sorted_nodes(graph, facts, [*later, *edges]) is not None:
            accepted.append(chain)
            later += edges
    if not accepted:
        return graph
    copied, new = copy_graph(graph, sorted_nodes(graph, facts, later))
    for chain in accepted:
        _rewrite(copied, chain, new, facts)
    return copied


def _chain(copy: Node) -> Chain | None:
    if copy.target is not COPY_ or not all(isinstance(a, Node) for a in copy.args):
        return None
    owner, value = copy.args[0], copy.args[1]
    assert isinstance(owner, Node)
    assert isinstance(value, Node)
    if owner.op != "placeholder":
        return None
    value = _unviewed(value, {*_ORDER_KEEPING, aten._unsafe_view.default})
    updates: list[Update] = []
    while (update := _update(value)) is not None:
        updates.insert(0, update)
        value = update.base
    if not updates or not _alike(owner, copy.args[1]):
        return None
    if _unviewed(value, _ORDER_KEEPING) is owner:
        return Chain(owner, value, copy, tuple(updates))
    return Chain(owner, owner, copy, tuple(updates)) if _alike(owner, value) else None


def _unviewed(node: Node, views: set[Any]) -> Node:
    """Returns what `node` is a view of, through views of these kinds."""
    while node.target in views and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _update(value: Node) -> Update | None:
    if value.target in VIEW_OF_SCATTER or value.target in IN_PLACE:
        base = value.args[0]
        if not isinstance(base, Node) or (value.target is aten.full_like.default and not _alike(base, value)):
            return None  # `full_like` may make another dtype
        return Update(value, value, base)
    if value.target is operator.getitem:
        node = value.args[0]
        base = functionalized_base(value)
        if isinstance(base, Node) and isinstance(node, Node):
            return Update(value, node, base)
    return None


def _alike(a: Node, b: Any) -> bool:
    first, second = tensor_of(a), tensor_of(b)
    if first is None or second is None:
        return False
    same = (first.dtype, first.device) == (second.dtype, second.device)
    return same and list(map(str, first.shape)) == list(map(str, second.shape))


def _order(
    graph: Graph, chain: Chain, facts: AliasFacts, rebuilt: frozenset[int]
) -> list[tuple[Node, Node]] | None:
    """Returns pairs (earlier, later) that the rewrite needs beyond the graph's own order, or None where it is illegal."""
    kept = {v for i, v in enumerate(graph.output_node().args[0]) if i not in rebuilt}  # type: ignore[arg-type]
    edges: list[tuple[Node, Node]] = []
    values = [chain.owner] if chain.root is not chain.owner else []
    values += [update.base for update in chain.updates]
    nexts = [chain.updates[0].node] * (len(values) - len(chain.updates)) + [u.node for u in chain.updates]
    for value, following in zip(values, nexts, strict=True):
        for reader in _readers(value):
            if reader.op == "output" and not kept.isdisjoint(_viewed(value)):
                return None
            if reader.op == "output" or reader is following or reader is chain.copy:
                continue
            if facts.effects[reader].writes:
                return None
            edges.append((reader, following))
    if any(_is_seen_otherwise(u.value, chain, nexts) for u in chain.updates):
        return None
    if any(v in kept for u in chain.updates for v in _viewed(u.value)) or chain.root in kept:
        return None
    return edges


def _is_seen_otherwise(value: Node, chain: Chain, nexts: list[Node]) -> bool:
    """True if others read `value` and it lies in memory otherwise than the target, as a scatter's row-major result may."""
    others = [u for u in value.users if u is not chain.copy and u not in nexts]
    return bool(others) and not _same_strides(value, chain.target)


def _same_strides(a: Node, b: Node) -> bool:
    first, second = tensor_of(a), tensor_of(b)
    if first is None or second is None:
        return False
    dims = zip(first.shape, first.stride(), second.stride(), strict=True)
    return all(str(size) == "1" or str(x) == str(y) for size, x, y in dims)


def _viewed(value: Node) -> Iterator[Node]:
    """Yields `value` and its views."""
    yield value
    for user in value.users:
        if is_free(user):
            yield from _viewed(user)


def _readers(value: Node) -> Iterator[Node]:
    """Yields those who read the memory of `value`, through views or not."""
    for view in _viewed(value):
        yield from (user for user in view.users if not is_free(user))


def _rewrite(graph: Graph, chain: Chain, new: dict[Node, Node], facts: AliasFacts) -> None:
    target = new[chain.target]
    first = new[chain.updates[0].node]
    if chain.root is not chain.target:
        with graph.inserting_before(first):
            write = graph.call_function(COPY_, (target, new[chain.root]))
        write.meta = dict(new[chain.copy].meta)
    graph.erase_node(new[chain.copy])
    for update in chain.updates:
        _write(graph, target, update, new, facts)
    for update in reversed(chain.updates):
        if not new[update.value].users:
            graph.erase_node(new[update.value])


def _write(graph: Graph, target: Node, update: Update, new: dict[Node, Node], facts: AliasFacts) -> None:
    node = new[update.node]
    with graph.inserting_before(node):
        if update.node is not update.value:
            call_in_place(node, new[update.value])
        else:
            _Writer(graph, update, facts, {v: k for k, v in new.items()}).write(target, node)
    new[update.value].replace_all_uses_with(target)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Emits the writes of one update at the graph's insertion point; `old` gives the analyzed node of a new one."""

    graph: Graph
    update: Update
    facts: AliasFacts
    old: dict[Node, Node]

    def write(self, target: Node, node: Node) -> None:
        """Writes what the scatter `node` changes into `target`, whose old value is its first argument."""
        line = {"stack_trace": node.meta.get("stack_trace")}
        if node.target in IN_PLACE:
            keywords = {} if node.target is aten.full_like.default else dict(node.kwargs)
            done = self.graph.call_function(IN_PLACE[node.target], (target, *node.args[1:]), keywords)
            done.meta = {**line, "val": target.meta["val"]}
            return
        source = node.args[1]
        assert isinstance(source, Node)
        view = self.graph.call_function(
            VIEW_OF_SCATTER[node.target], (target, *node.args[2:]), dict(node.kwargs)
        )
        view.meta = {**line, "val": _fake_call(view)}
        inner = source.args[0] if source.target in VIEW_OF_SCATTER or source.target in IN_PLACE else None
        if isinstance(inner, Node) and len(source.users) == 1 and self._is_same_view(inner, node):
            self.write(view, source)
            return
        given = self._given(source, view, target)
        if given is not None:
            copy = self.graph.call_function(COPY_, (view, given))
            copy.meta = {**line, "val": view.meta["val"]}

    def _is_same_view(self, view: Node, scatter: Node) -> bool:
        """True if `view` shows of the scatter's base what the scatter writes."""
        same = view.target is VIEW_OF_SCATTER[scatter.target] and view.args[0] is scatter.args[0]
        return same and view.args[1:] == scatter.args[2:] and view.kwargs == scatter.kwargs

    def _given(self, source: Node, view: Node, target: Node) -> Node | None:
        """Returns what to copy into `view`: not a copy made for the scatter alone, unless it protects from overlap.

        None for `x[i] = x[i]`, which `x[i] += 1` ends with.
        """
        is_copy = source.target in (aten.copy.default, aten.clone.default) and len(source.users) == 1
        given = source.args[-1] if is_copy else source
        if not isinstance(given, Node) or given not in self.old:
            return source
        if self.facts.storage[self.old[given]] != self.facts.storage[self.update.base]:
            return given
        return None if _geometry(given, self.update.base) == _geometry(view, target) else source


def _geometry(view: Node, base: Node) -> tuple[str, ...]:
    """Returns where a view lies in its base, and how."""
    shown, whole = tensor_of(view), tensor_of(base)
    if shown is None or whole is None:
        return (view.name,)
    offset = shown.storage_offset() - whole.storage_offset()
    return (str(offset), *map(str, shown.shape), *map(str, shown.stride()))


def _fake_call(node: Node) -> Any:
    arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    args, kwargs = arguments
    return node.target(*args, **kwargs)  # type: ignore[operator]
