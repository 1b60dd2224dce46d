"""The steps that run many small components in one launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from fusion_core.errors import KernelError
from fusion_core.executors.base import Kernel
from fusion_core.runtime.steps import CopyBack, Inputs, RunEager, Slots


@dataclass(frozen=True, slots=True)
class PackedLaunch:
    """Lays the inputs of all members end to end, launches once, and copies what was written back.

    `inputs` has, for each input of the program, the tensors of all members; those at `shared` have a single one. `wide`
    inputs have as many elements as the member has (`sizes`), the others one each. `targets` are the written inputs.
    `reads` are the slots that the kernel or the eager steps need.
    """

    kernel: Kernel
    inputs: tuple[Inputs, ...]
    shared: frozenset[int]
    wide: frozenset[int]
    targets: tuple[int, ...]
    sizes: list[int]
    reads: tuple[int, ...]
    eager: tuple[RunEager | CopyBack, ...]
    forwarded: tuple[tuple[int, int], ...]
    reduces: bool = False
    _member_of_element: list[torch.Tensor] = field(default_factory=list)

    def run(self, slots: Slots) -> None:
        """Launches, and lets values that now live in a written input be read there.

        Runs the members' eager steps where an input does not fit or the kernel fails.
        """
        found = [inputs.tensors(slots) for inputs in self.inputs]
        given = [i.viewed(t) for i, t in zip(self.inputs, found, strict=True) if t is not None]
        if len(given) < len(found) or not self.launch(given):
            self.run_eager(slots)
        for value, target in self.forwarded:
            slots[value] = slots[target]

    def launch(self, given: list[list[torch.Tensor]]) -> bool:
        """Runs on the views of all members, by input of the program; False where the kernel fails, and writes nothing."""
        buffers = [self._gather(position, tensors) for position, tensors in enumerate(given)]
        try:
            self.kernel(list(buffers))  # the kernel may empty its list
        except KernelError:
            return False
        for position in self.targets:
            sizes = self.sizes if position in self.wide else [1] * len(self.sizes)
            torch.split_with_sizes_copy(buffers[position], sizes, out=given[position])
        return True

    def run_eager(self, slots: Slots) -> None:
        """Does what the kernel stands for, member by member."""
        own: list[Any] = list(slots)
        for step in self.eager:
            step.run(own)

    def _gather(self, position: int, tensors: list[torch.Tensor]) -> torch.Tensor:
        if position in self.shared:
            return tensors[0]
        laid = torch.cat(tensors)
        if position in self.wide or max(self.sizes) == 1:
            return laid
        if not self._member_of_element:
            members = torch.arange(len(self.sizes), dtype=torch.int32).repeat_interleave(
                torch.tensor(self.sizes)
            )
            self._member_of_element.append(members.to(laid.device))
        return laid.index_select(0, self._member_of_element[0])


@dataclass(frozen=True, slots=True)
class ListLaunch:
    """Updates the tensors of all members in place by one list operator: `function(tensors, *numbers)`."""

    function: Callable[..., Any]
    reads: tuple[int, ...]
    numbers: tuple[Any, ...]
    forwarded: tuple[tuple[int, int], ...]

    def run(self, slots: Slots) -> None:
        """Updates, and lets the new values be read in the written inputs."""
        self.function([slots[i] for i in self.reads], *self.numbers)
        for value, target in self.forwarded:
            slots[value] = slots[target]
