"""The state of a program that calls change, put back before each timed call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusion_core import reach
from fusion_core.overlap import bytes_of
from pytest_fusealias.build import Program
from pytest_fusealias.measurement import NotMeasuredError
from pytest_fusealias.watch import has_storage, id_of


def restorer(program: Program, calls: list[Callable[[], Any]]) -> Callable[[], None]:
    """Runs the calls, and returns a function that puts back, in place, the bytes of every storage that they changed.

    Objects that a call replaces, and Python values, are not put back. Raises NotMeasuredError where a storage is resized.
    """
    storages: dict[int, tuple[str, torch.UntypedStorage, torch.Tensor]] = {}
    for reached in reach.walk(program.roots()):
        if has_storage(reached.tensor) and reached.tensor.device.type != "meta":
            storage = reached.tensor.untyped_storage()
            if id_of(storage) not in storages:
                storages[id_of(storage)] = (reached.path, storage, bytes_of(storage).clone())
    live, saved = [], []
    for call in calls:
        call()
    for path, storage, contents in storages.values():
        if storage.nbytes() != contents.numel():
            raise NotMeasuredError(f"a call resizes the memory of {path}, so calls cannot be repeated alike")
        if not torch.equal(bytes_of(storage), contents):
            live.append(bytes_of(storage))
            saved.append(contents)

    def restore() -> None:
        if live:
            torch._foreach_copy_(live, saved)

    restore()
    return restore
