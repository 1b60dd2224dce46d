"""Largest errors against float64, of eager and of fusion_core, on samples of the operator database that differ.

    python tests/conformance/errors.py --device cuda tanh/bfloat16/train/0-1 native_batch_norm/bfloat16/train/0-1 ...

A key is what the operator run prints; of each, the first sample is taken: its results, then the gradients of its inputs.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import Any

import torch
from opinfo_cases import OPS, Case, samples
from torch.utils import _pytree as pytree


def case_of(key: str) -> Case:
    """Returns the case of one sample that a key names."""
    op, dtype, form, span = key.split("/")
    first = int(span.split("-")[0])
    return Case(op, getattr(torch, dtype), form, first, first + 1)


Results = list[torch.Tensor | None]


def results(function: Any, sample: tuple[Any, ...], dtype: torch.dtype, *, double: bool) -> Results:
    """Returns what the function gives for copies of the sample, and the gradients of its inputs."""
    leaves = []

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        copy = value.detach().clone()
        if double and copy.dtype.is_complex:
            copy = copy.to(torch.complex128)
        elif double and copy.dtype.is_floating_point:
            copy = copy.double()
        if value.requires_grad:
            leaves.append(copy.requires_grad_())
        return copy

    first, args, kwargs = pytree.tree_map(copied, sample)
    found = [t for t in pytree.tree_leaves(function(first, *args, **kwargs)) if isinstance(t, torch.Tensor)]
    roots = [t for t in found if t.requires_grad]
    generator = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(t.shape, generator=generator).to(t.device, dtype).to(t.dtype) for t in roots]
    if roots:
        torch.autograd.backward(roots, cotangents)
    return [t.detach() for t in found] + [leaf.grad for leaf in leaves]


def _errors(found: Results, exact: Results) -> str:
    return " ".join(_error(a, b) for a, b in zip(found, exact, strict=True))


def _error(a: torch.Tensor | None, b: torch.Tensor | None) -> str:
    """Returns the largest error, and `-` where there is nothing to measure."""
    if a is None or b is None or not b.numel() or not (b.dtype.is_floating_point or b.dtype.is_complex):
        return "-"
    wide = a.to(b.dtype)
    return f"{torch.where(wide == b, 0, (wide - b).abs()).max():.1e}"


def main() -> None:
    """Prints one line a key."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("keys", nargs="+")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    for key in given.keys:
        case = case_of(key)
        (sample,) = samples(case, given.device)
        function = OPS[case.op].get_op()
        torch._dynamo.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            eager = results(function, sample, case.dtype, double=False)
            compiled = torch.compile(function, backend="fusion_core")
            ours = results(compiled, sample, case.dtype, double=False)
            exact = results(function, sample, case.dtype, double=True)
        scale = _errors([None if t is None else torch.zeros_like(t) for t in exact], exact)
        sys.stdout.write(
            f"{key}: eager {_errors(eager, exact)}; fusion_core {_errors(ours, exact)}; of {scale}\n"
        )


if __name__ == "__main__":
    main()
