"""Which executor compiles a program, and the cache of compiled ones."""

from __future__ import annotations

from functools import partial

from fusion_core.executors import nvfuser
from fusion_core.executors.base import Executor, Kernel
from fusion_core.executors.reference import ReferenceExecutor
from fusion_core.executors.version import mismatch
from fusion_core.options import Options
from fusion_core.program.ir import FusionProgram
from fusion_core.program.verify import verify
from fusion_core.runtime.failures import GuardedKernel


class KernelCache:
    """Compiles each distinct program once."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._kernels: dict[tuple[FusionProgram, str], Kernel] = {}

    @property
    def writing_devices(self) -> frozenset[str]:
        """Device types on which a program may write over inputs that die: where one launch needs all of them anyway."""
        device = "cuda"
        return frozenset(
            {device} if choose_executor(self._options.executor, device).name == "nvfuser" else ()
        )

    def kernel(self, program: FusionProgram, device: str) -> Kernel:
        """Returns the kernel of a program, proved to obey the write rules before the executor sees it."""
        executor = choose_executor(self._options.executor, device)
        key = (program, executor.name)
        if key not in self._kernels:
            if self._options.verify:
                verify(program)
            strict = self._options.fallback == "error"
            self._kernels[key] = GuardedKernel(program, partial(executor.compile, program), strict=strict)
        return self._kernels[key]


def describe_executor(wanted: str) -> str:
    """Returns which executor CUDA tensors get, and what there is to know about it."""
    if wanted == "reference":
        return "reference"
    reason = nvfuser.unavailable()
    if reason:
        return f"reference (nvFuser is not used: {reason})"
    return " ".join(filter(None, [f"nvfuser {nvfuser.version()} on CUDA, reference elsewhere.", mismatch()]))


def choose_executor(wanted: str, device: str) -> Executor:
    """Returns nvFuser for CUDA tensors where it is usable and wanted, else the reference executor."""
    if wanted != "reference" and device == "cuda" and not nvfuser.unavailable():
        return nvfuser.NvFuserExecutor()
    return ReferenceExecutor()
