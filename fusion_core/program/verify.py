"""Proof obligations of a FusionProgram before an executor may see it.

The rule numbers are those under which nvFuser's silent failures were measured: R1 one typed source per target, R2 an
aliased value is no output, R3 no reader of a written input at another index or in another kernel, R4 no source in another
written input, R5 outputs are fresh memory, R6 only dense inputs are written, R7 nothing else overlaps a written input, R8
no operand of lower rank beside a write, R9 no source that a library call computes.
"""

from __future__ import annotations

from collections.abc import Collection

from fusion_core.errors import VerifyError
from fusion_core.program.ir import (
    CONSTANTS,
    EXTERNAL_OPS,
    REDUCTIONS,
    VIEW_OPS,
    AliasPair,
    FusionProgram,
    Op,
    Value,
    is_moving,
)
from fusion_core.program.memory import memory_chain
from fusion_core.program.text import type_text

# They stand between kernels; an iota has a dimension of its own, even where its size is 1.
_APART = VIEW_OPS | REDUCTIONS | {"iota"}


def verify(program: FusionProgram) -> FusionProgram:
    """Returns `program` unchanged; raises VerifyError naming rule, value and source line of the first violation."""
    _check_ssa(program)
    _check_r1(program)
    _check_r2(program)
    _check_r4(program)
    _check_r3(program)
    _check_r5(program)
    _check_r6(program)
    _check_r7(program)
    _check_r8(program)
    _check_r9(program)
    return program


def moving_readers(program_ops: tuple[Op, ...], target: Value) -> Op | None:
    """Returns the first operation that reads `target`, directly or not, at other indices than its own; None if none does.

    Such an operation could read elements that another thread has already overwritten.
    """
    dependent = {target}
    for op in program_ops:
        touched = [operand for operand in op.reads() if operand in dependent]
        if touched:
            if any(is_moving(op, operand) for operand in touched):
                return op
            dependent.add(op.result)
    return None


def unordered_reader(
    program_ops: tuple[Op, ...], target: Value, source: Value, leaving: Collection[Value]
) -> Op | None:
    """Returns the first operation that needs the old `target` and that may land in another kernel than its write.

    Pointwise operations that are connected and of one shape are one kernel. Otherwise nvFuser may cut the program anywhere,
    re-reads an input in every piece, and runs pieces in data order alone: then only what the source needs runs before it.
    `leaving` are the values that are returned or written.
    """
    if is_one_kernel(program_ops, target, source, leaving):
        return None
    needed = ancestors(program_ops, source)
    dependent = {target}
    for op in program_ops:
        if any(operand in dependent for operand in op.reads()):
            if op.result not in needed:
                return op
            dependent.add(op.result)
    return None


def is_one_kernel(
    program_ops: tuple[Op, ...], target: Value, source: Value, leaving: Collection[Value]
) -> bool:
    """True if the readers of `target` and its write from `source` are sure to be computed by the same kernel.

    Measured on nvFuser 0.2.36: what leaves with nothing but dimensions of size 1 can become a kernel of its own, even
    beside operations on the same operands. What follows from numbers alone needs no operand, so it connects nothing.
    """
    if any(op.name in _APART for op in program_ops):
        return False
    numbers = _numbers(program_ops)
    computed = [op for op in program_ops if op.result not in numbers and not op.result.type.host]
    if any(_is_single(value) for value in (target, *leaving)):
        return False
    if len({op.result.type.shape for op in computed if not _is_single(op.result)}) > 1:
        return False
    group: dict[Value, set[Value]] = {}
    for op in computed:
        connecting = (v for v in op.operands() if v not in numbers and not _is_single(v))
        merged = {op.result}.union(*(group.get(v, {v}) for v in connecting))
        group.update(dict.fromkeys(merged, merged))
    readers = [op.result for op in computed if target in op.operands()]
    return all(source in group[r] for r in readers)


def _is_single(value: Value) -> bool:
    return all(d == 1 for d in value.type.shape)


def _numbers(program_ops: tuple[Op, ...]) -> set[Value]:
    """Returns the values that follow from numbers alone."""
    found: set[Value] = set()
    for op in program_ops:
        operands = op.operands()
        if op.name in CONSTANTS or (operands and found.issuperset(operands)):
            found.add(op.result)
    return found


def ancestors(program_ops: tuple[Op, ...], value: Value) -> set[Value]:
    """Returns `value` and everything that it is computed from."""
    found = {value}
    for op in reversed(program_ops):
        if op.result in found:
            found.update(op.operands())
    return found


