"""Run a FusionProgram with torch operators on any device: the meaning of a program, and the oracle for other executors.

It is adversarial where nvFuser was measured to be: a `set` or view shares its operand's memory, every write is done as
early as data edges allow, a reader at other indices sees half of it, a target with gaps is addressed as if it had none, and
a write that nvFuser would drop is dropped. A program that breaks a write rule computes wrong numbers here, on a laptop,
instead of only on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fusion_core.executors.base import Kernel
from fusion_core.executors.operations import Step, bind, bind_in_place
from fusion_core.program.ir import EXTERNAL_OPS, AliasPair, FusionProgram, Op, Value
from fusion_core.program.verify import ancestors, is_one_kernel, moving_readers


class ReferenceExecutor:
    """Interprets programs operator by operator."""

    name = "reference"

    def compile(self, program: FusionProgram) -> Kernel:
        """Returns a callable that runs `program`."""
        return _ReferenceKernel(program)


class _ReferenceKernel:
    consumes = True

    def __init__(self, program: FusionProgram) -> None:
        values = [*(i.value for i in program.inputs), *(op.result for op in program.ops)]
        self._slots = 1 + max((v.index for v in values), default=-1)
        self._inputs = [i.value for i in program.inputs]
        written = {pair.source: pair.target for pair in program.aliases}
        self._outputs = [written.get(v, v).index for v in program.outputs]  # nvFuser returns the input itself
        self._steps = _with_last_uses(list(_schedule(program)), frozenset(self._outputs))
        on_device = [position for position, v in enumerate(self._inputs) if not v.type.host]
        self._device = on_device[0] if on_device else None

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        slots: list[Any] = [None] * self._slots
        slots.append(None if self._device is None else inputs[self._device].device)
        sizes: dict[str, int] = {}
        for value, tensor in zip(self._inputs, inputs, strict=True):
            slots[value.index] = tensor
            if not value.type.host:
                named = zip(value.type.shape, tensor.shape, strict=True)
                sizes.update((dim, size) for dim, size in named if isinstance(dim, str))
            del tensor
        inputs.clear()
        for step, dying in self._steps:
            step(slots, sizes)
            for index in dying:
                slots[index] = None
        return [slots[index] for index in self._outputs]


# A step, and the indices of the values that it reads and makes.
_Scheduled = tuple[Step, tuple[int, ...]]


def _with_last_uses(steps: list[_Scheduled], kept: frozenset[int]) -> list[tuple[Step, tuple[int, ...]]]:
    """Returns each step with the values that nobody needs after it."""
    last = {index: position for position, (_, touched) in enumerate(steps) for index in touched}
    dying: list[list[int]] = [[] for _ in steps]
    for index, position in last.items():
        if index not in kept:
            dying[position].append(index)
    return [(step, tuple(gone)) for (step, _), gone in zip(steps, dying, strict=True)]


def _computed(op: Op, step: Step | None = None) -> _Scheduled:
    return step or bind(op), (*(v.index for v in op.operands()), op.result.index)


def _in_place_chain(program: FusionProgram, pair: AliasPair, done: set[Value]) -> list[Op]:
    """Returns the operations that lead from the target to the source, each over the result of the one before.

    Nothing else may read the target or what lies between, so that no order can matter; then a write needs no memory of its
    own, as in eager. Empty where there is no such chain.
    """
    layout = pair.target.type.layout
    storages = [i.storage for i in program.inputs if i.value is pair.target]
    alone = [i.storage for i in program.inputs].count(storages[0]) == 1
    if not alone or (layout is not None and not layout.is_dense):
        return []
    producers, chain, value = program.producers(), list[Op](), pair.source
    while value is not pair.target:
        op = producers.get(value)
        if op is None or value in done or bind_in_place(op) is None:
            return []
        chain.append(op)
        first = op.arguments[0]
        assert isinstance(first, Value)
        read_elsewhere = [o for o in program.ops if o is not op and first in o.operands()]
        kept = first in program.outputs or any(p.source is first for p in program.aliases)
        if read_elsewhere or kept:
            return []
        value = first
    return chain[::-1]


def _schedule(program: FusionProgram) -> Iterable[_Scheduled]:
    """Yields operations and writes in the order in which they run: each write as early as a kernel could do it."""
    done: set[Value] = set()
    kept = {pair.source: pair for pair in program.aliases}  # nvFuser keeps one target for each value

    def compute(values: set[Value]) -> Iterable[_Scheduled]:
        for op in program.ops:
            if op.result in values and op.result not in done:
                done.add(op.result)
                yield _computed(op)

    for pair in program.aliases:
        needed = ancestors(program.ops, pair.source)
        chain = _in_place_chain(program, pair, done)
        if chain:
            over = {op.result for op in chain}
            yield from compute(needed - over)
            done |= over
            yield from (_computed(op, bind_in_place(op)) for op in chain)
            continue
        yield from compute(needed)
        if is_one_kernel(program.ops, pair.target, pair.source, program.leaving()):
            readers = [op for op in program.ops if pair.target in op.operands()]
            for op in readers:
                yield from compute(ancestors(program.ops, op.result))
        if kept[pair.source] is pair and not _is_dropped(program, pair):
            yield from _write(program, pair, needed)
    yield from compute({op.result for op in program.ops})


def _is_dropped(program: FusionProgram, pair: AliasPair) -> bool:
    op = program.producers().get(pair.source)
    return op is not None and op.name.partition(".")[0] in EXTERNAL_OPS


def _write(program: FusionProgram, pair: AliasPair, needed: set[Value]) -> Iterable[_Scheduled]:
    """Yields the write; where the source reads the target at other indices, half of it comes too early."""
    touched = (pair.target.index, pair.source.index)
    if moving_readers(program.ops, pair.target) is None:
        yield _bind_write(pair), touched
        return
    yield _bind_write(pair, half=0), touched
    yield from (_computed(op) for op in program.ops if op.result in needed)
    yield _bind_write(pair, half=1), touched


def _bind_write(pair: AliasPair, half: int | None = None) -> Step:
    target, source, layout = pair.target.index, pair.source.index, pair.target.type.layout
    has_lost_gaps = layout is not None and not layout.is_dense and layout.order == tuple(sorted(layout.order))

    def write(slots: list[Any], sizes: dict[str, int]) -> None:
        del sizes
        into, value = slots[target], slots[source]
        if has_lost_gaps:
            into = into.as_strided(into.shape, torch.empty(into.shape, device="meta").stride())
        if half is None:
            into.copy_(value)
        else:
            mine = (
                torch.arange(into.numel(), device=into.device).reshape(into.shape) * 2 // into.numel() == half
            )
            into.copy_(torch.where(mine, value, into))

    return write
