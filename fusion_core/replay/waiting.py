"""Does a call make the host wait for the device? Such a call cannot be recorded."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from fusion_core.runtime.plan import Plan
from fusion_core.runtime.steps import RunEager

_TOLD = "called a synchronizing CUDA operation"
_ABOUT_THE_MODE = "Synchronization debug mode is a prototype feature"


def run_watched(plan: Plan, arguments: list[Any], waits: list[str]) -> tuple[Any, ...]:
    """Runs a plan, and adds to `waits` the names of operators of which torch tells that the host waits in them.

    Operators of other libraries may wait untold. Kernels of ours do not.
    """

    def around(position: int) -> AbstractContextManager[None]:
        step = plan.steps[position]
        return _watched(str(step.function), waits) if isinstance(step, RunEager) else nullcontext()

    return plan.run_observed(arguments, around, lambda _position, _result: None)


@contextmanager
def _watched(name: str, waits: list[str]) -> Iterator[None]:
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    for warning in caught:
        if _TOLD in str(warning.message):
            waits.append(name)
        elif _ABOUT_THE_MODE not in str(warning.message):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
