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
    returned = {facts.storage[n] for n in graph.output_node().all_input_nodes}
    changed: list[AnyLowered] = []
    for position, step in enumerate(steps):
        if isinstance(step, Lowered) and step.device in devices:
            dying = [n for n in step.inputs if last.get(facts.storage[n]) == position and _is_whole(n)]
            step = _reusing(step, dying, frozenset(n for n in step.outputs if facts.storage[n] in returned))
        changed.append(step)
    return changed


def _last_readers(steps: list[AnyLowered], graph: Graph, facts: AliasFacts) -> dict[StorageClass, int]:
    """Returns the position of the last step that reads a class; -1 for those that are not the plan's alone, or live on."""
    last = {facts.storage[node]: position for position, step in enumerate(steps) for node in _reads(step)}
    for lowered in (m for step in steps for m in _members(step)):
        sources = [source for copy in lowered.deferred for source in copy.all_input_nodes]
        written = [value for value, _ in lowered.forwarded]  # these live in an input
        last.update({facts.storage[n]: -1 for n in (*sources, *written)})
    last.update({facts.storage[n]: -1 for n in graph.nodes if not (is_free(n) or _is_known(n))})
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


def _is_known(node: Node) -> bool:
    """True for results of torch's own operators: others may return memory that they keep."""
    return str(getattr(node.target, "namespace", "")) in ("aten", "prims")


def _is_whole(node: Node) -> bool:
    """True for dense tensors that fill their storage."""
    tensor = fake(node)
    whole = static_sizes(tensor) is not None and is_dense(tensor)
    return whole and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize


def _reusing(lowered: Lowered, dying: list[Node], returned: frozenset[Node]) -> Lowered:
    """What leaves the graph is never given the memory behind a view: autograd treats views in ways of its own."""
    for node in dying:
        kept = returned if is_free(node) else frozenset[Node]()
        lowered = next(_candidates(lowered, node, kept), lowered)
    return lowered


def _candidates(lowered: Lowered, dying: Node, kept: frozenset[Node]) -> Iterator[Lowered]:
    """Yields `lowered` with one of its outputs in the memory of `dying`, for each output for which that is safe."""
    program = lowered.program
    target = program.inputs[lowered.inputs.index(dying)]
    shared = [i for i in program.inputs if i.storage == target.storage]
    producers = {op.result: op for op in program.ops}
    inputs = {i.value for i in program.inputs}
    for position, (node, value) in enumerate(zip(lowered.outputs, program.outputs, strict=True)):
        alone = program.outputs.count(value) == 1 and all(p.source is not value for p in program.aliases)
        own = inputs.isdisjoint(memory_chain(producers, value))
        if (
            node in kept
            or len(shared) > 1
            or not alone
            or not own
            or not same_layout(fake(dying), fake(node))
        ):
            continue
        if value.type != target.value.type or any(p.target is target.value for p in program.aliases):
            continue
        if moving_readers(program.ops, target.value):
            continue
        if unordered_reader(program.ops, target.value, value, program.leaving()):
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
