"""A stable print of a FusionProgram: what golden tests compare and `explain` shows."""

from __future__ import annotations

from fusion_core.program.ir import Argument, Constant, FusionProgram, Op, TensorType, Value


def text(program: FusionProgram) -> str:
    """Returns the program, one operation a line."""
    shared = _shared_storages(program)
    inputs = ", ".join(
        f"{_typed(i.value)}" + (f" @{i.storage}" if i.storage in shared else "") for i in program.inputs
    )
    lines = [f"program({inputs}) {{"]
    lines += [f"  {_typed(op.result)} = {_call(op)}" for op in program.ops]
    lines += [f"  write {_name(pair.target)} <- {_name(pair.source)}" for pair in program.aliases]
    if program.outputs:
        lines.append("  return " + ", ".join(_name(v) for v in program.outputs))
    return "\n".join([*lines, "}"])


def type_text(kind: TensorType) -> str:
    """Returns `f32[s0, 3]`, with the layout where it is not row-major."""
    layout = "" if kind.layout is None else str(kind.layout)
    place = " host" if kind.host else ""
    return f"{kind.dtype}[{', '.join(map(str, kind.shape))}]{layout}{place}"


def _shared_storages(program: FusionProgram) -> set[int]:
    storages = [i.storage for i in program.inputs]
    return {s for s in storages if storages.count(s) > 1}


def _name(value: Value) -> str:
    return f"%{value.index}"


def _typed(value: Value) -> str:
    return f"{_name(value)}: {type_text(value.type)}"


def _call(op: Op) -> str:
    arguments = [_argument(a) for a in op.arguments]
    arguments += [f"{name}={_argument(a)}" for name, a in op.keywords]
    return f"{op.name}({', '.join(arguments)})"


def _argument(argument: Argument) -> str:
    return argument.spelling() if isinstance(argument, Constant) else _name(argument)
