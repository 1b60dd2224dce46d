"""What a compilation did, in words and as data."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fusion_core.lowering.build import Lowered, Note
from fusion_core.lowering.support import Unsupported
from fusion_core.memory.estimate import MemoryEstimate
from fusion_core.program.ir import FusionProgram
from fusion_core.program.text import text


@dataclass(frozen=True, slots=True)
class GraphReport:
    """One compiled graph. `kind` is `inference`, `forward` or `backward`; `seconds` are by stage.

    `kernels` are the programs that were compiled: those of components, and those that run many components at once.
    `not_replayed` is why the plan is not replayed as a CUDA graph, empty where it is.
    """

    kind: str
    components: tuple[Lowered, ...]
    eager_steps: tuple[Unsupported, ...]
    seconds: tuple[tuple[str, float], ...]
    kernels: tuple[FusionProgram, ...] = ()
    packed: int = 0
    not_replayed: str = ""


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """A distinct program and the number of components that share its kernel."""

    program: FusionProgram
    components: int

    def __str__(self) -> str:
        """Returns the count and the program's text."""
        return f"{self.components} x {text(self.program)}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was compiled for a function: everything that `str()` prints, as tuples.

    `alias_outputs` are written inputs, `sets` and `refused_aliases` the writes that could not be plain aliases, with
    their reasons; `packed` components share launches with others. `seconds` add up by stage. `memory` is the
    estimate from the plans alone, without workspaces; `estimate_memory` observes those too. `not_replayed` tells, graph by
    graph, why its plan is not replayed as a CUDA graph, with an empty text for one that is.
    """

    regions: int
    programs: tuple[ProgramReport, ...]
    alias_outputs: tuple[str, ...]
    fresh_outputs: int
    sets: tuple[Note, ...]
    refused_aliases: tuple[Note, ...]
    eager_steps: tuple[Unsupported, ...]
    graph_breaks: tuple[str, ...]
    kernels: int
    packed: int
    graphs: int
    executor: str
    seconds: tuple[tuple[str, float], ...]
    memory: MemoryEstimate | None = None
    reused_buffers: tuple[str, ...] = ()
    not_replayed: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Returns the report."""
        return "\n".join(_lines(self))

    def to_dict(self) -> dict[str, Any]:
        """Returns the same as JSON-ready builtins."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain["programs"] = [{"text": text(p.program), "components": p.components} for p in self.programs]
        for name in ("sets", "refused_aliases", "eager_steps"):
            plain[name] = [{f.name: getattr(n, f.name) for f in dataclasses.fields(n)} for n in plain[name]]
        plain["seconds"] = dict(self.seconds)
        plain["memory"] = None if self.memory is None else self.memory.to_dict()
        return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}


def explanation(
    reports: list[GraphReport], graph_breaks: list[str], executor: str, memory: MemoryEstimate | None = None
) -> Explanation:
    """Returns the explanation of several compiled graphs together."""
    components = [c for r in reports for c in r.components]
    programs = Counter(c.program for c in components)
    seconds: Counter[str] = Counter()
    for report in reports:
        for stage, spent in report.seconds:
            seconds[stage] += spent  # type: ignore[assignment]
    reused = [(node.name, target.name) for c in components for node, target in c.reused]
    dying = {target for _, target in reused}
    targets = [
        c.inputs[[i.value for i in c.program.inputs].index(pair.target)].name
        for c in components
        for pair in c.program.aliases
    ]
    targets = [name for name in targets if name not in dying]
    return Explanation(
        regions=count_regions(reports),
        programs=tuple(ProgramReport(p, n) for p, n in programs.items()),
        alias_outputs=tuple(targets),
        reused_buffers=tuple(f"{name} in {target}" for name, target in reused),
        fresh_outputs=sum(len(c.program.outputs) for c in components),
        sets=tuple(n for c in components for n in c.sets),
        refused_aliases=tuple(n for c in components for n in c.refused),
        eager_steps=tuple(s for r in reports for s in r.eager_steps),
        graph_breaks=tuple(graph_breaks),
        kernels=count_kernels(reports),
        packed=sum(r.packed for r in reports),
        graphs=len(reports),
        not_replayed=tuple(r.not_replayed for r in reports),
        executor=executor,
        seconds=tuple(seconds.items()),
        memory=memory,
    )


def count_regions(reports: Iterable[GraphReport]) -> int:
    """Returns the regions of several graphs."""
    return sum(len({c.component.stage for c in r.components}) for r in reports)


def count_kernels(reports: Iterable[GraphReport]) -> int:
    """Returns the distinct programs that were compiled for several graphs."""
    return len({p for r in reports for p in r.kernels})


def _lines(e: Explanation) -> list[str]:
    lines = [
        f"{e.graphs} graphs, {e.regions} regions, {len(e.programs)} distinct programs, executor {e.executor}",
        f"kernels: {e.kernels}; components that share a launch: {e.packed}",
        f"written inputs: {len(e.alias_outputs)}; fresh outputs: {e.fresh_outputs}",
    ]
    if e.reused_buffers:
        lines.append(f"in the memory of a value that dies: {', '.join(e.reused_buffers)}")
    lines += [f"set for {n.target} ({n.line}): {n.reason}" for n in e.sets]
    lines += [f"no alias for {n.target} ({n.line}): {n.reason}" for n in e.refused_aliases]
    eager = Counter((s.operator, s.reason, s.line) for s in e.eager_steps)
    lines += [f"eager {op} ({line}) x{n}: {reason}" for (op, reason, line), n in eager.items()]
    replays = Counter(e.not_replayed)
    if "" in replays:
        lines.append(f"replayed as CUDA graphs: {replays.pop('')} of {e.graphs} graphs")
    lines += [f"not replayed x{n}: {reason}" for reason, n in replays.items()]
    lines += [f"graph break: {reason}" for reason in e.graph_breaks]
    lines += [str(p) for p in e.programs]
    if e.memory is not None and e.memory.graphs:
        lines.append(
            f"memory: at least {e.memory.peak_bytes} B above the inputs, {e.memory.retained_bytes} B retained"
        )
    lines.append("seconds: " + ", ".join(f"{stage} {spent:.3f}" for stage, spent in e.seconds))
    return lines
