"""The walk over a plan: which step takes memory, which gives it back, and who holds it. Pure."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from fusion_core.alias import storage_of, tensor_of
from fusion_core.capture import run_in_place
from fusion_core.lowering.support import source_line
from fusion_core.runtime.packed import ListLaunch, PackedLaunch
from fusion_core.runtime.plan import AnyStep, Plan
from fusion_core.runtime.steps import CopyBack, Free, Launch, RunEager, SlotRef
from fusion_core.runtime.views import View
from fusion_core.signature import given, signature


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One storage: the value that it was made for, where the user wrote that, and its size in bytes."""

    name: str
    line: str
    nbytes: int
    device: str


@dataclass(frozen=True, slots=True)
class Entry:
    """What one step takes and gives back; `label` is unique in its plan."""

    label: str
    line: str
    taken: tuple[Piece, ...] = ()
    returned: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    """All entries of a plan, one a step and one for its end.

    `inputs` are its caller's storages; `given` are pieces that the plan holds alone from its start: it may free them.
    `outputs` has, for each output, those pieces behind it that are not the caller's already.
    """

    entries: tuple[Entry, ...]
    inputs: tuple[Piece, ...]
    given: tuple[Piece, ...]
    outputs: tuple[tuple[Piece, ...], ...]


def write_ledger(graph: Graph, plan: Plan, donated: Mapping[int, tuple[Piece, ...]]) -> Ledger:
    """Returns the ledger of `plan`, which was built from `graph`.

    Inputs are the caller's, except for those at the positions in `donated`, with the pieces behind each. Sizes that are
    symbolic count with their value in the call that the graph was traced with.
    """
    nodes = [n for n in graph.nodes if n.op != "output"]
    return _Walk(nodes, plan, donated).ledger()


