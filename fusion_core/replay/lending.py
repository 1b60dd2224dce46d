"""Memory of a recording that is lent out: what forward saves for backward, and nobody else gets."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch


class Loan:
    """Storages that calls of a recording show without a copy, and that no call may write while somebody shows them.

    What counts is how many hold a storage, since autograd keeps tensors that Python does not see. Nobody but the recording
    may hold them when the loan is made.
    """

    def __init__(self, storages: Iterable[torch.UntypedStorage]) -> None:
        self._storages = tuple(storages)
        if self._storages:
            gc.collect()  # what dies later would hide a holder
        self._idle = self._holders()

    def may_be_overwritten(self) -> bool:
        """False while a value of an earlier call is alive: backward has not used it yet, or keeps it to be called again.

        Also where hooks look at what is saved: they may read it on another stream, after they have let go of it.
        """
        return not self._storages or (self._holders() == self._idle and not _are_hooks_set())

    def _holders(self) -> list[int]:
        return [torch._C._storage_Use_Count(s._cdata) for s in self._storages]  # noqa: SLF001 - torch has no public name

    def __bool__(self) -> bool:
        return bool(self._storages)


def _are_hooks_set() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # noqa: SLF001 - as above
