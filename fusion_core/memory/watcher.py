"""Watches the plans of one function: writes their ledgers, runs their steps under an observer, and sums up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, strided
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from fusion_core.capture import Captured
from fusion_core.memory.estimate import GraphMemory, Held, MemoryEstimate, Size, StepMemory, combined
from fusion_core.memory.ledger import Entry, Ledger, Piece, write_ledger
from fusion_core.memory.observe import Observer, Seen, observer_for
from fusion_core.runtime.plan import Plan

CUDA_ROUNDING_BYTES = 512  # kMinBlockSize of torch's caching allocator


@dataclass(frozen=True, slots=True)
class _Watched:
    kind: str
    ledger: Ledger


class Watcher:
    """Its `watch` is given to the backend; `observed_call` encloses the call whose steps are looked at."""

    def __init__(self) -> None:
        self._plans: list[_Watched] = []
        self._runs: list[_Watched] = []
        self._saved: dict[str, tuple[Piece, ...]] = {}
        self._observer: Observer | None = None
        self._real: dict[Piece, Piece] = {}
        self._seen: Seen | None = None

    def watch(self, captured: Captured, graph: Graph, plan: Plan) -> Callable[[list[Any]], Any]:
        """Returns what runs `plan` and is watched; a `Watch` of the backend."""
        donated = self._donated(captured)
        watched = _Watched(captured.kind, write_ledger(graph, plan, donated))
        self._plans.append(watched)
        if captured.saved_from is not None:
            self._saved |= _saved_values(captured, watched.ledger, captured.saved_from)

        def run(arguments: list[Any]) -> Any:
            observer, number = self._observer, len(self._runs)
            self._runs.append(watched)
            if observer is None:
                return plan.run(arguments)
            return plan.run_observed(
                arguments,
                around=lambda position: observer.step(number, position),
                look=lambda position, result: self._look(watched.ledger.entries[position], result),
            )

        return run

    def _look(self, entry: Entry, result: Any) -> None:
        """Notes the storages of a real result: torch's fake tensors foretell some devices and sizes wrongly."""
        tensors = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor) and t.layout is strided]
        storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors}
        if len(storages) == len(entry.taken):
            for piece, storage in zip(entry.taken, storages.values(), strict=True):
                self._real[piece] = dataclasses.replace(
                    piece, nbytes=storage.nbytes(), device=storage.device.type
                )

    def _donated(self, captured: Captured) -> dict[int, tuple[Piece, ...]]:
        """Returns the pieces behind those inputs of a backward graph that are held for it alone, by position."""
        if captured.kind != "backward":
            return {}
        placeholders = [n for n in captured.module.graph.nodes if n.op == "placeholder"]
        return {i: self._saved[n.name] for i, n in enumerate(placeholders) if self._saved.get(n.name)}

    @property
    def device(self) -> str:
        """The device type that the plans compute on: `cuda` if any value lies there."""
        pieces = (p for watched in self._plans for p in _pieces(watched.ledger))
        devices = {p.device for p in pieces} - {"cpu", "meta"}
        return min(devices, default="cpu")

    @contextmanager
    def observed_call(self) -> Iterator[None]:
        """Observes the steps of all plans that run in the block."""
        observer = observer_for(self.device)
        self._runs, self._observer = [], observer
        try:
            if observer is None:
                yield
            else:
                with observer.call():
                    yield
                self._seen = observer.seen()
        finally:
            self._observer = None

    def estimate(self, doubts: list[str]) -> MemoryEstimate:
        """Returns the estimate of the last observed call; without one, of every plan in the order of compilation."""
        device, observed, seen = self.device, self._seen is not None, self._seen or {}
        runs = self._runs if observed else self._plans
        graphs = (
            _graph_memory(
                _Watched(w.kind, _corrected(w.ledger, self._real)),
                device,
                {p: s for (run, p), s in seen.items() if run == number},
                observed=observed,
            )
            for number, w in enumerate(runs)
        )
        return combined(device, graphs, doubts)


def _saved_values(captured: Captured, ledger: Ledger, saved_from: int) -> dict[str, tuple[Piece, ...]]:
    """Returns for each value kept for the backward graph, by name, the pieces that nobody but autograd holds."""
    values: Any = captured.module.graph.output_node().args[0]
    held = ledger.outputs
    user = {piece for pieces in held[:saved_from] for piece in pieces}
    return {
        value.name: tuple(p for p in pieces if p not in user)
        for value, pieces in zip(values[saved_from:], held[saved_from:], strict=True)
        if isinstance(value, Node)
    }


def _corrected(ledger: Ledger, real: Mapping[Piece, Piece]) -> Ledger:
    """Returns the ledger with those pieces replaced of which the real storage was seen."""

    def each(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        return tuple(real.get(piece, piece) for piece in pieces)

    entries = tuple(
        dataclasses.replace(e, taken=each(e.taken), returned=each(e.returned)) for e in ledger.entries
    )
    return Ledger(entries, ledger.inputs, each(ledger.given), tuple(each(o) for o in ledger.outputs))


def _pieces(ledger: Ledger) -> Iterator[Piece]:
    yield from ledger.inputs
    yield from ledger.given
    for entry in ledger.entries:
        yield from entry.taken


def _graph_memory(
    watched: _Watched, device: str, seen: dict[int, tuple[Size, Size]], *, observed: bool
) -> GraphMemory:
    def size(pieces: tuple[Piece, ...]) -> Size:
        return _size(pieces, device)

    steps, differences = [], []
    live, top, top_label = Size(), Size(), "the start"
    alive = dict.fromkeys(watched.ledger.given)
    at_top = tuple(alive)
    for position, entry in enumerate(watched.ledger.entries):
        step = _step_memory(entry, size, seen.get(position))
        if observed and position in seen and seen[position][0].bytes != step.delta.bytes:
            shown = seen[position][0].bytes
            differences.append(f"{entry.label}: the plan says {step.delta.bytes} B, the allocator {shown} B")
        alive.update(dict.fromkeys(entry.taken))
        if (live + step.peak).bytes > top.bytes:
            top_label, at_top = entry.label, tuple(alive)
        top = top.most(live + step.peak)
        for piece in entry.returned:
            alive.pop(piece, None)
        live += step.delta
        steps.append(step)
    return GraphMemory(
        kind=watched.kind,
        inputs=size(watched.ledger.inputs),
        steps=tuple(steps),
        peak=top,
        left=live,
        at_peak=_held(at_top, device),
        peak_step=top_label,
        observed=observed,
        differences=tuple(differences),
    )


def _step_memory(
    entry: Entry, size: Callable[[tuple[Piece, ...]], Size], seen: tuple[Size, Size] | None
) -> StepMemory:
    taken = size(entry.taken)
    peak = taken if seen is None else seen[1]
    return StepMemory(
        entry.label, entry.line, taken - size(entry.returned), peak, (peak - taken).most(Size())
    )


def _size(pieces: tuple[Piece, ...], device: str) -> Size:
    mine = [p.nbytes for p in pieces if p.device == device]
    rounding = CUDA_ROUNDING_BYTES if device == "cuda" else 1
    return Size(sum(mine), sum(-(-nbytes // rounding) * rounding for nbytes in mine))


def _held(pieces: tuple[Piece, ...], device: str) -> tuple[Held, ...]:
    mine = [Held(p.name, p.line, p.nbytes) for p in pieces if p.device == device and p.nbytes]
    return tuple(sorted(mine, key=lambda held: -held.bytes))
