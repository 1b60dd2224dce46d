"""From a partition to a plan: slots, steps, and the hot path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import Graph, Node

from fusion_core.alias import is_free
from fusion_core.lowering.build import Lowered
from fusion_core.lowering.packing import Packed
from fusion_core.partition import COPY_
from fusion_core.runtime.bind import Compile, bind_call, bind_copy, bind_launch, bind_packed, bind_view
from fusion_core.runtime.packed import ListLaunch, PackedLaunch
from fusion_core.runtime.steps import (
    CopyBack,
    Free,
    Launch,
    RunEager,
    SlotRef,
)
from fusion_core.runtime.views import View, chain_of

Around = Callable[[int], AbstractContextManager[Any]]
AnyStep = Launch | PackedLaunch | ListLaunch | RunEager | View | CopyBack | Free


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
        slots = self.filled(arguments)
        for step in self.steps:
            step.run(slots)
        return self.returned(slots)

    def run_observed(
        self, arguments: list[Any], around: Around, look: Callable[[int, Any], None]
    ) -> tuple[Any, ...]:
        """Does the same, with each step inside the context that `around` gives for its position.

        `look` is given the position and result of each operator that runs eager.
        """
        slots = self.filled(arguments)
        for position, step in enumerate(self.steps):
            with around(position):
                step.run(slots)
            if isinstance(step, RunEager):
                look(position, slots[step.output])
        return self.returned(slots)

    def returned(self, slots: list[Any]) -> tuple[Any, ...]:
        """Returns the outputs after the last step."""
        return tuple(slots[o.index] if type(o) is SlotRef else o for o in self.outputs)

    def filled(self, arguments: list[Any]) -> list[Any]:
        """Returns the slots before the first step, and empties the list of arguments."""
        slots: list[Any] = [*arguments, *[None] * (self.slots - self.inputs)]
        arguments.clear()
        for index, constant in self.constants:
            slots[index] = constant
        return slots


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
    steps = list(steps)
    slot = {node: index for index, node in enumerate(n for n in graph.nodes if n.op != "output")}
    trusted = frozenset(_trusted(graph, steps)) if guarded else frozenset()
    views = _views(graph, steps, slot)
    read = _read_steps(graph, steps, views, slot)
    bound = list(_bind_steps(read, slot, compile_program, trusted, views))
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


def _trusted(graph: Graph, steps: Iterable[Lowered | Packed | Node]) -> Iterator[Node]:
    """Yields graph inputs, and values that are read in one after their launch."""
    yield from (n for n in graph.nodes if n.op == "placeholder")
    for step in steps:
        members = step.members if isinstance(step, Packed) else [step] if isinstance(step, Lowered) else []
        yield from (value for member in members for value, _ in member.forwarded)


def _views(graph: Graph, steps: list[Lowered | Packed | Node], slot: dict[Node, int]) -> dict[Node, View]:
    """Returns the views that are made of their bases in one step each; none where memory is resized: they look at it."""
    if any("resize" in str(node.target) for node in graph.nodes):
        return {}
    own = frozenset(step for step in steps if isinstance(step, Node))
    shown = set(graph.output_node().all_input_nodes)
    for node in reversed(graph.nodes):
        if node in shown and is_free(node):
            shown.update(node.all_input_nodes)
    bound = (
        (node, bind_view(node, chain_of(node, own), slot, is_shown=node in shown))
        for node in graph.nodes
        if node in own and is_free(node)
    )
    return {node: view for node, view in bound if view is not None}


def _read_steps(
    graph: Graph, steps: list[Lowered | Packed | Node], views: dict[Node, View], slot: dict[Node, int]
) -> list[Lowered | Packed | Node]:
    """Returns the steps without views that nobody reads."""
    read = {slot[n] for n in graph.output_node().all_input_nodes}
    kept: list[Lowered | Packed | Node] = []
    for step in reversed(steps):
        if isinstance(step, Packed):
            read.update(slot[n] for m in step.members for n in m.operands())
        elif isinstance(step, Lowered):
            read.update(slot[n] for n in step.operands())
        elif is_free(step) and slot[step] not in read:
            continue
        elif step in views:
            read.add(views[step].base)
        else:
            read.update(slot[n] for n in step.all_input_nodes)
        kept.append(step)
    return kept[::-1]


def _bind_steps(
    steps: list[Lowered | Packed | Node],
    slot: dict[Node, int],
    compile_program: Compile,
    trusted: frozenset[Node],
    views: dict[Node, View],
) -> Iterator[AnyStep]:
    """Deferred writes of a region follow its last component: until then others may read the old value."""
    waiting: list[Lowered] = []
    for position, step in enumerate(steps):
        if isinstance(step, Node):
            yield views.get(step) or _bind_eager(step, slot)
            continue
        if isinstance(step, Packed):
            yield bind_packed(step, slot, compile_program, trusted)
            continue
        yield bind_launch(step, slot, compile_program(step.program, step.device), trusted)
        waiting.append(step)
        following = next((s for s in steps[position + 1 :] if isinstance(s, Lowered)), None)
        if following is None or following.component.stage != step.component.stage:
            for lowered in waiting:
                yield from (bind_copy(copy, slot) for copy in lowered.deferred)
            waiting = []


def _bind_eager(node: Node, slot: dict[Node, int]) -> AnyStep:
    if node.target is COPY_ and _is_plain_write(node):
        return bind_copy(node, slot)
    return bind_call(node, slot)


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
        gone = tuple(dying.get(position, ()))
        yield _consuming(step, gone) if isinstance(step, Launch) else step
        if gone:
            yield Free(gone)


def _consuming(launch: Launch, dying: tuple[int, ...]) -> Launch:
    """Lets a kernel that can do so free those inputs that nobody needs after it."""
    needed = {target for _, target in (*launch.forwarded, *launch.reused)}
    consumed = tuple(i for i in dying if i in launch.inputs.slots and i not in needed)
    return replace(launch, consumed=consumed) if launch.kernel.consumes and consumed else launch


def _touched(step: AnyStep) -> Iterator[int]:
    if isinstance(step, (Launch, PackedLaunch, ListLaunch)):
        yield from step.reads
        yield from (index for pair in step.forwarded for index in pair)
        if isinstance(step, Launch):
            yield from (o.slot for o in step.outputs)
            yield from (value for value, _ in step.reused)
    elif isinstance(step, RunEager):
        yield from step.reads
        yield step.output
    elif isinstance(step, View):
        yield from (step.base, step.output)
    elif isinstance(step, CopyBack):
        yield from (step.target, step.source)
