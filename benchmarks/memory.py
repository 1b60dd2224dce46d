"""Estimated and measured memory of programs, beside eager and inductor: bytes above the inputs, forward and backward apart.

    python benchmarks/memory.py [--device cuda] [--cases NAME ...] [--no-inductor] [--markdown FILE]

Peaks are those of the allocator after three calls: bytes that were asked for. `apart` is estimate minus measurement.
"""

from __future__ import annotations

import argparse
import platform
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

import fusion_core
from fusion_core import estimate_memory
from fusion_core.executors.version import installed

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "core"))
import memory_programs as programs

HEADER = [
    "program",
    "phase",
    "bookend",
    "estimate",
    "measured",
    "apart",
    "allocated, apart",
    "eager",
    "inductor",
]


def main() -> None:
    """Measures the wanted programs and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--cases", nargs="*", default=[c.name for c in programs.CASES])
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [HEADER, ["---"] * len(HEADER)]
    for case in programs.CASES:
        if case.name in given.cases:
            rows += _rows(case, given.device, inductor=not given.no_inductor)
            print(*rows[-1], sep=" | ", flush=True)
    table = "\n".join(["", _machine(given.device), "", *(f"| {' | '.join(row)} |" for row in rows), ""])
    print(table)
    if given.markdown:
        given.markdown.write_text(table.lstrip())


def _machine(device: str) -> str:
    where = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {platform.machine()}"
    return f"{where}, torch {torch.__version__}, nvFuser {installed()}, Python {platform.python_version()}"


def _rows(case: programs.Case, device: str, *, inductor: bool) -> list[list[str]]:
    eager = None if case.only_compiled_on == device else programs.measured(case, device)
    other = programs.measured(case, device, _inductor) if inductor else None
    rows = []
    for bookend in (False, True):
        options = {"bookend": bookend}
        seen = programs.measured(case, device, lambda f, o=options: fusion_core.compile(f, **o))
        function, arguments = case.make(device)
        estimate = estimate_memory(function, *arguments, options=options)
        graphs = [estimate.forward, *([estimate.backward] if case.trains else [])]
        for position, graph in enumerate(graphs):
            phase = ("forward", "backward")[position]
            arms = [None if arm is None else getattr(arm, phase) for arm in (eager, other)]
            rows.append(
                _row(case, phase, bookend, graph, getattr(seen, phase), seen.allocated[position], arms)
            )
    return rows


def _inductor(function: Any) -> Any:
    return torch.compile(function, backend="inductor")


def _row(
    case: programs.Case,
    phase: str,
    bookend: bool,
    graph: Any,
    seen: tuple[int, int],
    allocated: int,
    arms: list[tuple[int, int] | None],
) -> list[str]:
    measured, left = seen
    apart = f"{graph.peak.bytes - measured:+d}, left {graph.left.bytes - left:+d}"
    return [
        case.name,
        phase,
        "on" if bookend else "off",
        str(graph.peak.bytes),
        str(measured),
        apart + ("" if not graph.differences else " (steps differ)"),
        f"{graph.peak.allocated_bytes - allocated:+d}",
        *("-" if arm is None else f"{arm[0]}, left {arm[1]}" for arm in arms),
    ]


if __name__ == "__main__":
    main()
