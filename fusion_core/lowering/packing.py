"""Small components of one program run as one: a launch costs the host more than a few thousand elements cost the device.

Their inputs are laid end to end, one kernel updates all of them, and the results are copied back to where they belong. The
copies move little, since only small tensors are packed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fusion_core.lowering.build import Lowered
from fusion_core.lowering.types import fake, static_sizes
from fusion_core.program.ir import Constant, FusionProgram
from fusion_core.program.widen import widen

LARGEST_ELEMENTS = 1 << 16
FEWEST_MEMBERS = 8  # below, gathering and scattering cost as much as the launches they save


@dataclass(frozen=True, slots=True)
class Packed:
    """Components that share one launch of `program`; inputs at the positions `shared` are the same for all."""

    members: tuple[Lowered, ...]
    program: FusionProgram
    shared: frozenset[int]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of elements of each member."""
        return tuple(_elements(m) for m in self.members)


def pack(steps: list[Lowered | Node]) -> list[Lowered | Packed | Node]:
    """Returns `steps` with small components of one stage and one program put together."""
    groups: dict[tuple[int, FusionProgram, str], list[Lowered]] = {}
    for step in steps:
        if isinstance(step, Lowered) and _is_packable(step):
            groups.setdefault((step.component.stage, step.program, step.device), []).append(step)
    packed: dict[int, Packed] = {}
    for members in groups.values():
        whole = _packed(members) if len(members) >= FEWEST_MEMBERS else None
        if whole is not None:
            packed.update({id(m): whole for m in members})
    return list(_replaced(steps, packed))


_LISTS = {
    "add.Tensor": torch._foreach_add_,
    "sub.Tensor": torch._foreach_sub_,
    "mul.Tensor": torch._foreach_mul_,
    "div.Tensor": torch._foreach_div_,
}


def in_place_list_operator(program: FusionProgram) -> Callable[..., Any] | None:
    """Returns the list operator that does what `program` does to its one input, such as counting up a step; else None.

    It needs no kernel of its own and no gathering.
    """
    if len(program.inputs) != 1 or len(program.ops) != 1 or program.ops[0].keywords:
        return None
    (op,), (given,) = program.ops, program.inputs
    is_update = op.arguments[0] == given.value and isinstance(op.arguments[1], Constant)
    same_type = op.result.type == given.value.type
    return _LISTS.get(op.name) if is_update and same_type else None


def _replaced(steps: list[Lowered | Node], packed: dict[int, Packed]) -> Iterator[Lowered | Packed | Node]:
    emitted: set[int] = set()
    for step in steps:
        whole = packed.get(id(step))
        if whole is None:
            yield step
        elif id(whole) not in emitted:
            emitted.add(id(whole))
            yield whole


def _is_packable(lowered: Lowered) -> bool:
    """True for components that only write inputs, and few elements of them."""
    if not lowered.form.collapsed or lowered.outputs or lowered.deferred or not lowered.program.aliases:
        return False
    return all(static_sizes(fake(n)) is not None for n in lowered.inputs) and (
        _elements(lowered) <= LARGEST_ELEMENTS
    )


def _elements(lowered: Lowered) -> int:
    return max(int(fake(n).numel()) for n in lowered.inputs)


def _packed(members: list[Lowered]) -> Packed | None:
    """Members of several elements share what all of them read; written inputs are never shared."""
    first = members[0]
    shared = frozenset(
        position
        for position, node in enumerate(first.inputs)
        if fake(node).numel() == 1 and all(m.inputs[position] is node for m in members)
    )
    program = widen(first.program, shared)
    return None if program is None else Packed(tuple(members), program, shared)
