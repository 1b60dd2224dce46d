"""The steps of a plan; each reads and writes numbered slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from fusion_core.errors import KernelError
from fusion_core.executors.base import Kernel
from fusion_core.lowering.types import layout_of_strides
from fusion_core.program.ir import Layout

Slots = list[Any]
_Geometry = tuple[torch.Size, tuple[int, ...]]

_STRIDED = torch.strided
_NO_LIKES: dict[int, _Geometry] = {}


@dataclass(frozen=True, slots=True)
class SlotRef:
    """Stands for a slot inside the arguments of an eager step."""

    index: int


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Where a kernel's input comes from, what is checked of it, and the view of it that the kernel gets.

    `strides` (in elements) or, where sizes are symbolic, `layout` are those that the program was made for; `trusted` inputs
    were checked before the call; `fixed` ones have the same sizes at every call. `view` makes the kernel's view, or is None
    where the kernel gets the tensor itself.
    """

    slot: int
    strides: tuple[int, ...] | None
    layout: Layout | None
    view: Callable[[torch.Tensor], torch.Tensor] | None
    trusted: bool = False
    fixed: bool = False

    def fits(self, tensor: torch.Tensor) -> bool:
        """True if the tensor lies in memory as the program expects."""
        if tensor.layout is not torch.strided:  # fake tensors call mkldnn tensors strided
            return False
        if self.strides is None:
            return layout_of_strides(tuple(tensor.shape), tensor.stride()) == self.layout
        if tensor.stride() == self.strides:
            return True
        dims = zip(tensor.shape, tensor.stride(), self.strides, strict=True)
        return all(size == 1 or real == expected for size, real, expected in dims)


# Views for kernels are made of `tensor.data`: one of the tensor itself would keep it alive, and share its version counter.


