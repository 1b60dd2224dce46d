"""Views of a plan's arguments that are kept from call to call, since making them costs more than looking."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusion_core.runtime.steps import getter

Make = Callable[[torch.Tensor], torch.Tensor]

_ADDRESS = torch.Tensor.data_ptr


class _Watch(weakref.ref[torch.Tensor]):
    """Tells when a tensor goes, and of which view it was the argument."""

    __slots__ = ("place",)
    place: int


@dataclass(frozen=True, slots=True)
class _Known:
    """What the last call passed: identities of all tensors, then their addresses; the views; who tells when a tensor goes.

    A call that passes other tensors makes another one, so that a call of another thread keeps what it runs on. A view is
    taken out of the list only when its tensor is gone, which no call can be passing then.
    """

    seen: list[int]
    views: list[Any]
    watches: list[_Watch | None]


class KeptViews:
    """Views of arguments; `wanted` has the position of the argument, and what makes the view of it.

    The tensors must have the same sizes and strides at every call. Views keep no memory: when a tensor object goes, so does
    the view of it.
    """

    def __init__(self, wanted: Sequence[tuple[int, Make]]) -> None:
        self._makers = tuple(make for _, make in wanted)
        self._chosen = getter(tuple(position for position, _ in wanted))
        self._known = self._nothing()

    def of(self, arguments: list[Any]) -> list[torch.Tensor]:
        """Returns the views in the order in which they are wanted, in a list that is not the caller's to change."""
        tensors = self._chosen(arguments)
        known = self._known
        seen = [*map(id, tensors), *map(_ADDRESS, tensors)]
        return known.views if seen == known.seen else self._renewed(tensors, seen).views

    def _nothing(self) -> _Known:
        count = len(self._makers)
        return _Known([0] * (2 * count), [None] * count, [None] * count)

    def _renewed(self, tensors: tuple[torch.Tensor, ...], seen: list[int]) -> _Known:
        """Makes the views of those tensors that are new or have moved."""
        old, count = self._known, len(tensors)
        views, watches = list(old.views), list(old.watches)
        for i, tensor in enumerate(tensors):
            if watches[i] is None or seen[i] != old.seen[i] or seen[count + i] != old.seen[count + i]:
                views[i] = self._makers[i](tensor)
                watches[i] = watch = _Watch(tensor, self._forget)
                watch.place = i
        self._known = known = _Known(seen, views, watches)
        return known

    def _forget(self, watch: _Watch) -> None:
        known = self._known
        if known.watches[watch.place] is watch:
            known.seen[watch.place] = 0  # no tensor's identity
            known.views[watch.place] = known.watches[watch.place] = None
