"""What a step costs the host: microseconds a step, a launch, in nvFuser's `execute`, and above it.

    python benchmarks/host.py [--workloads adam gpt_block llama_decode] [--markdown FILE]

Without replay. `above execute` is what a launch costs beside nvFuser itself: slots, checks, views, results, and its part of
the look whether the arguments are those of the call before; two readings of the clock and two calls are in it. `eager` is
what the operators that are left to torch cost, with finding their arguments.
"""

from __future__ import annotations

import argparse
import operator
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from adam import Step, compiled, make_optimizer, write_table
from models import ARMS
from workloads import WORKLOADS

from fusion_core.executors.nvfuser import _NvFuserKernel
from fusion_core.runtime import straight
from fusion_core.runtime.kept import KeptViews
from fusion_core.runtime.packed import ListLaunch, PackedLaunch
from fusion_core.runtime.steps import Launch, RunEager
from fusion_core.runtime.views import View

ARM = "fusion_core_no_graphs"
ROUNDS = 30


@dataclass
class Spent:
    """Seconds in steps of one kind, how many there were, and how many views of arguments they take that are kept."""

    seconds: float = 0.0
    calls: int = 0
    begun: float = 0.0
    kept: int = 0

    def begin(self) -> None:
        self.begun = time.perf_counter()

    def end(self) -> None:
        self.seconds += time.perf_counter() - self.begun
        self.calls += 1
        self.begun = 0.0


def _adam() -> Step:
    step, _ = compiled(
        make_optimizer(1, capturable=True, foreach=True), backend="fusion_core", options={"graphs": False}
    )
    return step


def _seconds_a_step(step: Step) -> float:
    torch.cuda.synchronize()
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
    return statistics.median(times)


KINDS: dict[Any, str] = {
    Launch: "launch",
    PackedLaunch: "packed",
    View: "views",
    RunEager: "eager",
    ListLaunch: "eager",
}


def _built(name: str) -> Step:
    torch._dynamo.reset()
    torch.manual_seed(0)
    step = _adam() if name == "adam" else WORKLOADS[name].build(ARMS[ARM](), "cuda", False)
    for _ in range(5):
        step()
    return step


def measure(name: str) -> list[str]:
    """Returns the cells of the table's row; what is timed in its parts is built once more, with clocks in its code."""
    whole = _seconds_a_step(_built(name))
    spent = {what: Spent() for what in ("execute", "kept", *KINDS.values())}

    execute = spent["execute"]

    def call(kernel: Any, inputs: list[torch.Tensor]) -> Any:
        given = kernel._given(inputs) if kernel._scalars else inputs  # noqa: SLF001 - looks inside
        begin = time.perf_counter()
        results = kernel._run(given)  # noqa: SLF001
        if spent["launch"].begun:  # the packed launch has a column of its own
            execute.seconds += time.perf_counter() - begin
            execute.calls += 1
        return results

    def lines(code: Any, step: Any) -> Iterator[str]:
        of = spent.get(KINDS.get(type(step), ""))
        written = list(original(code, step))
        if of is None or getattr(step, "function", None) is operator.getitem:
            yield from written
            return
        of.kept += sum(line.count("kept[") for line in written)
        yield f"{code.named(of.begin)}()"
        yield from written
        yield f"{code.named(of.end)}()"

    def look(kept: KeptViews, arguments: list[Any]) -> Any:
        looking.begin()
        views = found(kept, arguments)
        looking.end()
        return views

    looking, found = spent["kept"], KeptViews.of
    original = straight._Code.lines  # noqa: SLF001 - the code of a plan
    with (
        mock.patch.object(_NvFuserKernel, "__call__", call),
        mock.patch.object(straight._Code, "lines", lines),  # noqa: SLF001
        mock.patch.object(KeptViews, "of", look),
    ):
        step = _built(name)
        for each in spent.values():
            each.seconds, each.calls = 0.0, 0
        _seconds_a_step(step)
    return [name, f"{whole * 1e6:.0f}", *_cells(spent)]


def _cells(spent: dict[str, Spent]) -> list[str]:
    launches, packed, execute = spent["launch"], spent["packed"], spent["execute"]
    per_execute = execute.seconds / max(execute.calls, 1)
    share = launches.kept / max(launches.kept + packed.kept, 1)
    above = (launches.seconds + spent["kept"].seconds * share) / max(launches.calls, 1) - per_execute
    return [
        f"{launches.calls / ROUNDS:.0f}",
        f"{per_execute * 1e6:.1f}",
        f"{above * 1e6:.1f}",
        *(cell for kind in ("eager", "views") for cell in _a_step(spent[kind])),
        f"{(packed.seconds / packed.calls * 1e6 if packed.calls else 0):.0f}",
    ]


def _a_step(spent: Spent) -> list[str]:
    return [f"{spent.calls / ROUNDS:.0f}", f"{spent.seconds / ROUNDS * 1e6:.0f}"]


HEADER = [
    "workload",
    "us a step",
    "launches",
    "us in execute, each",
    "us above execute, each",
    "eager steps",
    "us in eager steps",
    "views",
    "us in views",
    "us in the packed launch",
]


def main() -> None:
    """Measures what is wanted and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--workloads",
        nargs="*",
        default=["adam", "gpt_block", "llama_decode"],
        choices=["adam", *WORKLOADS],
    )
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    write_table(HEADER, [measure(name) for name in given.workloads], given.markdown)


if __name__ == "__main__":
    main()
