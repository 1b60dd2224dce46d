"""What runs when in one step on a CUDA device: a row for each kernel and copy, by stream, as the profiler sees it.

    python benchmarks/timeline.py [--workload adam] [--arm fusion_core] [--markdown FILE]

Microseconds from the beginning of the step; `stream` counts streams in the order in which they begin.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from adam import Step, compiled, make_optimizer, write_table
from models import ARMS
from workloads import WORKLOADS

WARM_UP = 8
KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
HEADER = ["us", "us long", "stream", "blocks", "what"]


def built(workload: str, arm: str) -> Step:
    """Returns a step that has been called as often as it takes to be recorded."""
    torch.manual_seed(0)
    if workload == "adam":
        graphs = {"fusion_core": "auto", "fusion_core_no_graphs": False}[arm]
        optimizer = make_optimizer(1, capturable=True, foreach=True)
        step, _ = compiled(optimizer, backend="fusion_core", options={"graphs": graphs})
    else:
        step = WORKLOADS[workload].build(ARMS[arm](), "cuda", False)
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    return step


def events(step: Step) -> list[dict[str, Any]]:
    """Returns what the device did in one step, in the order in which it began."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "trace.json")
        profile.export_chrome_trace(str(path))
        found = json.loads(path.read_text())["traceEvents"]
    return sorted((e for e in found if e.get("cat") in KINDS), key=lambda e: float(e["ts"]))


def rows(found: list[dict[str, Any]]) -> list[list[str]]:
    """Returns the rows of the table."""
    streams = {s: str(n) for n, s in enumerate(dict.fromkeys(e["args"].get("stream") for e in found))}
    return [
        [
            f"{e['ts'] - found[0]['ts']:.1f}",
            f"{e['dur']:.1f}",
            streams[e["args"].get("stream")],
            "x".join(map(str, e["args"].get("grid", ["-"]))),
            e["name"].replace("|", " ")[:70],
        ]
        for e in found
    ]


def main() -> None:
    """Profiles one step and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workload", default="adam", choices=["adam", *WORKLOADS])
    parser.add_argument("--arm", default="fusion_core", choices=list(ARMS))
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    write_table(HEADER, rows(events(built(given.workload, given.arm))), given.markdown)


if __name__ == "__main__":
    main()
