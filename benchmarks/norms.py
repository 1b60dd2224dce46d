"""Norms, losses and a fused epilogue, forward and backward, on a CUDA device: milliseconds by arm, as ratios to inductor.

    python benchmarks/norms.py [--dtypes float32 bfloat16] [--arms eager inductor fusion_core] [--markdown FILE]

Forward is timed under `no_grad`; backward is a call of `torch.autograd.grad` on a kept graph. Medians of CUDA events.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from adam import median_ms, write_table

Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A function of tensors; `make(dtype)` returns its inputs, those of floating point requiring gradients."""

    name: str
    function: Function
    make: Callable[[torch.dtype], tuple[torch.Tensor, ...]]


def _randn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


def _layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def _rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), w)


def _epilogue(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.gelu(x + bias), 0.1) + residual


CASES = [
    Case(
        "layer_norm 16384x4096",
        _layer_norm,
        lambda d: (_randn(16384, 4096, dtype=d), _randn(4096, dtype=d), _randn(4096, dtype=d)),
    ),
    Case("rms_norm 16384x4096", _rms_norm, lambda d: (_randn(16384, 4096, dtype=d), _randn(4096, dtype=d))),
    Case(
        "softmax cross entropy 8192x32000",
        F.cross_entropy,
        lambda d: (_randn(8192, 32000, dtype=d), torch.randint(0, 32000, (8192,), device="cuda")),
    ),
    Case(
        "gelu bias dropout residual 16384x4096",
        _epilogue,
        lambda d: (_randn(16384, 4096, dtype=d), _randn(4096, dtype=d), _randn(16384, 4096, dtype=d)),
    ),
]


def arms() -> dict[str, Callable[[Function], Function]]:
    """How each arm compiles a function."""
    return {
        "eager": lambda f: f,
        "inductor": lambda f: torch.compile(f, backend="inductor", dynamic=False),
        "fusion_core": lambda f: torch.compile(f, backend="fusion_core", dynamic=False),
        "fusion_core_fused_rng": lambda f: torch.compile(
            f, backend="fusion_core", dynamic=False, options={"rng": "fused"}
        ),
    }


def measure(
    case: Case, dtype: torch.dtype, compile_with: Callable[[Function], Function]
) -> tuple[float, float]:
    """Returns milliseconds of forward and backward."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = case.make(dtype)
    function = compile_with(case.function)
    with torch.no_grad():
        forward, _ = median_ms(lambda: function(*inputs))
    result = function(*inputs)
    cotangent = torch.randn_like(result)
    leaves = [t for t in inputs if t.requires_grad]
    backward, _ = median_ms(lambda: torch.autograd.grad(result, leaves, cotangent, retain_graph=True))
    return forward, backward


def main() -> None:
    """Measures all cases and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--arms", nargs="*", default=list(arms()), choices=list(arms()))
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    header = ["case", "dtype", "direction", *(f"{a} ms" for a in given.arms), "fusion_core / inductor"]
    rows = []
    for case in CASES:
        for name in given.dtypes:
            times: dict[str, Any] = {}
            for arm in given.arms:
                times[arm] = measure(case, getattr(torch, name), arms()[arm])
            for index, direction in enumerate(("forward", "backward")):
                cells = [f"{times[a][index]:.4f}" for a in given.arms]
                known = "inductor" in times and "fusion_core" in times
                ratio = f"{times['fusion_core'][index] / times['inductor'][index]:.2f}" if known else "-"
                rows.append([case.name, name, direction, *cells, ratio])
                print(" | ".join(rows[-1]), flush=True)
    write_table(header, rows, given.markdown)


if __name__ == "__main__":
    main()
