"""From a partition to a plan: slots, steps, and the hot path."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from fusion_core.alias import is_free
from fusion_core.executors.base import Kernel
from fusion_core.lowering.build import Lowered
from fusion_core.lowering.packing import Packed, in_place_list_operator
from fusion_core.lowering.types import fake, layout_of, static_sizes, static_strides
from fusion_core.partition import COPY_
from fusion_core.program.ir import Constant, FusionProgram, Value
from fusion_core.runtime.packed import ListLaunch, PackedLaunch
from fusion_core.runtime.steps import (
    CopyBack,
    Free,
    Inputs,
    InputSpec,
    Launch,
    OutputSpec,
    RunEager,
    SlotRef,
    flat_view,
    row_major_view,
)

AnyStep = Launch | PackedLaunch | ListLaunch | RunEager | CopyBack | Free
Compile = Callable[[FusionProgram, str], Kernel]


@dataclass(frozen=True, slots=True)
class Plan:
    """A flat list of steps over slots; the first `inputs` slots hold the arguments."""

    steps: tuple[AnyStep, ...]
    slots: int
    inputs: int
    constants: tuple[tuple[int, Any], ...]
    outputs: tuple[Any, ...]

    def run(self, arguments: list[Any]) -> tuple[Any, ...]:
        """Runs on one value per graph input; empties the list, so that inputs can be freed at their last use."""
        slots: list[Any] = [*arguments, *[None] * (self.slots - self.inputs)]
        arguments.clear()
        for index, constant in self.constants:
            slots[index] = constant
        for step in self.steps:
            step.run(slots)
        return tuple(slots[o.index] if type(o) is SlotRef else o for o in self.outputs)


def build_plan(
    graph: Graph,
    steps: Iterable[Lowered | Packed | Node],
    compile_program: Compile,
    attributes: Callable[[str], Any],
    *,
    guarded: bool,
) -> Plan:
    """Returns the plan of `graph`; `steps` are its lowered components and eager nodes in order.

    `guarded` tells that sizes and strides of the graph's inputs are checked before it is called.
    """
    slot = {node: index for index, node in enumerate(n for n in graph.nodes if n.op != "output")}
    trusted = frozenset(n for n in graph.nodes if n.op == "placeholder" and guarded)
    bound = list(_bind_steps(_read_steps(graph, list(steps)), slot, compile_program, trusted))
    outputs = graph.output_node().args[0]
    assert isinstance(outputs, (tuple, list))
    kept = {slot[o] for o in outputs if isinstance(o, Node)}
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    return Plan(
        steps=tuple(_with_frees(bound, kept)),
        slots=len(slot),
        inputs=len(placeholders),
        constants=tuple((slot[n], attributes(str(n.target))) for n in graph.nodes if n.op == "get_attr"),
        outputs=tuple(SlotRef(slot[o]) if isinstance(o, Node) else o for o in outputs),
    )


def _read_steps(graph: Graph, steps: list[Lowered | Packed | Node]) -> list[Lowered | Packed | Node]:
    """Returns the steps without views that nobody reads."""
    read = set(graph.output_node().all_input_nodes)
    kept: list[Lowered | Packed | Node] = []
    for step in reversed(steps):
        if isinstance(step, Packed):
            read.update(n for m in step.members for n in m.inputs)
        elif isinstance(step, Lowered):
            read.update(step.inputs)
        elif is_free(step) and step not in read:
            continue
        else:
            read.update(step.all_input_nodes)
        kept.append(step)
    return kept[::-1]


def _bind_steps(
    steps: list[Lowered | Packed | Node],
    slot: dict[Node, int],
    compile_program: Compile,
    trusted: frozenset[Node],
) -> Iterator[AnyStep]:
    """Deferred writes of a region follow its last component: until then others may read the old value."""
    waiting: list[Lowered] = []
    for position, step in enumerate(steps):
        if isinstance(step, Node):
            yield _bind_eager(step, slot)
            continue
        if isinstance(step, Packed):
            yield _bind_packed(step, slot, compile_program, trusted)
            continue
        yield _bind_launch(step, slot, compile_program(step.program, step.device), trusted)
        waiting.append(step)
        following = next((s for s in steps[position + 1 :] if isinstance(s, Lowered)), None)
        if following is None or following.component.stage != step.component.stage:
            for lowered in waiting:
                yield from (_bind_copy(copy, slot) for copy in lowered.deferred)
            waiting = []


def _bind_packed(
    packed: Packed, slot: dict[Node, int], compile_program: Compile, trusted: frozenset[Node]
) -> PackedLaunch | ListLaunch:
    first = packed.members[0]
    forwarded = tuple((slot[v], slot[t]) for m in packed.members for v, t in m.forwarded)
    function = in_place_list_operator(first.program)
    if function is not None:
        numbers = tuple(a.value for a in first.program.ops[0].arguments if isinstance(a, Constant))
        return ListLaunch(function, tuple(slot[m.inputs[0]] for m in packed.members), numbers, forwarded)
    values = [given.value for given in first.program.inputs]
    chosen = {i: packed.members[:1] if i in packed.shared else packed.members for i in range(len(values))}
    return PackedLaunch(
        kernel=compile_program(packed.program, first.device),
        inputs=tuple(
            Inputs(
                tuple(
                    _input_spec(m.inputs[i], value, slot, trusted=m.inputs[i] in trusted) for m in chosen[i]
                )
            )
            for i, value in enumerate(values)
        ),
        shared=packed.shared,
        wide=frozenset(i for i, value in enumerate(values) if value.type.shape == ("s0",)),
        targets=tuple(values.index(pair.target) for pair in first.program.aliases),
        sizes=list(packed.sizes),
        eager=tuple(step for m in packed.members for step in _eager_steps(m, slot)),
        forwarded=forwarded,
    )


def _eager_steps(lowered: Lowered, slot: dict[Node, int]) -> tuple[RunEager | CopyBack, ...]:
    deferred = set(lowered.deferred)
    writes = [_bind_copy(c, slot) for c in lowered.component.writes if c not in deferred]
    return (*(_bind_call(n, slot) for n in lowered.nodes), *writes)


def _bind_launch(lowered: Lowered, slot: dict[Node, int], kernel: Kernel, trusted: frozenset[Node]) -> Launch:
    return Launch(
        kernel=kernel,
        inputs=Inputs(
            tuple(
                _input_spec(node, given.value, slot, trusted=node in trusted)
                for node, given in zip(lowered.inputs, lowered.program.inputs, strict=True)
            )
        ),
        eager=_eager_steps(lowered, slot),
        outputs=tuple(_output_spec(node, lowered, slot) for node in lowered.outputs),
        forwarded=tuple((slot[value], slot[target]) for value, target in lowered.forwarded),
    )


def _input_spec(node: Node, value: Value, slot: dict[Node, int], *, trusted: bool) -> InputSpec:
    tensor, strides = fake(node), static_strides(fake(node))
    guarded = trusted and strides is not None and tensor.device.type != "cpu"
    return InputSpec(
        slot=slot[node],
        strides=strides,
        layout=layout_of(tensor),
        view=_view(tensor, value),
        trusted=guarded or value.type.host,
    )


def _view(tensor: torch.Tensor, value: Value) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Returns what makes the kernel's view of an input; None where the tensor itself will do."""
    missing = len(value.type.shape) - tensor.dim()
    if value.type.host or missing == 0:
        return None
    if missing > 0 and tensor.dim() > 0:
        return operator.itemgetter((None,) * missing)
    layout = layout_of(tensor)
    return row_major_view if layout is not None and layout.is_row_major else flat_view