class _Walk:
    """The state of one walk: the pieces that each slot holds, none for memory of the caller, and by how many slots."""

    def __init__(self, nodes: list[Node], plan: Plan, donated: Mapping[int, tuple[Piece, ...]]) -> None:
        self._nodes = nodes
        self._slot = {node: index for index, node in enumerate(nodes)}
        self._plan = plan
        self._holds: dict[int, tuple[Piece, ...]] = {}
        self._holders: Counter[Piece] = Counter()
        for index, pieces in donated.items():
            self._hold(index, pieces)
        self._given = tuple(self._holders)
        self._inputs = _borrowed([n for i, n in enumerate(nodes[: plan.inputs]) if i not in donated])

    def ledger(self) -> Ledger:
        entries = [self._entry(position, step) for position, step in enumerate(self._plan.steps)]
        outputs = [o.index if type(o) is SlotRef else None for o in self._plan.outputs]
        returned = [p for slot in list(self._holds) if slot not in outputs for p in self._drop(slot)]
        held = tuple(() if slot is None else self._holds.get(slot, ()) for slot in outputs)
        return Ledger((*entries, Entry("return", "", (), tuple(returned))), self._inputs, self._given, held)

    def _hold(self, slot: int, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        """Lets a slot hold pieces, and returns those that nobody held before."""
        new = tuple(p for p in dict.fromkeys(pieces) if p not in self._holders)
        self._holders.update(pieces)
        self._holds[slot] = pieces
        return new

    def _drop(self, slot: int) -> tuple[Piece, ...]:
        """Empties a slot, and returns the pieces that nobody holds any more."""
        pieces = self._holds.pop(slot, ())
        self._holders.subtract(pieces)
        gone = tuple(p for p in dict.fromkeys(pieces) if not self._holders[p])
        for piece in gone:
            del self._holders[piece]
        return gone

    def _entry(self, position: int, step: AnyStep) -> Entry:
        if isinstance(step, Free):
            returned = tuple(p for slot in step.slots for p in self._drop(slot))
            names = _listed([self._nodes[slot].name for slot in step.slots])
            return Entry(f"{position} free {names}", "", returned=returned)
        text, taken = self._run(step)
        consumed = step.consumed if isinstance(step, Launch) else ()
        returned = tuple(p for slot in consumed for p in self._drop(slot))
        return Entry(f"{position} {text}", source_line(self._nodes[_speaking_slot(step)]), taken, returned)

    def _run(self, step: AnyStep) -> tuple[str, tuple[Piece, ...]]:
        """Returns what the step is called, and what it takes."""
        if isinstance(step, (RunEager, View)):
            node = self._nodes[step.output]
            held = self._result(node) if isinstance(step, RunEager) else self._holds.get(step.base, ())
            return f"{_operator_name(node)} -> {node.name}", self._hold(step.output, held)
        if isinstance(step, CopyBack):
            return f"copy_ -> {self._nodes[step.target].name}", ()
        assert not isinstance(step, Free)
        made = [spec.slot for spec in step.outputs] if isinstance(step, Launch) else []
        outputs = {slot: _only_tensor(self._nodes[slot]) for slot in made}
        taken = [
            p for s, t in outputs.items() for p in self._hold(s, (_piece(self._nodes[s], _reach_bytes(t)),))
        ]
        reused = step.reused if isinstance(step, Launch) else ()
        for value, target in (*step.forwarded, *reused):
            self._hold(value, self._holds.get(target, ()))
        written = [*(target for _, target in step.forwarded), *(value for value, _ in reused)]
        names = [self._nodes[slot].name for slot in (*made, *written)]
        return f"{_KINDS[type(step)]} -> {_listed(names)}", tuple(taken)

    def _result(self, node: Node) -> tuple[Piece, ...]:
        """Returns what the result of an eager operator holds: memory of its own, or its arguments'."""
        if node.target is operator.getitem:
            return self._taken_out(node)
        if node.target is run_in_place:
            return self._written_bases(node)
        known = signature(node.target)
        shared = list(given(node, known.aliased)) if known is not None else []
        if not shared:
            shared = [n for n in node.all_input_nodes if _same_storage(n, node)]
        if shared:
            held = (piece for n in shared for piece in self._holds.get(self._slot[n], ()))
            return tuple(dict.fromkeys(held))
        return _new_pieces(node)

    def _taken_out(self, node: Node) -> tuple[Piece, ...]:
        """A value out of several holds its own memory, or all of it where they are views of one."""
        source, tensor = node.args[0], tensor_of(node)
        assert isinstance(source, Node)
        pieces = self._holds.get(self._slot[source], ())
        several = source.meta.get("val")
        if tensor is None or not isinstance(several, (list, tuple)) or len(pieces) != len(_tensors(several)):
            return pieces
        position = [i for i, t in enumerate(_tensors(several)) if storage_of(t) == storage_of(tensor)]
        return tuple(pieces[i] for i in position)

    def _written_bases(self, node: Node) -> tuple[Piece, ...]:
        """A custom operator that writes in place returns its results, then its bases: copies of them, or themselves."""
        values: Any = node.meta["val"]
        bases: Any = node.kwargs["_all_bases"]
        copied: Any = node.args[1]
        first = len(values) - len(bases)
        pieces = [p for value in values[:first] for p in _new_pieces_of(node, value)]
        for index, base in enumerate(bases):
            own = self._holds.get(self._slot[base], ())
            pieces += _new_pieces_of(node, values[first + index]) if index in copied else own
        return tuple(pieces)


_KINDS = {Launch: "launch", PackedLaunch: "packed launch", ListLaunch: "list launch"}


def _speaking_slot(step: Launch | PackedLaunch | ListLaunch | RunEager | View | CopyBack) -> int:
    """Returns the slot whose source line stands for the step."""
    if isinstance(step, (RunEager, View)):
        return step.output
    if isinstance(step, CopyBack):
        return step.source
    if isinstance(step, Launch) and step.outputs:
        return step.outputs[0].slot
    forwarded = step.forwarded + (step.reused if isinstance(step, Launch) else ())
    return forwarded[0][0] if forwarded else step.reads[0]


def _operator_name(node: Node) -> str:
    return (
        str(node.target)
        if isinstance(node.target, torch._ops.OpOverload)
        else getattr(node.target, "__name__", "?")
    )


def _listed(names: list[str], most: int = 4) -> str:
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _new_pieces(node: Node) -> tuple[Piece, ...]:
    return _new_pieces_of(node, node.meta.get("val"))


def _new_pieces_of(node: Node, value: object) -> tuple[Piece, ...]:
    """Returns one piece for each tensor of a value, in order; tensors of one storage share theirs."""
    made: dict[int, Piece] = {}
    return tuple(
        made.setdefault(storage_of(t), _piece(node, _whole(t.untyped_storage().nbytes()), t))
        for t in _tensors(value)
        if t.layout is torch.strided
    )


def _piece(node: Node, nbytes: int, tensor: torch.Tensor | None = None) -> Piece:
    place = (tensor if tensor is not None else _only_tensor(node)).device.type
    return Piece(node.name, source_line(node), nbytes, place)


def _reach_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes from the first to the last element of a tensor of its own."""
    sizes = [_whole(s) for s in tensor.shape]
    if 0 in sizes:
        return 0
    strides = [_whole(s) for s in tensor.stride()]
    return (1 + sum((sz - 1) * st for sz, st in zip(sizes, strides, strict=True))) * tensor.itemsize


def _whole(size: Any) -> int:
    """Returns a size as a number; symbolic ones have the value that they were traced with."""
    return size if type(size) is int else int(size.node.hint)


def _borrowed(placeholders: list[Node]) -> tuple[Piece, ...]:
    """Returns the storages behind the caller's inputs, each once."""
    made: dict[int, Piece] = {}
    for node in placeholders:
        for tensor in _tensors(node.meta.get("val")):
            if tensor.layout is torch.strided:
                nbytes = _whole(tensor.untyped_storage().nbytes())
                made.setdefault(storage_of(tensor), _piece(node, nbytes, tensor))
    return tuple(made.values())


def _only_tensor(node: Node) -> torch.Tensor:
    tensor = tensor_of(node)
    assert tensor is not None, node
    return tensor


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []


def _same_storage(a: Node, b: Node) -> bool:
    first, second = tensor_of(a), tensor_of(b)
    return first is not None and second is not None and storage_of(first) == storage_of(second)
