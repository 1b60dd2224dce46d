"""Memory of a recording that is lent out: what forward saves for backward, and nobody else gets."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class Loan:
    """Storages that calls of a recording show without a copy, and that no call may write while somebody shows them.

    What counts is how many hold a storage, since autograd keeps tensors that Python does not see. Nobody but the recording
    may hold them when the loan is made.
    """

    def __init__(self, storages: Iterable[torch.UntypedStorage]) -> None:
        self._storages = tuple(storages)
        self._idle = self._holders()

    def is_out(self) -> bool:
        """True while a value of an earlier call is alive: backward has not used it yet, or keeps it to be called again."""
        return self._holders() != self._idle

    def _holders(self) -> list[int]:
        return [torch._C._storage_Use_Count(s._cdata) for s in self._storages]  # noqa: SLF001 - torch has no public name
