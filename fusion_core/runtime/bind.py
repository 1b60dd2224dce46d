"""From lowered components and graph nodes to the steps of a plan: numbered slots in place of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from fusion_core.executors.base import Kernel
from fusion_core.lowering.build import Lowered
from fusion_core.lowering.packing import Packed, in_place_list_operator
from fusion_core.lowering.types import fake, layout_of, static_sizes, static_strides
from fusion_core.program.ir import REDUCTIONS, Constant, FusionProgram, Value
from fusion_core.runtime.packed import ListLaunch, PackedLaunch
from fusion_core.runtime.steps import (
    CopyBack,
    Inputs,
    InputSpec,
    Launch,
    OutputSpec,
    RunEager,
    SlotRef,
    flat_view,
    lifted_view,
    row_major_view,
)
from fusion_core.runtime.views import View, geometry_of

Compile = Callable[[FusionProgram, str], Kernel]
Slot = dict[Node, int]


def bind_launch(lowered: Lowered, slot: Slot, kernel: Kernel, trusted: frozenset[Node]) -> Launch:
    """Returns the step that runs one program; the layout of `trusted` nodes is known and not checked again."""
    return Launch(
        kernel=kernel,
        inputs=Inputs(
            tuple(
                _input_spec(node, given.value, slot, trusted=node in trusted)
                for node, given in zip(lowered.inputs, lowered.program.inputs, strict=True)
            )
        ),
        reads=tuple(slot[n] for n in lowered.operands()),
        eager=_eager_steps(lowered, slot),
        outputs=tuple(_output_spec(node, lowered, slot) for node in lowered.outputs),
        forwarded=tuple((slot[value], slot[target]) for value, target in lowered.forwarded),
        reused=tuple((slot[value], slot[target]) for value, target in lowered.reused),
        written=tuple(
            slot[node]
            for node, given in zip(lowered.inputs, lowered.program.inputs, strict=True)
            if given.value in {pair.target for pair in lowered.program.aliases}
        ),
        reduces=_reduces(lowered.program),
        likes=tuple(_likes(lowered, slot)),
    )


def _likes(lowered: Lowered, slot: Slot) -> Iterator[tuple[int, int]]:
    """Yields flat outputs of symbolic sizes, each with an input of the same sizes."""
    for node in lowered.outputs if lowered.form.collapsed else ():
        tensor = fake(node)
        if static_sizes(tensor) is None or static_strides(tensor) is None:
            alike = [i for i, n in enumerate(lowered.inputs) if _sizes(n) == _sizes(node)]
            yield from ((slot[node], i) for i in alike[:1])


def bind_packed(
    packed: Packed, slot: Slot, compile_program: Compile, trusted: frozenset[Node]
) -> PackedLaunch | ListLaunch:
    """Returns the step that runs the members of `packed` together."""
    first = packed.members[0]
    forwarded = tuple((slot[v], slot[t]) for m in packed.members for v, t in m.forwarded)
    function = in_place_list_operator(first.program)
    if function is not None:
        numbers = tuple(a.value for a in first.program.ops[0].arguments if isinstance(a, Constant))
        return ListLaunch(function, tuple(slot[m.inputs[0]] for m in packed.members), numbers, forwarded)
    values = [given.value for given in first.program.inputs]
    chosen = {i: packed.members[:1] if i in packed.shared else packed.members for i in range(len(values))}
    stacked = {
        i for i in chosen if i not in packed.shared and all(fake(m.inputs[i]).dim() == 0 for m in chosen[i])
    }
    return PackedLaunch(
        kernel=compile_program(packed.program, first.device),
        inputs=tuple(
            Inputs(
                tuple(
                    _input_spec(m.inputs[i], value, slot, trusted=m.inputs[i] in trusted, packed=i in stacked)
                    for m in chosen[i]
                )
            )
            for i, value in enumerate(values)
        ),
        shared=packed.shared,
        wide=frozenset(i for i, value in enumerate(values) if value.type.shape == ("s0",)),
        targets=tuple(values.index(pair.target) for pair in first.program.aliases),
        sizes=list(packed.sizes),
        reads=tuple(slot[n] for m in packed.members for n in m.operands()),
        eager=tuple(step for m in packed.members for step in _eager_steps(m, slot)),
        forwarded=forwarded,
        reduces=_reduces(packed.program),
    )


def _reduces(program: FusionProgram) -> bool:
    return any(op.name in REDUCTIONS for op in program.ops)


def _eager_steps(lowered: Lowered, slot: Slot) -> tuple[RunEager | CopyBack, ...]:
    deferred = set(lowered.deferred)
    writes = [bind_copy(c, slot) for c in lowered.component.writes if c not in deferred]
    return (*(bind_call(n, slot) for n in lowered.nodes), *writes)


def bind_copy(copy: Node, slot: Slot) -> CopyBack:
    """Returns the step of a `copy_` node."""
    target, source = copy.args[0], copy.args[1]
    assert isinstance(target, Node)
    assert isinstance(source, Node)
    return CopyBack(slot[target], slot[source])


def bind_call(node: Node, slot: Slot) -> RunEager:
    """Returns the step that calls the node's operator in eager."""
    bound: Any = map_arg((node.args, node.kwargs), lambda n: SlotRef(slot[n]))  # type: ignore[arg-type, return-value]
    arguments, keywords = bound
    assert callable(node.target)
    return RunEager(
        function=node.target,
        arguments=tuple(arguments),
        keywords=dict(keywords),
        reads=tuple(slot[n] for n in node.all_input_nodes),
        output=slot[node],
    )


