"""From a program over one tensor of a shape to the same program over many of them, laid end to end."""

from __future__ import annotations

from dataclasses import replace

from fusion_core.program.ir import AliasPair, Argument, Constant, FusionProgram, Op, TensorType, Value


def widen(program: FusionProgram, shared: frozenset[int]) -> FusionProgram | None:
    """Returns `program` with every tensor as one dimension `s0`; None where a value cannot be widened.

    The inputs at the positions `shared` are the same single element for all, and stay one element. What is computed from
    them alone stays so too; a write into it has no meaning for many.
    """
    values: dict[Value, Value] = {}
    for position, given in enumerate(program.inputs):
        value = given.value
        if value.type.host:
            return None
        values[value] = value if position in shared else _wide(value)
    ops = []
    for op in program.ops:
        if op.name == "iota":
            return None  # positions in each, not in all
        operands = [values[v] for v in op.operands()]
        is_wide = any(v.type.shape == ("s0",) for v in operands) or not operands
        values[op.result] = _wide(op.result) if is_wide else op.result
        ops.append(_renamed(op, values))
    pairs = tuple(AliasPair(values[p.target], values[p.source], p.line) for p in program.aliases)
    if any(p.target.type.shape != p.source.type.shape or p.target.type.shape != ("s0",) for p in pairs):
        return None
    inputs = tuple(replace(given, value=values[given.value]) for given in program.inputs)
    return FusionProgram(inputs, tuple(ops), (), pairs)


def _wide(value: Value) -> Value:
    return Value(value.index, TensorType(value.type.dtype, ("s0",)))


def _renamed(op: Op, values: dict[Value, Value]) -> Op:
    def rename(argument: Argument) -> Argument:
        return argument if isinstance(argument, Constant) else values[argument]

    return Op(
        name=op.name,
        arguments=tuple(map(rename, op.arguments)),
        keywords=tuple((name, rename(a)) for name, a in op.keywords),
        result=values[op.result],
        line=op.line,
    )
