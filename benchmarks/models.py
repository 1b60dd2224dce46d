"""Whole models: compile, step and host time, peak memory and kernels by arm, and whether 20 steps lose what eager loses.

    python benchmarks/models.py [--workloads gpt_block ...] [--arms eager inductor fusion_core ...] [--markdown FILE]
    python benchmarks/models.py --device cpu --small        # do all of them run, with the same losses?

`own stages` are the seconds that fusion_core spends beside Dynamo and AOTAutograd (the arm `stages`, of which nothing else
is measured); nvFuser compiles later, at the first call. Each arm runs in a process of its own; all of them start from the
same seed. Times are medians of CUDA events, alone and in a row as in `adam.py`. The peak is what a step needs above what
lies there before it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from adam import median_ms, parser_of, run_apart, stream_ms, write_table
from workloads import WORKLOADS, Compile, Step

from fusion_core.backend import CompiledGraph
from fusion_core.examine import GraphReport
from fusion_core.options import parse_options

STEPS = 20


@dataclass
class Row:
    """One arm on one workload; times are NaN where they were not measured, `losses` empty where it failed."""

    workload: str
    arm: str
    compile_s: float = math.nan
    stages_s: float = math.nan
    alone_ms: float = math.nan
    stream_ms: float = math.nan
    host_us: float = math.nan
    peak_mb: float = math.nan
    kernels: int = 0
    losses: list[float] | None = None
    failed: str = ""

    def cells(self, eager: Row | None) -> list[str]:
        """Returns the cells of the table's row."""
        if self.failed:
            return [self.workload, self.arm, *["-"] * 7, self.failed]
        numbers = [
            f"{self.compile_s:.1f}",
            "-" if math.isnan(self.stages_s) else f"{self.stages_s:.3f}",
            f"{self.alone_ms:.3f}",
            f"{self.stream_ms:.3f}",
            f"{self.host_us:.0f}",
        ]
        return [
            self.workload,
            self.arm,
            *numbers,
            f"{self.peak_mb:.1f}",
            str(self.kernels),
            _difference(self, eager),
        ]


def _difference(row: Row, eager: Row | None) -> str:
    if eager is None or not eager.losses or not row.losses:
        return "-"
    worst = max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(row.losses, eager.losses, strict=True))
    return f"{worst:.1e}"


def _backend(name: str, **more: Any) -> Compile:
    return lambda function: torch.compile(function, backend=name, dynamic=False, **more)


def _thunder() -> Compile:
    import thunder

    return thunder.jit


def _stages() -> Compile:
    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> CompiledGraph:
        return CompiledGraph(module, inputs, parse_options(None, None), record=_reports.append)

    return lambda function: torch.compile(function, backend=backend, dynamic=False)


_reports: list[GraphReport] = []
ARMS: dict[str, Any] = {
    "eager": lambda: lambda function: function,
    "inductor": lambda: _backend("inductor"),
    "inductor_reduce_overhead": lambda: _backend("inductor", mode="reduce-overhead"),
    "fusion_core": lambda: _backend("fusion_core"),
    "fusion_core_graphs": lambda: _backend("fusion_core", options={"graphs": True}),
    "fusion_core_no_graphs": lambda: _backend("fusion_core", options={"graphs": False}),
    "fusion_core_bookend": lambda: _backend("fusion_core", options={"bookend": True}),
    "stages": _stages,
}
if importlib.util.find_spec("thunder"):
    ARMS["thunder"] = _thunder


def measure(workload: str, arm: str, device: str, *, small: bool) -> Row:
    """Measures one arm in this process."""
    torch.manual_seed(0)
    row = Row(workload, arm)
    begin = time.perf_counter()
    step = WORKLOADS[workload].build(ARMS[arm](), device, small)
    losses = [step() for _ in range(2)]
    _wait(device)
    row.compile_s = time.perf_counter() - begin
    if arm == "stages":
        row.stages_s = sum(spent for report in _reports for _, spent in report.seconds)
        return row
    losses += [step() for _ in range(STEPS - 2)]
    row.losses = [float(loss) for loss in losses]
    if device == "cuda":
        row.alone_ms, row.host_us = median_ms(step)
        row.stream_ms = stream_ms(step)
        row.peak_mb, row.kernels = _peak_bytes(step) / 1e6, _kernels(step)
    return row


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _peak_bytes(step: Step) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _kernels(step: Step) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    events = profile.events() or []
    return sum(e.device_type == torch.autograd.DeviceType.CUDA for e in events)


def measured_apart(workload: str, arm: str, given: argparse.Namespace) -> Row:
    """Measures one arm in a process of its own."""
    small = ["--small"] if given.small else []
    found, failed = run_apart(__file__, "--one", workload, arm, "--device", given.device, *small)
    return Row(workload, arm, failed=failed) if found is None else Row(**found)


HEADER = [
    "workload",
    "arm",
    "compile s",
    "own stages s",
    "ms alone",
    "ms in a row",
    "host us",
    "peak MB",
    "kernels",
    "loss off by",
]


def main() -> None:
    """Measures what is wanted and prints the table."""
    given = parser_of(__doc__, workloads=WORKLOADS, arms=ARMS).parse_args()
    if given.one:
        print(json.dumps(asdict(measure(*given.one, given.device, small=given.small))))
        return
    rows: list[list[str]] = []
    for workload in given.workloads:
        eager = None
        for arm in given.arms:
            row = measured_apart(workload, arm, given)
            eager = row if arm == "eager" else eager
            rows.append(row.cells(eager))
            print(" | ".join(rows[-1]), flush=True)
    write_table(HEADER, rows, given.markdown)


if __name__ == "__main__":
    main()
