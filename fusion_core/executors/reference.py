"""Run a FusionProgram with torch operators on any device: the meaning of a program, and the oracle for other executors.

It is adversarial where a real kernel may be: a `set` result shares its operand's memory, and every write is done as early
as data edges allow, after the readers at the same index only. A program that breaks a write rule computes wrong numbers
here, on a laptop, instead of only on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from fusion_core.executors.base import Kernel
from fusion_core.lowering.types import DTYPES
from fusion_core.program.ir import AliasPair, Argument, Constant, FusionProgram, Op, Value

Step = Callable[[list[Any], dict[str, int]], None]


class ReferenceExecutor:
    """Interprets programs operator by operator."""

    name = "reference"

    def compile(self, program: FusionProgram) -> Kernel:
        """Returns a callable that runs `program`."""
        return _ReferenceKernel(program)


class _ReferenceKernel:
    def __init__(self, program: FusionProgram) -> None:
        self._slots = 1 + max((v.index for v in _all_values(program)), default=-1)
        self._inputs = [i.value for i in program.inputs]
        self._steps = [_bind(step) for step in _schedule(program)]
        self._outputs = [v.index for v in program.outputs]
        self._sized = [(v.index, v.type.shape) for v in self._inputs]

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        slots: list[Any] = [None] * self._slots
        sizes: dict[str, int] = {}
        for (index, shape), tensor in zip(self._sized, inputs, strict=True):
            slots[index] = tensor
            sizes.update((d, n) for d, n in zip(shape, tensor.shape, strict=True) if isinstance(d, str))
        for step in self._steps:
            step(slots, sizes)
        return [slots[index] for index in self._outputs]


def _all_values(program: FusionProgram) -> Iterable[Value]:
    yield from (i.value for i in program.inputs)
    yield from (op.result for op in program.ops)


def _schedule(program: FusionProgram) -> list[Op | AliasPair]:
    """Returns operations and writes in the order in which they run: each write as early as its kernel could do it."""
    producers = program.producers()
    order: list[Op | AliasPair] = []
    done: set[Value] = set()

    def emit(value: Value) -> None:
        stack = [value]
        while stack:
            op = producers.get(stack[-1])
            missing = [o for o in op.operands() if o in producers and o not in done] if op is not None else []
            if op is None or op.result in done:
                stack.pop()
            elif missing:
                stack += missing
            else:
                done.add(op.result)
                order.append(op)
                stack.pop()

    for pair in program.aliases:
        emit(pair.source)
        for op in program.ops:
            if pair.target in op.operands() and op.result.type.shape == pair.target.type.shape:
                emit(op.result)
        order.append(pair)
    for op in program.ops:
        emit(op.result)
    return order


def _bind(step: Op | AliasPair) -> Step:
    if isinstance(step, AliasPair):
        return _bind_write(step)
    if step.name in ("set", "clone", "convert"):
        return _bind_move(step)
    return _bind_operator(step)


def _bind_write(pair: AliasPair) -> Step:
    target, source = pair.target.index, pair.source.index

    def write(slots: list[Any], sizes: dict[str, int]) -> None:
        del sizes
        slots[target].copy_(slots[source])

    return write


def _bind_move(op: Op) -> Step:
    source, result = op.operands()[0].index, op.result.index
    dtype, shape = DTYPES[op.result.type.dtype], op.result.type.shape

    def pass_on(slots: list[Any], sizes: dict[str, int]) -> None:
        del sizes
        slots[result] = slots[source]

    def clone(slots: list[Any], sizes: dict[str, int]) -> None:
        del sizes
        slots[result] = slots[source].clone()

    def convert(slots: list[Any], sizes: dict[str, int]) -> None:
        size = [sizes[d] if isinstance(d, str) else d for d in shape]
        slots[result] = slots[source].to(dtype).expand(size).clone()

    return {"set": pass_on, "clone": clone, "convert": convert}[op.name]


def _bind_operator(op: Op) -> Step:
    function = operator_of(op.name)
    getters = [_getter(a) for a in op.arguments]
    keywords = {name: _getter(a) for name, a in op.keywords}
    result = op.result.index

    def run(slots: list[Any], sizes: dict[str, int]) -> None:
        del sizes
        slots[result] = function(
            *[get(slots) for get in getters], **{k: get(slots) for k, get in keywords.items()}
        )

    return run


def _getter(argument: Argument) -> Callable[[list[Any]], Any]:
    if isinstance(argument, Constant):
        constant = argument.value
        return lambda _slots: constant
    index = argument.index
    return lambda slots: slots[index]


def operator_of(name: str) -> Callable[..., Any]:
    """Returns the torch operator of an operation name: `add.Tensor` is aten's, `prims.fma.default` another's."""
    *namespace, packet, overload = name.split(".")
    operators: Any = getattr(torch.ops, namespace[0]) if namespace else torch.ops.aten
    operator: Callable[..., Any] = getattr(getattr(operators, packet), overload)
    return operator
