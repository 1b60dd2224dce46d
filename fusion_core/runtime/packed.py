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
        if not self._launch(slots):
            own: list[Any] = list(slots)
            for step in self.eager:
                step.run(own)
        for value, target in self.forwarded:
            slots[value] = slots[target]

    def _launch(self, slots: Slots) -> bool:
        given: list[list[torch.Tensor]] = []
        for inputs in self.inputs:
            tensors = inputs.tensors(slots)
            if tensors is None:
                return False
            given.append(inputs.viewed(tensors))
        buffers = [self._gather(position, tensors) for position, tensors in enumerate(given)]
        try:
            self.kernel(list(buffers))  # the kernel may empty its list
        except KernelError:
            return False
        for position in self.targets:
            self._scatter(buffers[position], given[position])
        return True

    def _gather(self, position: int, tensors: list[torch.Tensor]) -> torch.Tensor:
        if position in self.shared:
            return tensors[0]
        laid = torch.stack(tensors) if tensors[0].dim() == 0 else torch.cat(tensors)
        if position in self.wide or max(self.sizes) == 1:
            return laid
        if not self._member_of_element:
            members = torch.arange(len(self.sizes), dtype=torch.int32).repeat_interleave(
                torch.tensor(self.sizes)
            )
            self._member_of_element.append(members.to(laid.device))
        return laid.index_select(0, self._member_of_element[0])

    def _scatter(self, buffer: torch.Tensor, targets: list[torch.Tensor]) -> None:
        if targets[0].dim() == 0:
            torch._foreach_copy_(targets, list(buffer.unbind()))
        else:
            torch.split_with_sizes_copy(buffer, self.sizes, out=targets)


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
