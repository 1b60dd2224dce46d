"""One Adam step over the parameters of a GPT-2 small on a CUDA device: compile seconds and milliseconds a step by arm.

    python benchmarks/adam.py [--scale 1 2 4] [--arms eager_foreach fusion_core ...] [--markdown FILE]

The floor is measured in the same run: 28 bytes a parameter (read p, g, m, v; write p, m, v) at the bandwidth of a copy.
Every arm builds parameters, gradients and optimizer anew; times are medians of CUDA events around one step that is waited
for (alone: it includes the host's time before the first kernel) and around many that are not (in a row).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import fusion_core
from fusion_core.executors.version import installed

Step = Callable[[], None]


@dataclass
class Row:
    """One arm at one number of parameters."""

    arm: str
    tensors: int
    compile_s: float | None
    step_ms: float
    stream_ms: float
    floor_ms: float
    host_us: float
    notes: dict[str, Any] = field(default_factory=dict)

    def cells(self) -> list[str]:
        """Returns the cells of the table's row."""
        compiled = "-" if self.compile_s is None else f"{self.compile_s:.2f}"
        notes = ", ".join(f"{k} {v}" for k, v in self.notes.items())
        ratio = f"{self.step_ms / self.floor_ms:.2f}"
        stream_ratio = f"{self.stream_ms / self.floor_ms:.2f}"
        return [
            self.arm,
            str(self.tensors),
            compiled,
            f"{self.step_ms:.3f}",
            ratio,
            f"{self.stream_ms:.3f}",
            stream_ratio,
            f"{self.host_us:.0f}",
            notes,
        ]