def bind_view(node: Node, chain: list[Node], slot: Slot, *, is_shown: bool) -> View | None:
    """Returns the step that makes the view `node` of what the chain of views starts from; None where it is not known."""
    if not chain:
        return None
    (base,) = chain[0].all_input_nodes
    own = {n: position for position, n in enumerate((base, *chain))}
    calls = tuple(bind_call(n, own) for n in chain)
    geometry = geometry_of(fake(base), calls, is_shown=is_shown)
    strides = static_strides(fake(base))
    if geometry is None or strides is None:
        return None
    return View(slot[base], slot[node], strides, geometry, calls)


def _input_spec(node: Node, value: Value, slot: Slot, *, trusted: bool, packed: bool = False) -> InputSpec:
    tensor, strides = fake(node), static_strides(fake(node))
    guarded = trusted and strides is not None and tensor.device.type != "cpu"
    return InputSpec(
        slot=slot[node],
        strides=strides,
        layout=layout_of(tensor),
        view=_view(tensor, value, packed=packed),
        trusted=guarded or value.type.host,
        fixed=strides is not None and static_sizes(tensor) is not None,
    )


def _view(
    tensor: torch.Tensor, value: Value, *, packed: bool
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Returns what makes the kernel's view of an input; None where the tensor itself will do.

    Scalars that are packed get a dimension, in which they are laid end to end.
    """
    if packed and tensor.dim() == 0:
        return lifted_view(1)
    missing = len(value.type.shape) - tensor.dim()
    if value.type.host or missing == 0:
        return None
    if missing > 0 and (tensor.dim() > 0 or missing > 1):
        return lifted_view(missing)
    layout = layout_of(tensor)
    return row_major_view if layout is not None and layout.is_row_major else flat_view


def _output_spec(node: Node, lowered: Lowered, slot: Slot) -> OutputSpec:
    tensor = fake(node)
    layout = layout_of(tensor)
    return OutputSpec(
        slot=slot[node],
        rank=tensor.dim(),
        sizes=static_sizes(tensor),
        strides=static_strides(tensor),
        order=tuple(range(tensor.dim())) if layout is None else layout.order,
        flat=lowered.form.collapsed,
    )


def _sizes(node: Node) -> list[str]:
    return list(map(str, fake(node).shape))
