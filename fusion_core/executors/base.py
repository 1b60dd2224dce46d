"""What an executor is."""

from __future__ import annotations

from typing import Protocol

import torch

from fusion_core.program.ir import FusionProgram


class Kernel(Protocol):
    """A compiled program.

    Where `consumes` is true, the kernel takes over the list that it is called with and lets go of each input after its last
    use, as eager would; it raises no KernelError then.
    """

    @property
    def consumes(self) -> bool:
        """True where the list of inputs is the kernel's to empty."""
        ...

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Runs on one tensor per program input, writes the aliased ones, returns the fresh outputs in order."""
        ...


class Executor(Protocol):
    """Compiles verified programs."""

    name: str

    def compile(self, program: FusionProgram) -> Kernel:
        """Returns the kernel of `program`."""
        ...
