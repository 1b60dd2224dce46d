"""A dispatch mode for the control arm: which bytes does eager write, and does the program read uninitialised memory?

The mode sees every operator below autograd, also those on tensors that no argument, closure or global names.
"""

from __future__ import annotations

import traceback
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_UNINITIALISED = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
)
_WHOLE_STORAGE = frozenset({"set_", "resize_", "resize_as_", "resize"})
# Filled into memory that eager leaves undefined; a program whose results depend on it differs from its first run.
_JUNK_BYTE = 0xA5


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records writes and fills fresh uninitialised tensors with junk while active."""

    supports_higher_order_operators = True

    def __init__(self, named: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {id_of(t.untyped_storage()): t.untyped_storage() for t in named if has_storage(t)}
        self._created: set[int] = (
            set()
        )  # identities only: holding what the program frees would exhaust memory
        self._written: dict[tuple[int, int], torch.Tensor] = {}
        self.unnamed_writes: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operator, then notes what its schema says it writes."""
        kwargs = kwargs or {}
        if not isinstance(
            func, torch._ops.OpOverload
        ):  # a higher-order operator: its parts are seen one by one
            return func(*args, **kwargs)
        for tensor in _written_arguments(func, args, kwargs):
            self._note_write(func, tensor)
        result = func(*args, **kwargs)
        fresh = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and has_storage(t)]
        self._created.update(id_of(t.untyped_storage()) for t in fresh)
        if func.overloadpacket.__name__ in _UNINITIALISED:
            for tensor in fresh:
                fill_with_junk(tensor)
        return result

    def written_bytes(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Returns a bool mask over the bytes of `storage`: true where some operator wrote."""
        mask = torch.zeros(storage.nbytes(), dtype=torch.bool)
        for (key, item), elements in self._written.items():
            if key == id_of(storage):
                written = elements.repeat_interleave(item)[: mask.numel()]
                mask[: written.numel()] |= written
        return mask

    def _note_write(self, func: Any, tensor: torch.Tensor) -> None:
        if not has_storage(tensor):
            return
        storage, item = tensor.untyped_storage(), tensor.element_size()
        key = id_of(storage)
        if key not in self._known:
            if key not in self._created:
                self.unnamed_writes.append(f"{func} at {_user_line()}")
            return
        elements = self._written.get((key, item))
        if elements is None or elements.numel() < storage.nbytes() // item:  # new, or grown by resize_
            elements = torch.full((storage.nbytes() // item,), elements is not None, dtype=torch.bool)
            self._written[key, item] = elements
        if func.overloadpacket.__name__ in _WHOLE_STORAGE:
            elements.fill_(True)
        elif tensor.numel() > 0:
            elements.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(True)


def has_storage(tensor: torch.Tensor) -> bool:
    """True for tensors that own or view plain memory."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and type(tensor).__name__ != "FakeTensor"
    )


def id_of(storage: torch.UntypedStorage) -> int:
    """Returns the identity of the memory object behind a storage; two Python storages may stand for one."""
    return int(storage._cdata)


def fill_with_junk(tensor: torch.Tensor) -> None:
    """Overwrites every element with a value that no program would compute: NaN, or a byte pattern."""
    if tensor.numel() == 0:
        return
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))
    elif tensor.dtype is torch.bool:
        tensor.fill_(True)
    elif tensor.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        tensor.fill_(_JUNK_BYTE & 0x7F)


def _written_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    written: list[torch.Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        written += [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
    return written


def _user_line() -> str:
    for entry in reversed(traceback.extract_stack()):
        if "/torch/" not in entry.filename and entry.filename != __file__:
            return f"{entry.filename}:{entry.lineno} ({entry.line})"
    return "an unknown line"