def _output_spec(node: Node, lowered: Lowered, slot: dict[Node, int]) -> OutputSpec:
    tensor = fake(node)
    alike = [i for i, n in enumerate(lowered.inputs) if _sizes(n) == _sizes(node)]
    return OutputSpec(
        slot=slot[node],
        rank=tensor.dim(),
        sizes=static_sizes(tensor),
        strides=static_strides(tensor),
        flat=lowered.form.collapsed,
        like=alike[0] if alike and lowered.form.collapsed else None,
    )


def _sizes(node: Node) -> list[str]:
    return list(map(str, fake(node).shape))


def _bind_copy(copy: Node, slot: dict[Node, int]) -> CopyBack:
    target, source = copy.args[0], copy.args[1]
    assert isinstance(target, Node)
    assert isinstance(source, Node)
    return CopyBack(slot[target], slot[source])


def _bind_eager(node: Node, slot: dict[Node, int]) -> AnyStep:
    if node.target is COPY_ and _is_plain_write(node):
        return _bind_copy(node, slot)
    return _bind_call(node, slot)


def _bind_call(node: Node, slot: dict[Node, int]) -> RunEager:
    refs = torch.fx.node.map_arg((tuple(node.args), dict(node.kwargs)), lambda n: _Ref(slot[n]))  # type: ignore[arg-type, return-value]
    leaves, structure = pytree.tree_flatten(refs)
    assert callable(node.target)
    slots = tuple(SlotRef(a.index) if isinstance(a, _Ref) else a for a in leaves)
    return RunEager(node.target, slots, structure, slot[node])


@dataclass(frozen=True)
class _Ref:
    index: int


def _is_plain_write(copy: Node) -> bool:
    return (
        len(copy.args) == 2
        and not copy.kwargs
        and not copy.users
        and all(isinstance(a, Node) for a in copy.args)
    )


def _with_frees(steps: list[AnyStep], kept: set[int]) -> Iterator[AnyStep]:
    last: dict[int, int] = {}
    for position, step in enumerate(steps):
        for index in _touched(step):
            last[index] = position
    dying: dict[int, list[int]] = {}
    for index, position in last.items():
        if index not in kept:
            dying.setdefault(position, []).append(index)
    for position, step in enumerate(steps):
        yield step
        if position in dying:
            yield Free(tuple(dying[position]))


def _touched(step: AnyStep) -> Iterator[int]:
    if isinstance(step, Launch):
        yield from step.inputs.slots
        yield from (o.slot for o in step.outputs)
        yield from (index for pair in step.forwarded for index in pair)
    elif isinstance(step, PackedLaunch):
        yield from (index for inputs in step.inputs for index in inputs.slots)
        yield from (index for pair in step.forwarded for index in pair)
    elif isinstance(step, ListLaunch):
        yield from step.slots
        yield from (index for pair in step.forwarded for index in pair)
    elif isinstance(step, RunEager):
        yield from (a.index for a in step.leaves if isinstance(a, SlotRef))
        yield step.output
    elif isinstance(step, CopyBack):
        yield from (step.target, step.source)
