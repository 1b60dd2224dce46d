"""The optimizers of `torch.optim` over the parameters of a GPT-2 small: eager, inductor and fusion_core.

    python benchmarks/optimizers.py [--optimizers adam sgd ...] [--arms eager inductor fusion_core] [-n 3] [--markdown FILE]
    python benchmarks/optimizers.py --device cpu --small        # do all of them run, and what are the stages' seconds?

Up to `-n` arms compile side by side; times are taken by one process at a time, which holds a lock. The floor is what the
tensors that a step reads and writes need at the bandwidth of a copy in the same process: gradients once, parameters and
state twice. `own stages` are the seconds that fusion_core spends beside Dynamo and AOTAutograd where nothing was
compiled before (the arm `stages`, of which nothing else is measured); nvFuser compiles later, at the first call.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from adam import floor_ms, gpt2_small_shapes, median_ms, parser_of, run_apart, stream_ms, write_table

import fusion_core

Settings = tuple[type[torch.optim.Optimizer], dict[str, Any]]

OPTIMIZERS: dict[str, Settings] = {
    "adam": (torch.optim.Adam, {"lr": 1e-3, "capturable": True}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-3, "capturable": True}),
    "amsgrad": (torch.optim.AdamW, {"lr": 1e-3, "capturable": True, "amsgrad": True}),
    "sgd": (torch.optim.SGD, {"lr": 1e-3}),
    "momentum": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
    "nesterov": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 1e-3, "momentum": 0.5, "capturable": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-3}),
    "adadelta": (torch.optim.Adadelta, {"lr": 1e-1, "capturable": True}),
    "adamax": (torch.optim.Adamax, {"lr": 1e-3, "capturable": True}),
    "nadam": (torch.optim.NAdam, {"lr": 1e-3, "capturable": True}),
    "radam": (torch.optim.RAdam, {"lr": 1e-3, "capturable": True}),
    "asgd": (torch.optim.ASGD, {"lr": 1e-3, "capturable": True}),
    "rprop": (torch.optim.Rprop, {"lr": 1e-3, "capturable": True}),
}
ARMS: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "inductor": {"backend": "inductor"},
    "fusion_core": {"backend": "fusion_core"},
    "fusion_core_no_graphs": {"backend": "fusion_core", "options": {"graphs": False}},
    "stages": None,
}


@dataclass
class Row:
    """One arm on one optimizer; NaN is what was not measured."""

    optimizer: str
    arm: str
    compile_s: float = math.nan
    stages_s: float = math.nan
    alone_ms: float = math.nan
    stream_ms: float = math.nan
    floor_ms: float = math.nan
    host_us: float = math.nan
    eager_steps: int | None = None
    failed: str = ""

    def cells(self) -> list[str]:
        """Returns the cells of the table's row."""
        if self.failed:
            return [self.optimizer, self.arm, *["-"] * 7, self.failed]
        times = [self.compile_s, self.stages_s, self.alone_ms, self.stream_ms, self.stream_ms / self.floor_ms]
        cells = ["-" if math.isnan(n) else f"{n:.3f}" for n in times]
        host = "-" if math.isnan(self.host_us) else f"{self.host_us:.0f}"
        eager = "-" if self.eager_steps is None else str(self.eager_steps)
        return [self.optimizer, self.arm, *cells, host, eager, ""]


def make(name: str, device: str, *, small: bool) -> torch.optim.Optimizer:
    """Returns the optimizer with gradients and with the state of one step."""
    torch.manual_seed(0)
    shapes = gpt2_small_shapes(2, 64) if small else gpt2_small_shapes()
    parameters = [torch.nn.Parameter(torch.randn(s, device=device)) for s in shapes]
    for p in parameters:
        p.grad = torch.randn_like(p)
    kind, settings = OPTIMIZERS[name]
    settings = {k: v and device == "cuda" if k == "capturable" else v for k, v in settings.items()}
    optimizer = kind(parameters, foreach=True, **settings)
    optimizer.step()
    return optimizer


def measure(name: str, arm: str, given: argparse.Namespace) -> Row:
    """Measures one arm in this process; times only on a CUDA device."""
    row, options = Row(name, arm), ARMS[arm]
    optimizer = make(name, given.device, small=given.small)
    if arm == "stages":
        told = fusion_core.explain(optimizer.step)
        row.stages_s, row.eager_steps = sum(spent for _, spent in told.seconds), len(told.eager_steps)
        return row
    step = optimizer.step if options is None else torch.compile(optimizer.step, **options)
    begin = time.perf_counter()
    for _ in range(3):
        step()
    if given.device == "cuda":
        torch.cuda.synchronize()
    if options is not None:
        row.compile_s = time.perf_counter() - begin
    if given.device == "cuda":
        with _alone(given.lock):
            row.alone_ms, row.host_us = median_ms(step)
            row.stream_ms = stream_ms(step)
            row.floor_ms = floor_ms(_moved_bytes(optimizer))
    return row


def _moved_bytes(optimizer: torch.optim.Optimizer) -> int:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    return sum(3 * p.nbytes for p in parameters) + sum(2 * t.nbytes for t in state)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measured_apart(name: str, arm: str, given: argparse.Namespace, lock: Path) -> Row:
    """Measures one arm in a process of its own."""
    more = ["--device", given.device, "--lock", str(lock), *(["--small"] if given.small else [])]
    found, failed = run_apart(__file__, "--one", name, arm, *more)
    row = Row(name, arm, failed=failed) if found is None else Row(**found)
    print(" | ".join(row.cells()), flush=True)
    return row


HEADER = [
    "optimizer",
    "arm",
    "compile s",
    "own stages s",
    "ms alone",
    "ms in a row",
    "x floor",
    "host us",
    "eager steps",
    "",
]


def main() -> None:
    """Measures what is wanted and prints the table."""
    parser = parser_of(__doc__, optimizers=OPTIMIZERS, arms=ARMS)
    parser.add_argument("-n", type=int, default=1, help="arms that compile side by side")
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(asdict(measure(*given.one, given))))
        return
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(given.n) as pool:
        wanted = [(name, arm) for name in given.optimizers for arm in given.arms]
        lock = Path(directory, "lock")
        rows = list(pool.map(lambda pair: measured_apart(*pair, given, lock), wanted))
    write_table(HEADER, [r.cells() for r in rows], given.markdown)


if __name__ == "__main__":
    main()
