"""The steps of a plan; each reads and writes numbered slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fusion_core.executors.base import Kernel

Slots = list[Any]


@dataclass(frozen=True, slots=True)
class SlotRef:
    """Stands for a slot inside the arguments of an eager step."""

    index: int


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Where a kernel's output goes, and its sizes and strides in elements (None: as the kernel gives them)."""

    slot: int
    sizes: tuple[int, ...] | None
    strides: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class RunEager:
    """Calls one operator; `leaves` are its flattened arguments, slots among them."""

    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    structure: Any
    output: int

    def run(self, slots: Slots) -> None:
        """Calls the operator on the values of its slots."""
        values = [slots[a.index] if type(a) is SlotRef else a for a in self.leaves]
        args, kwargs = pytree.tree_unflatten(values, self.structure)
        slots[self.output] = self.function(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class CopyBack:
    """Writes a value into an input."""

    target: int
    source: int

    def run(self, slots: Slots) -> None:
        """Copies with all of eager's semantics."""
        slots[self.target].copy_(slots[self.source])


@dataclass(frozen=True, slots=True)
class Launch:
    """Runs a kernel. `collapsed` kernels see every dense tensor as one dimension.

    `strides` are those that the inputs were compiled for (None: any). Torch's fake tensors foretell the strides of some
    operators wrongly; where they did, the `eager` steps run instead, which give every value eager's layout.
    """

    kernel: Kernel
    inputs: tuple[int, ...]
    strides: tuple[tuple[int, ...] | None, ...]
    eager: tuple[RunEager | CopyBack, ...]
    outputs: tuple[OutputSpec, ...]
    collapsed: bool
    forwarded: tuple[tuple[int, int], ...]

    def run(self, slots: Slots) -> None:
        """Launches, and lets values that now live in a written input be read there."""
        given = [slots[i] for i in self.inputs]
        if not all(_is_laid_out(t, strides) for t, strides in zip(given, self.strides, strict=True)):
            self._run_eager(slots)
            return
        if self.collapsed:
            given = [_flat(t) for t in given]
        for spec, result in zip(self.outputs, self.kernel(given), strict=True):
            slots[spec.slot] = _laid_out(result, spec, collapsed=self.collapsed)
        for value, target in self.forwarded:
            slots[value] = slots[target]

    def _run_eager(self, slots: Slots) -> None:
        for step in self.eager:
            step.run(slots)
        kept = {spec.slot for spec in self.outputs}
        for step in self.eager:
            if isinstance(step, RunEager) and step.output not in kept:
                slots[step.output] = None
        for value, target in self.forwarded:
            slots[value] = slots[target]


def _is_laid_out(tensor: torch.Tensor, strides: tuple[int, ...] | None) -> bool:
    if tensor.layout is not torch.strided:  # fake tensors call mkldnn tensors strided
        return False
    if strides is None or tensor.stride() == strides:
        return True
    dims = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return all(size == 1 or real == expected for size, real, expected in dims)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dim() == 0 else tensor.as_strided((tensor.numel(),), (1,))


def _laid_out(result: torch.Tensor, spec: OutputSpec, *, collapsed: bool) -> torch.Tensor:
    """Returns the output with eager's strides; a copy only where the kernel chose others."""
    if spec.sizes is None or spec.strides is None:
        return result
    if collapsed and result.dim() > 0:
        return result.as_strided(spec.sizes, spec.strides)
    if result.stride() == spec.strides and tuple(result.shape) == spec.sizes:
        return result
    laid_out = torch.empty_strided(spec.sizes, spec.strides, dtype=result.dtype, device=result.device)
    return laid_out.copy_(result)


@dataclass(frozen=True, slots=True)
class Free:
    """Forgets values after their last use."""

    slots: tuple[int, ...]

    def run(self, slots: Slots) -> None:
        """Drops the references; memory returns to the allocator unless a view holds it."""
        for index in self.slots:
            slots[index] = None


AnyStep = Launch | RunEager | CopyBack | Free