def flat_view(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a dense tensor as one dimension in memory order."""
    return tensor.data.as_strided((tensor.numel(),), (1,))


def row_major_view(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous tensor as one dimension."""
    return tensor.data.view(-1)


def lifted_view(missing: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns what puts `missing` dimensions of size 1 before those of a tensor."""
    index = (None,) * missing
    return lambda tensor: tensor.data[index]


def getter(indices: tuple[int, ...]) -> Callable[[Slots], tuple[Any, ...]]:
    """Returns what takes the values at `indices` out of a list, faster than a loop does."""
    if len(indices) < 2:  # an itemgetter of one index returns no tuple
        return lambda values: tuple(values[i] for i in indices)
    return itemgetter(*indices)


class Inputs:
    """The inputs of one kernel, bound: what the hot path needs of their specifications."""

    def __init__(self, specs: tuple[InputSpec, ...]) -> None:
        self.specs = specs
        self.slots = tuple(spec.slot for spec in specs)
        self._all = getter(self.slots)
        self._checked = tuple(
            (i, spec.strides, spec.fits) for i, spec in enumerate(specs) if not spec.trusted
        )
        self._viewed = tuple((i, spec.view) for i, spec in enumerate(specs) if spec.view)

    @property
    def are_checked(self) -> bool:
        """True where a tensor may lie in memory otherwise than expected."""
        return bool(self._checked)

    def tensors(self, slots: Slots) -> list[torch.Tensor] | None:
        """Returns the tensors of the slots; None where one does not lie in memory as expected."""
        found = list(self._all(slots))
        for position, strides, fits in self._checked:
            tensor = found[position]  # `fits` says the same; the common case does without the call
            if (tensor.layout is not _STRIDED or tensor.stride() != strides) and not fits(tensor):
                return None
        return found

    def viewed(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Puts the views that the kernel gets in the place of the tensors, and returns the list."""
        for position, make in self._viewed:
            tensors[position] = make(tensors[position])
        return tensors


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Where a kernel's output goes, and its sizes and strides in elements.

    Where they are symbolic, a flat output is laid out as one of the kernel's inputs (`Launch.likes`), any other one
    densely, with its dimensions in `order` from the outermost to the innermost.
    """

    slot: int
    rank: int
    sizes: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    order: tuple[int, ...]
    flat: bool = False


@dataclass(frozen=True, slots=True)
class RunEager:
    """Calls one operator; slots may stand anywhere in its arguments, also in lists."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    reads: tuple[int, ...]
    output: int

    def run(self, slots: Slots) -> None:
        """Calls the operator on the values of its slots."""
        given = [_filled(a, slots) for a in self.arguments]
        slots[self.output] = self.function(
            *given, **{name: _filled(a, slots) for name, a in self.keywords.items()}
        )


def has_slots(argument: Any) -> bool:
    """True for the place of a slot, and for nests of lists that have one in them."""
    items = argument.values() if isinstance(argument, dict) else argument
    is_nest = isinstance(argument, (list, tuple, dict))
    return isinstance(argument, SlotRef) or (is_nest and any(map(has_slots, items)))


def _filled(nest: Any, slots: Slots) -> Any:
    """Returns an argument with values in the place of slots; one without slots is returned itself."""
    if isinstance(nest, SlotRef):
        return slots[nest.index]
    if not has_slots(nest):
        return nest
    if isinstance(nest, dict):
        return {name: _filled(item, slots) for name, item in nest.items()}
    return [_filled(item, slots) for item in nest]


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
    """Runs a kernel. `reads` are the slots that the kernel or the eager steps need; nobody needs `consumed` ones later.
    Values in `reused` were written over an input that dies here. `written` are the slots of the inputs that the kernel
    writes; `reduces` tells that it sums or the like. `likes` are slots of outputs, each with the number of the input whose
    sizes and strides it gets.

    Torch's fake tensors foretell the strides of some operators wrongly; where they did, or where the kernel fails, the
    `eager` steps run instead, which give every value eager's layout.
    """

    kernel: Kernel
    inputs: Inputs
    reads: tuple[int, ...]
    eager: tuple[RunEager | CopyBack, ...]
    outputs: tuple[OutputSpec, ...]
    forwarded: tuple[tuple[int, int], ...]
    consumed: tuple[int, ...] = ()
    reused: tuple[tuple[int, int], ...] = ()
    written: tuple[int, ...] = ()
    reduces: bool = False
    likes: tuple[tuple[int, int], ...] = ()

    def run(self, slots: Slots) -> None:
        """Launches, and lets values that now live in a written input be read there."""
        tensors = self.inputs.tensors(slots)
        if tensors is None:
            self.run_eager(slots)
            return
        likes = {slot: _geometry(tensors[given]) for slot, given in self.likes} if self.likes else _NO_LIKES
        tensors = self.inputs.viewed(tensors)
        for index in self.consumed:
            slots[index] = None
        try:
            results = self.kernel(tensors)
        except KernelError:
            self.run_eager(slots)
            return
        for spec, result in zip(self.outputs, results, strict=True):
            slots[spec.slot] = laid_out(result, spec, likes.get(spec.slot))
        for value, target in self.forwarded:
            slots[value] = slots[target]
        for value, target in self.reused:
            slots[value] = slots[target]

    def run_eager(self, slots: Slots) -> None:
        """Runs what the kernel stands for."""
        own = list(slots)
        for step in self.eager:
            step.run(own)
        for value in (*(spec.slot for spec in self.outputs), *(value for value, _ in self.reused)):
            slots[value] = own[value]
        for value, target in self.forwarded:
            slots[value] = slots[target]


def _geometry(tensor: torch.Tensor) -> _Geometry:
    return tensor.shape, tensor.stride()


def laid_out(result: torch.Tensor, spec: OutputSpec, like: _Geometry | None = None) -> torch.Tensor:
    """Returns the output with eager's sizes and strides; a copy only where the kernel chose other strides.

    It is no view: autograd and Dynamo treat a view of a tensor that nobody else has otherwise than eager's result.
    """
    result = result if result._base is None else result.data  # noqa: SLF001 - torch has no public name
    if spec.flat:
        if spec.sizes is not None and spec.strides is not None:
            return result.as_strided_(spec.sizes, spec.strides)
        return result if like is None else result.as_strided_(*like)
    extra = result.dim() - spec.rank
    if extra:
        result = result.as_strided_(result.shape[extra:], result.stride()[extra:])
    if spec.sizes is None or spec.strides is None:
        made = torch.empty_permuted(result.shape, spec.order, dtype=result.dtype, device=result.device)
        return result if made.stride() == result.stride() else made.copy_(result)
    if result.stride() == spec.strides:
        return result
    dims = zip(spec.sizes, result.stride(), spec.strides, strict=True)
    if all(size == 1 or found == wanted for size, found, wanted in dims):
        return result.as_strided_(spec.sizes, spec.strides)
    made = torch.empty_strided(spec.sizes, spec.strides, dtype=result.dtype, device=result.device)
    return made.copy_(result)


@dataclass(frozen=True, slots=True)
class Free:
    """Forgets values after their last use."""

    slots: tuple[int, ...]

    def run(self, slots: Slots) -> None:
        """Drops the references; memory returns to the allocator unless a view holds it."""
        for index in self.slots:
            slots[index] = None
