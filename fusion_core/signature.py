"""What an operator's schema says about memory, read once for each operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Node


@dataclass(frozen=True, slots=True)
class Signature:
    """`written` and `aliased` are arguments by position and name: those written, and those whose memory a result may share.

    `is_view` tells that a result shares memory and that nothing is written. `is_silent` operators return nothing.
    """

    written: tuple[tuple[int, str], ...]
    aliased: tuple[tuple[int, str], ...]
    is_view: bool
    is_random: bool
    is_silent: bool


def signature(target: Any) -> Signature | None:
    """Returns the signature of an operator; None for callables without a schema, whose effects are unknown."""
    return _read(target) if isinstance(target, torch._ops.OpOverload) else None


@lru_cache(maxsize=4096)
def _read(target: torch._ops.OpOverload) -> Signature:
    schema = target._schema
    infos = [(i, a.name, a.alias_info) for i, a in enumerate(schema.arguments) if a.alias_info is not None]
    shared = [r.alias_info for r in schema.returns if r.alias_info is not None]
    returned = {name for info in shared for name in info.before_set} | {
        "*"
    }  # `Tensor(a -> *)`: some part of it
    written = tuple((i, name) for i, name, info in infos if info.is_write)
    return Signature(
        written=written,
        aliased=tuple((i, name) for i, name, info in infos if (info.before_set | info.after_set) & returned),
        is_view=any(not info.is_write for info in shared) and not written,
        is_random=torch.Tag.nondeterministic_seeded in target.tags,
        is_silent=not schema.returns,
    )


def given(node: Node, arguments: tuple[tuple[int, str], ...]) -> Iterator[Node]:
    """Yields the nodes that `node` passes for these arguments, those inside lists too."""
    for position, name in arguments:
        value: Any = node.args[position] if position < len(node.args) else node.kwargs.get(name)
        found: list[Node] = []
        torch.fx.node.map_arg(value, found.append)
        yield from found
