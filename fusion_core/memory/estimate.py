"""The estimate of what a compiled call needs, as data and as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes: as asked for (`bytes`), and as the allocator rounds it (`allocated_bytes`)."""

    bytes: int = 0
    allocated_bytes: int = 0

    def __add__(self, other: Size) -> Size:
        """Returns the sum of both numbers."""
        return Size(self.bytes + other.bytes, self.allocated_bytes + other.allocated_bytes)

    def __sub__(self, other: Size) -> Size:
        """Returns the difference of both numbers."""
        return Size(self.bytes - other.bytes, self.allocated_bytes - other.allocated_bytes)

    def most(self, other: Size) -> Size:
        """Returns the larger of each number."""
        return Size(max(self.bytes, other.bytes), max(self.allocated_bytes, other.allocated_bytes))


@dataclass(frozen=True, slots=True)
class Held:
    """A value that holds memory, and where the user wrote it (`model.py:12`)."""

    name: str
    line: str
    bytes: int


@dataclass(frozen=True, slots=True)
class StepMemory:
    """One step of a plan. `delta` is what it leaves taken (negative where it frees), `peak` the most above its start.

    `workspace` is the part of the peak that is in none of its results: temporaries of operators and kernels.
    """

    label: str
    line: str
    delta: Size
    peak: Size
    workspace: Size


@dataclass(frozen=True, slots=True)
class GraphMemory:
    """One compiled graph; all sizes are above what was held when it was called.

    `kind` is `inference`, `forward` or `backward`. `at_peak` are the values that live at the peak, the largest first.
    `differences` are steps at which the allocator showed something else than the walk over the plan; `observed` tells
    whether workspaces were seen, without which the peak is a lower bound.
    """

    kind: str
    inputs: Size
    steps: tuple[StepMemory, ...]
    peak: Size
    left: Size
    at_peak: tuple[Held, ...]
    peak_step: str
    observed: bool
    differences: tuple[str, ...] = ()

    @property
    def deltas(self) -> dict[str, int]:
        """Returns bytes by step, negative where it frees."""
        return {step.label: step.delta.bytes for step in self.steps}


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What one call needs, in the order in which its compiled graphs run.

    `peak_bytes` and `retained_bytes` are above the inputs, as asked from the allocator; the `allocated` ones are as it
    rounds them. Memory that is taken outside compiled graphs (between them, by autograd, by the function itself) is not
    part of it. `exact` is false where workspaces were not observed or some of the function was not compiled.
    """

    device: str
    graphs: tuple[GraphMemory, ...]
    exact: bool
    doubts: tuple[str, ...] = ()

    @property
    def input_bytes(self) -> int:
        """Bytes of the storages that the first graph is given."""
        return self.graphs[0].inputs.bytes if self.graphs else 0

    @property
    def peak_bytes(self) -> int:
        """The most bytes above the inputs at any time."""
        return self._peak().bytes

    @property
    def peak_allocated_bytes(self) -> int:
        """The same, as the allocator rounds each storage."""
        return self._peak().allocated_bytes

    @property
    def retained_bytes(self) -> int:
        """Bytes above the inputs after the last graph: its outputs, and what is saved for a backward that did not run."""
        return sum((g.left.bytes for g in self.graphs), 0)

    @property
    def forward(self) -> GraphMemory:
        """The first graph that is not a backward; LookupError where nothing was compiled."""
        return self._only("inference", "forward")

    @property
    def backward(self) -> GraphMemory:
        """The first backward graph; LookupError where there is none."""
        return self._only("backward")

    def _only(self, *kinds: str) -> GraphMemory:
        for graph in self.graphs:
            if graph.kind in kinds:
                return graph
        raise LookupError(f"no {kinds[-1]} graph was compiled; there are: {[g.kind for g in self.graphs]}")

    def _peak(self) -> Size:
        base, peak = Size(), Size()
        for graph in self.graphs:
            peak = peak.most(base + graph.peak)
            base += graph.left
        return peak

    def __str__(self) -> str:
        """Returns the timeline of every graph, and what lives at its peak."""
        return "\n".join(_lines(self))

    def to_dict(self) -> dict[str, Any]:
        """Returns the same as JSON-ready builtins."""
        plain = dataclasses.asdict(self)
        plain["graphs"] = [{**dataclasses.asdict(g), "deltas": g.deltas} for g in self.graphs]
        for name in ("input_bytes", "peak_bytes", "peak_allocated_bytes", "retained_bytes"):
            plain[name] = getattr(self, name)
        return plain


def combined(device: str, graphs: Iterable[GraphMemory], doubts: Iterable[str]) -> MemoryEstimate:
    """Returns the estimate of graphs that run one after the other."""
    found, reasons = tuple(graphs), list(doubts)
    if not found:
        reasons.append("nothing was compiled")
    if len([g for g in found if g.kind != "backward"]) > 1:
        reasons.append(f"{len(found)} graphs run, and what the function does between them is not counted")
    if any(not g.observed for g in found):
        reasons.append("workspaces were not observed, so peaks are lower bounds")
    reasons += [text for g in found for text in g.differences]
    return MemoryEstimate(device, found, not reasons, tuple(dict.fromkeys(reasons)))


def _lines(estimate: MemoryEstimate) -> Iterator[str]:
    yield (
        f"memory on {estimate.device}: peak {estimate.peak_bytes} B above the inputs ({estimate.input_bytes} B), "
        f"retained {estimate.retained_bytes} B; as allocated, peak {estimate.peak_allocated_bytes} B"
    )
    yield from (f"not exact: {doubt}" for doubt in estimate.doubts)
    for graph in estimate.graphs:
        yield f"{graph.kind}: peak {graph.peak.bytes} B at {graph.peak_step}, leaves {graph.left.bytes} B"
        live = 0
        for step in graph.steps:
            live += step.delta.bytes
            extra = f", workspace {step.workspace.bytes}" if step.workspace.bytes else ""
            place = f" ({step.line})" if step.line else ""
            yield f"  {step.delta.bytes:+12d} -> {live:12d}  {step.label}{place}{extra}"
        yield from (f"  at the peak: {h.bytes} B {h.name} ({h.line or 'no line'})" for h in graph.at_peak)
