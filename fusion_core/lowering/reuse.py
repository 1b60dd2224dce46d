"""Outputs that take over the memory of an input which nobody needs any more.

A value that dies in a launch and looks like one of its outputs (a gradient that an activation's derivative is multiplied
into, the sum that a residual is added to) need not live beside it: the program writes it in place, under the same rules as
any other write.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from torch.fx import Graph, Node

from fusion_core.alias import AliasFacts, StorageClass, is_free
from fusion_core.errors import VerifyError
from fusion_core.lowering.build import Lowered
from fusion_core.lowering.packing import Packed
from fusion_core.lowering.support import source_line
from fusion_core.lowering.types import fake, is_dense, same_layout, static_sizes
from fusion_core.program.ir import AliasPair
from fusion_core.program.memory import memory_chain
from fusion_core.program.verify import moving_readers, unordered_reader, verify

AnyLowered = Lowered | Packed | Node


def reuse_buffers(
    steps: list[AnyLowered], graph: Graph, facts: AliasFacts, devices: frozenset[str]
) -> list[AnyLowered]:
    """Returns `steps` with programs on `devices` writing over inputs that die in them, where the write rules allow it."""
    last = _last_readers(steps, graph, facts)
    return [
        _reusing(step, [n for n in step.inputs if last.get(facts.storage[n]) == position and _is_own(n)])
        if isinstance(step, Lowered) and step.device in devices
        else step
        for position, step in enumerate(steps)
    ]


def _last_readers(steps: list[AnyLowered], graph: Graph, facts: AliasFacts) -> dict[StorageClass, int]:
    """Returns the position of the only step after which a class is not read; classes that live on have none.

    Steps of one stage may change places, so that a class which two of them read has none either.
    """
    last: dict[StorageClass, int] = {}
    for position, step in enumerate(steps):
        for node in _reads(step):
            cls = facts.storage[node]
            before = steps[last[cls]] if cls in last else None
            last[cls] = position if before is None or not _same_stage(before, step) else -1
    for step in steps:
        for lowered in _members(step):
            last.update(
                {facts.storage[source]: -1 for copy in lowered.deferred for source in copy.all_input_nodes}
            )
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            last[facts.storage[node]] = -1
    last.update({facts.storage[n]: -1 for n in graph.output_node().all_input_nodes})
    return last


def _members(step: AnyLowered) -> tuple[Lowered, ...]:
    if isinstance(step, Packed):
        return step.members
    return (step,) if isinstance(step, Lowered) else ()


def _reads(step: AnyLowered) -> Iterator[Node]:
    if isinstance(step, Node):
        yield from (n for n in step.all_input_nodes if n.op != "get_attr")
    for lowered in _members(step):
        yield from lowered.operands()


def _same_stage(a: AnyLowered, b: AnyLowered) -> bool:
    stages = [{m.component.stage for m in _members(step)} for step in (a, b)]
    return not stages[0].isdisjoint(stages[1])


def _is_own(node: Node) -> bool:
    """True for values that torch's own operators or programs make, each the whole of its storage."""
    tensor = fake(node)
    known = str(getattr(node.target, "namespace", "")) in ("aten", "prims") and not is_free(node)
    whole = static_sizes(tensor) is not None and is_dense(tensor)
    return known and whole and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize


def _reusing(lowered: Lowered, dying: list[Node]) -> Lowered:
    for node in dying:
        lowered = next(_candidates(lowered, node), lowered)
    return lowered


def _candidates(lowered: Lowered, dying: Node) -> Iterator[Lowered]:
    """Yields `lowered` with one of its outputs in the memory of `dying`, for each output for which that is safe."""
    program = lowered.program
    target = program.inputs[lowered.inputs.index(dying)]
    shared = [i for i in program.inputs if i.storage == target.storage]
    producers = {op.result: op for op in program.ops}
    inputs = {i.value for i in program.inputs}
    for position, (node, value) in enumerate(zip(lowered.outputs, program.outputs, strict=True)):
        alone = program.outputs.count(value) == 1 and all(p.source is not value for p in program.aliases)
        own = inputs.isdisjoint(memory_chain(producers, value))
        if len(shared) > 1 or not alone or not own or not same_layout(fake(dying), fake(node)):
            continue
        if value.type != target.value.type or any(p.target is target.value for p in program.aliases):
            continue
        if moving_readers(program.ops, target.value) or unordered_reader(program.ops, target.value, value):
            continue
        changed = dataclasses.replace(
            program,
            outputs=program.outputs[:position] + program.outputs[position + 1 :],
            aliases=(*program.aliases, AliasPair(target.value, value, source_line(node))),
        )
        try:
            verify(changed)
        except VerifyError:
            continue
        yield dataclasses.replace(
            lowered,
            program=changed,
            outputs=lowered.outputs[:position] + lowered.outputs[position + 1 :],
            reused=(*lowered.reused, (node, dying)),
        )