def gpt2_small_shapes(layers: int = 12, width: int = 768) -> list[tuple[int, ...]]:
    """The 148 parameter shapes of a GPT-2 small (124.4 M parameters) for 12 layers."""
    block: list[tuple[int, ...]] = [
        (width,),
        (width,),
        (3 * width, width),
        (3 * width,),
        (width, width),
        (width,),
    ]
    block += [(width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [(50257, width), (1024, width), *block * layers, (width,), (width,)]


def make_optimizer(scale: int, **options: Any) -> torch.optim.Optimizer:
    """Returns Adam over `scale` times the shapes, with gradients and with the state of one step."""
    torch.manual_seed(0)
    shapes = gpt2_small_shapes() * scale
    parameters = [torch.nn.Parameter(torch.randn(s, device="cuda")) for s in shapes]
    for p in parameters:
        p.grad = torch.randn_like(p)
    return torch.optim.Adam(parameters, lr=1e-3, **options)


def median_ms(step: Step, rounds: int = 30) -> tuple[float, float]:
    """Returns the median milliseconds on the device and the median host microseconds of one call."""
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    device, host = [], []
    for _ in range(rounds):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        start.record()
        step()
        stop.record()
        host.append((time.perf_counter() - begin) * 1e6)
        stop.synchronize()
        device.append(start.elapsed_time(stop))
    return statistics.median(device), statistics.median(host)


def stream_ms(step: Step, rounds: int = 5, steps: int = 20) -> float:
    """Returns the median milliseconds of one of many steps that are not waited for, as in training."""
    times = []
    for _ in range(rounds):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(steps):
            step()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / steps)
    return statistics.median(times)


def parser_of(doc: str | None, **choices: Iterable[str]) -> argparse.ArgumentParser:
    """Returns the arguments of a benchmark of `arms` on other named things, each pair in a process of its own (`--one`)."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else "")
    for name, known in choices.items():
        parser.add_argument(f"--{name}", nargs="*", default=list(known), choices=list(known))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes for a look whether all of it runs")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    return parser


def write_table(header: list[str], rows: list[list[str]], path: Path | None) -> None:
    """Prints a markdown table under the machine's versions, and writes it to `path`."""
    lines = [" | ".join(cells) for cells in (header, ["---"] * len(header), *rows)]
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    device = f"{name}, torch {torch.__version__}, nvFuser {installed()}"
    table = "\n".join([device, "", *(f"| {line} |" for line in lines), ""])
    print(table)
    if path:
        path.write_text(table)


def floor_ms(moved_bytes: int) -> float:
    """Returns the time of moving so many bytes at the bandwidth of a large copy."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    milliseconds, _ = median_ms(lambda: target.copy_(source))
    return moved_bytes / (2 * source.nbytes / milliseconds)


def captured(step: Step) -> Step:
    """Returns the replay of `step` as a CUDA graph; its kernels live as long as what `step` compiled."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def compiled(optimizer: torch.optim.Optimizer, **options: Any) -> tuple[Step, float]:
    """Returns the compiled step and the seconds that its first two calls took (the first also makes the state)."""
    torch._dynamo.reset()
    step = torch.compile(optimizer.step, **options)
    begin = time.perf_counter()
    step()
    step()
    torch.cuda.synchronize()
    return step, time.perf_counter() - begin


def _frontend_only(optimizer: torch.optim.Optimizer) -> tuple[Step, float]:
    return compiled(optimizer, backend="aot_eager")


Arm = Callable[[int], tuple[Step, float | None, dict[str, Any]]]


def _eager(**options: Any) -> Arm:
    return lambda scale: (make_optimizer(scale, **options).step, None, {})


def _eager_graph(**options: Any) -> Arm:
    return lambda scale: (captured(make_optimizer(scale, **options, capturable=True).step), None, {})


def _inductor(mode: str, **options: Any) -> Arm:
    def build(scale: int) -> tuple[Step, float | None, dict[str, Any]]:
        step, seconds = compiled(
            make_optimizer(scale, capturable=True, **options), backend="inductor", mode=mode
        )
        return step, seconds, {}

    return build


def _fusion_core(*, graph: bool = False, foreach: bool = True, graphs: str | bool = False) -> Arm:
    def build(scale: int) -> tuple[Step, float | None, dict[str, Any]]:
        optimizer = make_optimizer(scale, capturable=True, foreach=foreach)
        step, seconds = compiled(optimizer, backend="fusion_core", options={"graphs": graphs})
        if graph:
            return captured(step), seconds, {}
        e = fusion_core.explain(make_optimizer(scale, capturable=True, foreach=foreach).step)
        notes = {
            "kernels": e.kernels,
            "sets": len(e.sets),
            "extra outputs": e.fresh_outputs,
            "eager steps": len(e.eager_steps),
        }
        return step, seconds, notes

    return build


def _aot_eager(scale: int) -> tuple[Step, float | None, dict[str, Any]]:
    step, seconds = _frontend_only(make_optimizer(scale, capturable=True, foreach=True))
    return step, seconds, {}


ARMS: dict[str, Arm] = {
    "eager_foreach": _eager(foreach=True),
    "eager_fused": _eager(fused=True),
    "eager_fused_cuda_graph": _eager_graph(fused=True),
    "aot_eager": _aot_eager,
    "fusion_core": _fusion_core(graphs="auto"),
    "fusion_core_no_graphs": _fusion_core(),
    "fusion_core_loop": _fusion_core(foreach=False),
    "fusion_core_cuda_graph": _fusion_core(graph=True),
    "inductor": _inductor("default", foreach=True),
    "inductor_reduce_overhead": _inductor("reduce-overhead", foreach=True),
}
HEADER = ["arm", "tensors", "compile s", "ms alone", "x floor", "ms in a row", "x floor", "host us", "notes"]


def measure(arm: str, scale: int) -> Row:
    """Measures one arm in this process."""
    step, seconds, notes = ARMS[arm](scale)
    milliseconds, host = median_ms(step)
    in_a_row = stream_ms(step)
    count = sum(torch.Size(s).numel() for s in gpt2_small_shapes() * scale)
    return Row(arm, 148 * scale, seconds, milliseconds, in_a_row, floor_ms(28 * count), host, notes)


def run_apart(script: str, *arguments: str) -> tuple[dict[str, Any] | None, str]:
    """Runs a script in a process of its own, so that no arm compiles in the garbage of another.

    Returns the row that it prints last, as JSON; None where it failed, with the last line of its errors.
    """
    command = [sys.executable, "-W", "ignore", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        return None, (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:120]
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row, ""


def measured_apart(arm: str, scale: int) -> Row:
    """Measures one arm in a process of its own."""
    found, failed = run_apart(__file__, "--one", arm, "--scale", str(scale))
    if found is None:
        return Row(arm, 148 * scale, None, math.nan, math.nan, math.nan, math.nan, {"failed": failed})
    row = Row(**found)
    print(" | ".join(row.cells()), flush=True)
    return row


def main() -> None:
    """Measures the wanted arms and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--scale", type=int, nargs="*", default=[1])
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--one", choices=list(ARMS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(asdict(measure(given.one, given.scale[0]))))
        return
    rows = [measured_apart(arm, scale) for scale in given.scale for arm in given.arms]
    write_table(HEADER, [r.cells() for r in rows], given.markdown)


if __name__ == "__main__":
    main()
