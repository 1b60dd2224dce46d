"""The step that runs many small components in one launch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from fusion_core.errors import KernelError
from fusion_core.executors.base import Kernel
from fusion_core.runtime.steps import CopyBack, InputSpec, RunEager, Slots


@dataclass(frozen=True, slots=True)
class PackedLaunch:
    """Lays the inputs of all members end to end, launches once, and copies what was written back.

    `inputs` has, for each input of the program, one entry a member; those at `shared` have a single one. `wide` inputs have
    as many elements as the member has (`sizes`), the others one element each. `targets` are the written inputs.
    """

    kernel: Kernel
    inputs: tuple[tuple[InputSpec, ...], ...]
    shared: frozenset[int]
    wide: frozenset[int]
    targets: tuple[int, ...]
    sizes: tuple[int, ...]
    eager: tuple[RunEager | CopyBack, ...]
    forwarded: tuple[tuple[int, int], ...]
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
        tensors = [[slots[spec.slot] for spec in specs] for specs in self.inputs]
        fitting = all(
            spec.trusted or spec.fits(tensor)
            for specs, given in zip(self.inputs, tensors, strict=True)
            for spec, tensor in zip(specs, given, strict=True)
        )
        if not fitting:
            return False
        buffers = [self._gather(position, given) for position, given in enumerate(tensors)]
        try:
            self.kernel(buffers)
        except KernelError:
            return False
        for position in self.targets:
            self._scatter(position, buffers[position], tensors[position])
        return True

    def _gather(self, position: int, tensors: list[torch.Tensor]) -> torch.Tensor:
        specs = self.inputs[position]
        if position in self.shared:
            return specs[0].given(tensors[0])
        if position in self.wide:
            return torch.cat([s.given(t) for s, t in zip(specs, tensors, strict=True)])
        single = torch.stack(tensors) if tensors[0].dim() == 0 else torch.cat([t.view(1) for t in tensors])
        if max(self.sizes) == 1:
            return single
        if not self._member_of_element:
            members = torch.arange(len(self.sizes), dtype=torch.int32).repeat_interleave(
                torch.tensor(self.sizes)
            )
            self._member_of_element.append(members.to(single.device))
        return single.index_select(0, self._member_of_element[0])

    def _scatter(self, position: int, buffer: torch.Tensor, tensors: list[torch.Tensor]) -> None:
        if tensors[0].dim() == 0:
            torch._foreach_copy_(tensors, list(buffer.unbind()))
            return
        targets = [s.given(t) for s, t in zip(self.inputs[position], tensors, strict=True)]
        torch._foreach_copy_(targets, list(torch.split(buffer, list(self.sizes))))
