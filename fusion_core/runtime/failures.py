"""What happens when a kernel cannot be compiled or run: say so once, keep a repro, and let its region run eager."""

from __future__ import annotations

import hashlib
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from fusion_core.errors import FallbackError, KernelError
from fusion_core.executors.base import Kernel
from fusion_core.program.ir import FusionProgram
from fusion_core.program.text import text


class GuardedKernel:
    """A kernel that fails once at most: later calls raise the KernelError again without another try.

    `compile_kernel` is called at the first use. With `strict`, failures are raised as FallbackError.
    """

    def __init__(self, program: FusionProgram, compile_kernel: Callable[[], Kernel], *, strict: bool) -> None:
        self._program = program
        self._strict = strict
        # not the error itself: it keeps the frames that it is raised through, and with them all tensors of a call
        self._failure = ""
        self._kernel: Kernel | None = None
        try:
            self._kernel = compile_kernel()
        except KernelError as error:
            self._fail(error, [])

    @property
    def consumes(self) -> bool:
        """True where the list of inputs is the kernel's to empty."""
        return self._kernel is not None and self._kernel.consumes

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Runs the kernel; raises KernelError where it cannot, and no input has been written then."""
        if self._kernel is None:
            raise KernelError(self._failure, self._program)
        try:
            return self._kernel(inputs)
        except KernelError as error:
            self._fail(error, inputs)
            raise

    def _fail(self, error: KernelError, inputs: list[torch.Tensor]) -> None:
        path = save_repro(self._program, str(error), inputs)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        line = next((op.line for op in reversed(self._program.ops) if op.line), "no source line")
        message = f"a fused region ({line}) failed to compile: {reason[:200]} Repro: {path}"
        if self._strict:
            raise FallbackError(message) from error
        self._kernel, self._failure = None, str(error)
        warnings.warn(f"{message} It runs eager.", RuntimeWarning, stacklevel=2)


def save_repro(program: FusionProgram, reason: str, inputs: list[torch.Tensor]) -> Path:
    """Writes the program, the failure and what the inputs look like to a new file; returns its path."""
    shown = [
        f"{i}: {t.dtype} {tuple(t.shape)} strides {t.stride()} on {t.device}, {t.data_ptr() % 16} bytes past alignment"
        for i, t in enumerate(inputs)
    ]
    lines = [text(program), "", "inputs", *shown, "", "failure", reason, ""]
    body = "\n".join(lines)
    digest = hashlib.sha256(body.encode()).hexdigest()[:12]
    path = Path(tempfile.gettempdir()) / f"fusion_core_{digest}.txt"
    path.write_text(body)
    return path
