"""The plain data of what was seen of one arm; a module of its own, so that loading the plugin does not make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """One tensor after the run. `value` is a private copy; `stride` and `storage_offset` count elements."""

    path: str
    role: str
    type_name: str
    value: torch.Tensor
    dtype: str
    device: str
    layout: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    requires_grad: bool
    is_leaf: bool
    has_grad_fn: bool
    is_conj: bool
    is_neg: bool
    version_bumped: bool | None
    strided: bool


@dataclass(frozen=True, slots=True)
class StorageRecord:
    """One storage reached before the run: its bytes before and after, `nbytes` long each (uint8 on its device)."""

    path: str
    dtype: torch.dtype
    before: torch.Tensor
    after: torch.Tensor
    written: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Relation:
    """How two tensors share memory: `full` or `partial`, and the distance of their first bytes."""

    overlap: str
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """An exception of the run. `phase` is `call` or `backward`."""

    phase: str
    type_name: str
    message: str


@dataclass(frozen=True, slots=True)
class Compilation:
    """What the compiler did. None means that it gives no such count."""

    graphs: int | None = None
    executions: int | None = None
    is_same_function: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything observable of one arm after its run.

    `tensors` holds what was reached before the run, after it, and the outputs; `gone` are paths reached before only.
    """

    tensors: Mapping[str, TensorRecord]
    gone: frozenset[str]
    structure: str
    leaves: tuple[tuple[str, str], ...]
    storages: tuple[StorageRecord, ...]
    relations: Mapping[tuple[str, str], Relation]
    objects: Mapping[str, int]
    rng_state: Mapping[str, bytes]
    error: ErrorRecord | None = None
    compilation: Compilation | None = None
    unnamed_writes: tuple[str, ...] = ()
