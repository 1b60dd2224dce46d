"""Alias facts of an aten graph: storage classes, effects, and the order edges that follow from them. Pure."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fusion_core.signature import given, signature

# The random generator counts as one more storage that every random operator reads and writes.
RNG = "rng"

StorageClass = int | str


@dataclass(frozen=True, slots=True)
class Effects:
    """What a node reads and writes. `barrier` means unknown: it stays where it is among all other nodes."""

    reads: tuple[StorageClass, ...] = ()
    writes: tuple[StorageClass, ...] = ()
    barrier: bool = False


@dataclass(frozen=True, slots=True)
class AliasFacts:
    """`storage` maps tensor nodes to their class; `before` maps a node to those that must run before it.

    `writes` counts the writes of each class.
    """

    storage: dict[Node, StorageClass]
    effects: dict[Node, Effects]
    before: dict[Node, tuple[Node, ...]]
    writes: dict[StorageClass, int]

    def written_inputs(self) -> dict[StorageClass, Node]:
        """Returns the writing node of each class that an operator writes; the last one where there are several."""
        return {cls: node for node, effects in self.effects.items() for cls in effects.writes}


def analyze(graph: torch.fx.Graph) -> AliasFacts:
    """Returns the facts of `graph`, whose nodes are an imperative program in their order."""
    storage = _storage_classes(graph)
    effects = {node: _effects(node, storage) for node in graph.nodes}
    writes = Counter(cls for mine in effects.values() for cls in mine.writes)
    return AliasFacts(storage, effects, _order_edges(graph, effects), writes)


def tensor_of(node: Node) -> torch.Tensor | None:
    """Returns the fake tensor of a node, or None where its value is no single tensor."""
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def storage_of(tensor: torch.Tensor) -> int:
    """Returns what tells the storage of a tensor, also of one without memory, whose address tells nothing."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def is_view(node: Node) -> bool:
    """True for operators whose result is a view of an argument and that write nothing."""
    known = signature(node.target)
    return known is not None and known.is_view


def is_free(node: Node) -> bool:
    """True for nodes that move no data: views, and the taking of one value out of several."""
    return node.op == "call_function" and (
        node.target in (operator.getitem, torch.ops.aten._unsafe_view.default) or is_view(node)
    )


class _Union:
    def __init__(self) -> None:
        self._parent: dict[Any, Any] = {}

    def find(self, key: Any) -> Any:
        while self._parent.setdefault(key, key) != key:
            key = self._parent[key]
        return key

    def join(self, a: Any, b: Any) -> None:
        self._parent[self.find(a)] = self.find(b)


def _storage_classes(graph: torch.fx.Graph) -> dict[Node, StorageClass]:
    """Unites nodes that share memory by schema or by the storage of their fake tensors; either alone misses some."""
    union = _Union()
    for node in graph.nodes:
        for tensor in _tensors(node.meta.get("val")):
            if tensor.layout is torch.strided:
                union.join(node, ("storage", tensor.untyped_storage()._cdata))
        for source in _aliased_arguments(node):
            union.join(node, source)
    roots: dict[Any, int] = {}
    return {node: roots.setdefault(union.find(node), len(roots)) for node in graph.nodes}


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _aliased_arguments(node: Node) -> list[Node]:
    if node.target is operator.getitem:
        return node.all_input_nodes[:1]
    known = signature(node.target)
    return [] if known is None else list(given(node, known.aliased))


def _effects(node: Node, storage: dict[Node, StorageClass]) -> Effects:
    if node.op != "call_function":
        return Effects()
    reads = tuple(dict.fromkeys(storage[n] for n in node.all_input_nodes if n.meta.get("val") is not None))
    known = signature(node.target)
    if known is None:
        return Effects() if _is_scalar_operator(node) else Effects(reads=reads, barrier=True)
    if known.is_view:
        return Effects()  # a view looks at sizes; whoever reads the view reads the memory
    writes = tuple(storage[source] for source in given(node, known.written))
    if known.is_random:
        return Effects((*reads, RNG), (*writes, RNG))
    if known.is_silent and not writes:
        return Effects(reads=reads, barrier=True)  # run for an effect that the schema does not tell
    return Effects(reads, writes)


def _is_scalar_operator(node: Node) -> bool:
    """True for getitem and for Python arithmetic on symbolic sizes, which touch no memory."""
    if node.target is operator.getitem:
        return True
    return not any(True for _ in _tensors(node.meta.get("val"))) and all(
        tensor_of(n) is None for n in node.all_input_nodes
    )


def _order_edges(graph: torch.fx.Graph, effects: dict[Node, Effects]) -> dict[Node, tuple[Node, ...]]:
    """Write after read, read after write, write after write; and everything against barriers."""
    readers: dict[StorageClass, list[Node]] = {}
    writer: dict[StorageClass, Node] = {}
    barrier: Node | None = None
    since_barrier: list[Node] = []
    before: dict[Node, tuple[Node, ...]] = {}
    for node in graph.nodes:
        mine = effects[node]
        edges: list[Node] = [barrier] if barrier is not None and node.op == "call_function" else []
        edges += [writer[c] for c in mine.reads if c in writer]
        for cls in mine.writes:
            edges += [writer[cls]] if cls in writer else []
            edges += readers.pop(cls, [])
            writer[cls] = node
        for cls in mine.reads:
            if cls not in mine.writes:
                readers.setdefault(cls, []).append(node)
        if mine.barrier:
            edges += since_barrier
            barrier, since_barrier = node, []
        elif node.op == "call_function":
            since_barrier.append(node)
        before[node] = tuple(dict.fromkeys(e for e in edges if e is not node))
    return before
