"""The steps of a plan; each reads and writes numbered slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fusion_core.errors import KernelError
from fusion_core.executors.base import Kernel
from fusion_core.lowering.types import layout_of_strides
from fusion_core.program.ir import Layout

Slots = list[Any]


@dataclass(frozen=True, slots=True)
class SlotRef:
    """Stands for a slot inside the arguments of an eager step."""

    index: int


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Where a kernel's input comes from and how it is given.

    `strides` (in elements) or, where sizes are symbolic, `layout` are those that the program was made for; `trusted` inputs
    were checked before the call. `rank` is the number of dimensions that the program expects; `flat` inputs are dense and
    given as one dimension. `host` inputs are given as they are.
    """

    slot: int
    strides: tuple[int, ...] | None
    layout: Layout | None
    rank: int
    flat: bool = False
    host: bool = False
    trusted: bool = False

    def fits(self, tensor: torch.Tensor) -> bool:
        """True if the tensor lies in memory as the program expects."""
        if self.trusted or self.host:
            return True
        if tensor.layout is not torch.strided:  # fake tensors call mkldnn tensors strided
            return False
        if self.strides is None:
            return layout_of_strides(tuple(tensor.shape), tensor.stride()) == self.layout
        if tensor.stride() == self.strides:
            return True
        dims = zip(tensor.shape, tensor.stride(), self.strides, strict=True)
        return all(size == 1 or real == expected for size, real, expected in dims)

    def given(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the view of `tensor` that the kernel gets."""
        missing = self.rank - tensor.dim()
        if self.host or (missing == 0 and not (self.flat and self.rank == 1 and tensor.stride(0) != 1)):
            return tensor
        if self.flat:
            return tensor.view(-1) if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))
        return tensor[(None,) * missing]


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Where a kernel's output goes, and its sizes and strides in elements.

    Where they are symbolic, a flat output is laid out as the kernel's input number `like`, any other one as it comes.
    """

    slot: int
    rank: int
    sizes: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    flat: bool = False
    like: int | None = None


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
    """Runs a kernel.

    Torch's fake tensors foretell the strides of some operators wrongly; where they did, or where the kernel fails, the
    `eager` steps run instead, which give every value eager's layout.
    """

    kernel: Kernel
    inputs: tuple[InputSpec, ...]
    eager: tuple[RunEager | CopyBack, ...]
    outputs: tuple[OutputSpec, ...]
    forwarded: tuple[tuple[int, int], ...]

    def run(self, slots: Slots) -> None:
        """Launches, and lets values that now live in a written input be read there."""
        tensors = [slots[spec.slot] for spec in self.inputs]
        if not all(spec.fits(t) for spec, t in zip(self.inputs, tensors, strict=True)):
            self._run_eager(slots)
            return
        try:
            results = self.kernel([spec.given(t) for spec, t in zip(self.inputs, tensors, strict=True)])
        except KernelError:
            self._run_eager(slots)
            return
        for spec, result in zip(self.outputs, results, strict=True):
            slots[spec.slot] = _laid_out(result, spec, None if spec.like is None else tensors[spec.like])
        for value, target in self.forwarded:
            slots[value] = slots[target]

    def _run_eager(self, slots: Slots) -> None:
        own = list(slots)
        for step in self.eager:
            step.run(own)
        for spec in self.outputs:
            slots[spec.slot] = own[spec.slot]
        for value, target in self.forwarded:
            slots[value] = slots[target]


def _laid_out(result: torch.Tensor, spec: OutputSpec, like: torch.Tensor | None) -> torch.Tensor:
    """Returns the output with eager's sizes and strides; a copy only where the kernel chose other strides."""
    if spec.flat:
        if spec.sizes is not None and spec.strides is not None:
            return result.as_strided(spec.sizes, spec.strides)
        return result if like is None else result.as_strided(like.shape, like.stride())
    extra = result.dim() - spec.rank
    if extra:
        result = result.as_strided(result.shape[extra:], result.stride()[extra:])
    if spec.sizes is None or spec.strides is None or result.stride() == spec.strides:
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
