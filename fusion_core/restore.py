"""Running a function and putting back everything that it changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from fusion_core import reach
from fusion_core.overlap import bytes_of, geometry


@dataclass(frozen=True, slots=True)
class _Saved:
    tensor: torch.Tensor
    storage: torch.UntypedStorage
    contents: torch.Tensor
    layout: tuple[int, tuple[int, ...], tuple[int, ...]]
    version: int | None
    grad: torch.Tensor | None


@contextmanager
def unchanged(roots: Mapping[str, object]) -> Iterator[None]:
    """Puts back bytes, gradients, version counters, optimizer state keys and random state of all that `roots` reach."""
    saved = [_save(r.tensor) for r in reach.walk(roots) if geometry(r.tensor) is not None]
    optimizers = [o for o in reach.objects(roots) if isinstance(o, torch.optim.Optimizer)]
    states = [(o, {key: dict(state) for key, state in o.state.items()}) for o in optimizers]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        for optimizer, known in states:
            for key in [k for k in optimizer.state if not any(k is old for old in known)]:
                del optimizer.state[key]
            for key, state in known.items():
                optimizer.state[key].clear()
                optimizer.state[key].update(state)
        for entry in saved:
            _restore(entry)


def _save(tensor: torch.Tensor) -> _Saved:
    storage = tensor.untyped_storage()
    contents = bytes_of(storage).clone()
    version = None if tensor.is_inference() else tensor._version
    return _Saved(
        tensor, storage, contents, _layout(tensor), version, tensor.grad if tensor.is_leaf else None
    )


def _restore(entry: _Saved) -> None:
    with torch.no_grad():
        if entry.storage.nbytes() != entry.contents.numel():
            entry.storage.resize_(entry.contents.numel())
        bytes_of(entry.storage).copy_(entry.contents)
        if entry.layout != _layout(entry.tensor):
            entry.tensor.set_(entry.storage, *entry.layout)
    if entry.version is not None and entry.tensor._version != entry.version:
        torch._C._autograd._unsafe_set_version_counter((entry.tensor,), (entry.version,))
    if entry.tensor.is_leaf and entry.tensor.grad is not entry.grad:
        entry.tensor.grad = entry.grad


def _layout(tensor: torch.Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride())