def _check_ssa(program: FusionProgram) -> None:
    defined = {i.value for i in program.inputs}
    sizes = {d for i in program.inputs for d in i.value.type.shape if isinstance(d, str)}
    for op in program.ops:
        for operand in op.operands():
            if operand not in defined:
                raise VerifyError("SSA", f"%{operand.index}", op.line, "is read before it is defined")
        unbound = {d for d in op.result.type.shape if isinstance(d, str)} - sizes
        if unbound:
            raise VerifyError(
                "SSA", f"%{op.result.index}", op.line, f"has a size that no input gives: {min(unbound)}"
            )
        if op.result in defined:
            raise VerifyError("SSA", f"%{op.result.index}", op.line, "is defined twice")
        defined.add(op.result)
    for value in (*program.outputs, *(p.source for p in program.aliases)):
        if value not in defined:
            raise VerifyError("SSA", f"%{value.index}", "", "leaves the program but is not defined")


def _check_r1(program: FusionProgram) -> None:
    inputs = {i.value for i in program.inputs}
    targets: set[Value] = set()
    sources: set[Value] = set()
    for pair in program.aliases:
        name = f"%{pair.source.index}"
        if pair.target not in inputs:
            raise VerifyError("R1", f"%{pair.target.index}", pair.line, "only an input can be written")
        if pair.target in targets:
            raise VerifyError(
                "R1", f"%{pair.target.index}", pair.line, "is written twice; only the last write may leave"
            )
        if pair.source in inputs:
            raise VerifyError("R1", name, pair.line, "is an input; write a `set` of it")
        if pair.source in sources:
            raise VerifyError("R1", name, pair.line, "is bound to two targets; give each a `set` of its own")
        _check_types(pair, name)
        targets.add(pair.target)
        sources.add(pair.source)


def _check_types(pair: AliasPair, name: str) -> None:
    found, expected = pair.source.type, pair.target.type
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        text = f"has type {type_text(found)}, but is written into {type_text(expected)}"
        raise VerifyError("R1", name, pair.line, text)


def _check_r2(program: FusionProgram) -> None:
    bound = {p.source: p for p in program.aliases} | {p.target: p for p in program.aliases}
    for output in program.outputs:
        for value in memory_chain(program.producers(), output):
            if value in bound:
                text = f"is returned, but shares memory with the written input %{bound[value].target.index}"
                raise VerifyError("R2", f"%{output.index}", bound[value].line, text)


def _check_r3(program: FusionProgram) -> None:
    for pair in program.aliases:
        reader = moving_readers(program.ops, pair.target)
        if reader is not None:
            text = f"is written while {reader.name} (%{reader.result.index}) reads it at other indices"
            raise VerifyError("R3", f"%{pair.target.index}", reader.line or pair.line, text)
        reader = unordered_reader(program.ops, pair.target, pair.source, program.leaving())
        if reader is not None:
            text = f"is written while {reader.name} (%{reader.result.index}) may read it in a later kernel"
            raise VerifyError("R3", f"%{pair.target.index}", reader.line or pair.line, text)


def _check_r4(program: FusionProgram) -> None:
    written = {p.target for p in program.aliases}
    for pair in program.aliases:
        last = memory_chain(program.producers(), pair.source)[-1]
        if last in written and last != pair.target:
            text = f"is the old value of %{last.index}, which is written too"
            raise VerifyError("R4", f"%{pair.source.index}", pair.line, text)


def _check_r5(program: FusionProgram) -> None:
    inputs = {i.value: i for i in program.inputs}
    for output in program.outputs:
        last = memory_chain(program.producers(), output)[-1]
        if last in inputs:
            text = f"would be returned as an alias of input %{last.index}; make it a `clone`"
            raise VerifyError("R5", f"%{output.index}", inputs[last].line, text)


def _check_r6(program: FusionProgram) -> None:
    for pair in program.aliases:
        layout = pair.target.type.layout
        if layout is not None and not layout.is_dense:
            text = f"is written, but is not dense: {type_text(pair.target.type)}"
            raise VerifyError("R6", f"%{pair.target.index}", pair.line, text)


def _check_r7(program: FusionProgram) -> None:
    written = {p.target for p in program.aliases}
    for first in program.inputs:
        for second in program.inputs:
            if first.value in written and first is not second and first.storage == second.storage:
                text = f"is written, but input %{second.value.index} shares its storage"
                raise VerifyError("R7", f"%{first.value.index}", first.line or second.line, text)


def _check_r8(program: FusionProgram) -> None:
    """Only for pointwise programs: a reduction broadcasts whatever its operands' rank."""
    if not program.aliases or any(op.name in VIEW_OPS or op.name in REDUCTIONS for op in program.ops):
        return
    for op in program.ops:
        for operand in op.operands():
            if len(operand.type.shape) != len(op.result.type.shape) and not operand.type.host:
                text = f"has a lower rank than the result of {op.name}, which costs a write another kernel"
                raise VerifyError("R8", f"%{operand.index}", op.line, text)


def _check_r9(program: FusionProgram) -> None:
    producers = program.producers()
    for pair in program.aliases:
        op = producers.get(pair.source)
        if op is not None and op.name.partition(".")[0] in EXTERNAL_OPS:
            text = f"is computed by {op.name}, which drops the write; write a `set` of it"
            raise VerifyError("R9", f"%{pair.source.index}", op.line, text)
