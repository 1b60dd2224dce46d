"""Run FusionPrograms with nvFuser on CUDA: the only module that imports `nvfuser_direct`."""

from __future__ import annotations

import os
import sys
from functools import cache, lru_cache
from typing import Any

import torch

from fusion_core.errors import KernelError
from fusion_core.executors import kernel_store
from fusion_core.executors.base import Kernel
from fusion_core.executors.definition import Definition
from fusion_core.executors.version import problem
from fusion_core.program.ir import FusionProgram


@lru_cache(maxsize=1)
def load() -> Any:
    """Returns the `nvfuser_direct` module; raises ImportError where it cannot be imported.

    It is bound lazily: a build for another torch release can leave symbols unresolved that are never called.
    """
    kernel_store.enable()
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_LAZY)
    try:
        import nvfuser_direct
    finally:
        sys.setdlopenflags(flags)
    return nvfuser_direct


@lru_cache(maxsize=1)
def unavailable() -> str:
    """Returns why this executor cannot run here, or an empty string."""
    reason = problem()
    if not reason:
        try:
            load()
        except (ImportError, OSError) as error:
            reason = f"nvfuser_direct cannot be imported: {error}"
    return reason


def version() -> str:
    """Returns nvFuser's own version with its commit, as `0.2.36+git7e04d26`."""
    return str(load().version())


def _kind() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"nvfuser-{version()}-cuda{torch.version.cuda}-sm{major}{minor}"


class NvFuserExecutor:
    """Compiles programs with nvFuser; kernels are specialized at their first call."""

    name = "nvfuser"

    def compile(self, program: FusionProgram) -> Kernel:
        """Returns the kernel of `program`; raises KernelError where nvFuser refuses the definition."""
        return _kernel(program)


@cache
def _kernel(program: FusionProgram) -> _NvFuserKernel:
    """One kernel a program in the whole process: graphs share it, and a captured CUDA graph may outlive its compiler."""
    return _NvFuserKernel(load(), program)


class _NvFuserKernel:
    consumes = False  # one launch needs all of its inputs to the end

    def __init__(self, nvfuser: Any, program: FusionProgram) -> None:
        try:
            self._cache = nvfuser.FusionExecutorCache(Definition(nvfuser, program).build())
        except RuntimeError as error:
            raise KernelError(str(error), program) from error
        self._program = program
        self._scalars = tuple(i for i, given in enumerate(program.inputs) if given.value.type.host)
        self._run = self._run_first

    def _run_first(self, inputs: list[Any]) -> Any:
        with kernel_store.opened(_kind):
            results = self._cache.execute(inputs)
        self._run = self._cache.execute
        return results

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        try:
            results: list[torch.Tensor] = self._run(self._given(inputs) if self._scalars else inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if "out of memory" in str(error):
                raise torch.OutOfMemoryError(str(error)) from error
            if _is_device_lost():
                raise
            raise KernelError(str(error), self._program) from error
        return results

    def _given(self, inputs: list[torch.Tensor]) -> list[Any]:
        """Reads scalars that lie on the host, which need no synchronization."""
        given: list[Any] = list(inputs)
        for position in self._scalars:
            given[position] = inputs[position].item()
        return given

    def sources(self, inputs: list[torch.Tensor]) -> str:
        """Returns the CUDA code of the kernels that serve these inputs, after a call with them."""
        code: str = self._cache.get_cuda_kernel(self._given(inputs))
        return code


def _is_device_lost() -> bool:
    """True after an error that CUDA reports from then on at every call, as eager would see: no other way to run is left."""
    if torch.cuda.is_current_stream_capturing():
        return False  # waiting would spoil the recording, and its maker falls back
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
