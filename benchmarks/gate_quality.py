"""How often the time gate passes, fails and does not decide: real runs of functions whose true ratio is known.

`python benchmarks/gate_quality.py --comparisons 300 --load idle --load loaded --markdown gate.md`

Each comparison is one call of the plugin's timing at limit 1.05 with its default budget. The slower arm does 5 or 15 % more
of the same work. Under `loaded` one busy process for each CPU runs beside.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from pytest_fusealias.build import Program
from pytest_fusealias.decision import decide
from pytest_fusealias.measure.time import threads, time_program
from pytest_fusealias.measurement import NotMeasuredError
from pytest_fusealias.timing import Budget

LIMIT = 1.05
RATIOS = (1.0, 1.05, 1.15)


@dataclass(frozen=True)
class Work:
    """A function of in-place additions: on the CPU `units` of them, on CUDA one over `size` elements."""

    name: str
    units: int
    size: int


WORK = {
    "cpu": (Work("20 us", 20, 16), Work("200 us", 200, 16), Work("5 ms", 100, 220_000)),
    "cuda": (Work("20 us", 1, 10_000_000), Work("1 ms", 1, 500_000_000)),
}


def arms(work: Work, device: str, ratio: float):
    """Two functions over one tensor; the second does `ratio` times the work of the first."""
    x = torch.zeros(int(work.size * (ratio if device == "cuda" else 1)), device=device)
    one = torch.ones((), device=device) if device == "cuda" else torch.ones(work.size)

    def repeated(units: int, part: torch.Tensor):
        def run():
            for _ in range(units):
                part.add_(one)

        return run

    if device == "cuda":
        return repeated(1, x[: work.size]), repeated(1, x)
    return repeated(work.units, x), repeated(round(work.units * ratio), x)


def busy() -> None:
    while True:
        pass


@contextlib.contextmanager
def load(kind: str):
    """One busy process for each CPU, or none."""
    count = (os.cpu_count() or 1) if kind == "loaded" else 0
    others = [multiprocessing.get_context("spawn").Process(target=busy, daemon=True) for _ in range(count)]
    for process in others:
        process.start()
    time.sleep(2 if others else 0)
    yield
    for process in others:
        process.kill()
        process.join()


def compare(work: Work, device: str, ratio: float) -> tuple[str, float, float, int, float]:
    """Returns outcome, ratio, seconds spent, quads, and microseconds of the first arm."""
    first, second = arms(work, device, ratio)
    for _ in range(3):
        first(), second()
    program = Program(first)
    begun = time.perf_counter()
    try:
        found = time_program(program, (first, second), torch.device(device), Budget(), LIMIT)
    except NotMeasuredError as reason:
        print(reason)
        return "NOT-MEASURED", 1.0, time.perf_counter() - begun, 0, 0.0
    outcome = decide(found.interval, found.threshold(LIMIT)).value
    spent = time.perf_counter() - begun
    return outcome, found.ratio, spent, len(found.log_ratios), found.eager_s * 1e6


def row(work: Work, device: str, kind: str, ratio: float, comparisons: int) -> dict:
    """Makes the comparisons of one row."""
    results = [compare(work, device, ratio) for _ in range(comparisons)]
    outcomes = Counter(r[0] for r in results)
    seen = sorted(r[1] for r in results)
    return {
        "function": work.name,
        "us": sorted(r[4] for r in results)[comparisons // 2],
        "load": kind,
        "true": ratio,
        "comparisons": comparisons,
        **{name: outcomes[name] for name in ("PASS", "FAIL", "NOT-MEASURED")},
        "ratio": [seen[0], seen[len(seen) // 2], seen[-1]],
        "seconds": [sum(r[2] for r in results) / comparisons, max(r[2] for r in results)],
        "quads": sum(r[3] for r in results) / comparisons,
    }


def table(rows: list[dict]) -> str:
    """Returns the rows as markdown."""
    heads = "function | measured | load | true ratio | comparisons | PASS | FAIL | NOT-MEASURED"
    lines = [
        f"| {heads} | ratio found: least, median, most | quads | seconds: mean, most |",
        f"|{'---|' * 11}",
    ]
    for r in rows:
        ratio = ", ".join(f"{v:.3f}" for v in r["ratio"])
        seconds = ", ".join(f"{v:.2f}" for v in r["seconds"])
        lines.append(
            f"| {r['function']} | {r['us']:.1f} us | {r['load']} | {r['true']:.2f} | {r['comparisons']} | {r['PASS']} "
            f"| {r['FAIL']} | {r['NOT-MEASURED']} | {ratio} | {r['quads']:.0f} | {seconds} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--comparisons", type=int, default=300)
    parser.add_argument("--load", action="append", choices=("idle", "loaded"))
    parser.add_argument("--device", default="cpu", choices=tuple(WORK))
    parser.add_argument("--ratio", action="append", type=float)
    parser.add_argument("--function", action="append", help="name of a function, such as '1 ms'")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    rows = []
    with threads(1):
        for kind in given.load or ["idle"]:
            with load(kind):
                for work in (w for w in WORK[given.device] if w.name in (given.function or [w.name])):
                    for ratio in given.ratio or RATIOS:
                        rows.append(row(work, given.device, kind, ratio, given.comparisons))
                        print(table(rows[-1:]).splitlines()[-1], flush=True)
                        if given.json:
                            given.json.write_text(json.dumps(rows, indent=1))
    where = platform.processor() or platform.machine()
    name = torch.cuda.get_device_name() if given.device == "cuda" else f"{os.cpu_count()} CPUs ({where})"
    print(f"\n{name}, torch {torch.__version__}, Python {platform.python_version()}\n\n{table(rows)}")
    if given.markdown:
        given.markdown.write_text(table(rows) + "\n")


if __name__ == "__main__":
    main()
