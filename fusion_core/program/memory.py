"""Which values may share memory when an executor carries out operations on indices without moving data."""

from __future__ import annotations

from collections.abc import Mapping

from fusion_core.program.ir import META_OPS, Constant, Op, Value

# Over dimensions of a single element these are the element itself.
_PICKING = frozenset({"sum", "prod", "amax", "amin"})


def memory_chain(producers: Mapping[Value, Op], value: Value) -> list[Value]:
    """Returns `value` and every value whose memory it may share, nearest first.

    Besides views and `set`, that is a reduction over dimensions of size 1, which nvFuser squeezes, and a cast back to the
    type from which a value came, which it drops together with the first.
    """
    chain = [value]
    while (op := producers.get(chain[-1])) is not None:
        origin = _operand_that_is_shared(producers, op)
        if origin is None:
            break
        chain.append(origin)
    return chain


def _operand_that_is_shared(producers: Mapping[Value, Op], op: Op) -> Value | None:
    operands = op.operands()
    if not operands:
        return None
    if op.name in META_OPS or (op.name in _PICKING and _reduces_nothing(op)):
        return operands[0]
    return _origin_of_round_trip(producers, op) if op.name == "convert" else None


def _reduces_nothing(op: Op) -> bool:
    dims = op.arguments[1]
    assert isinstance(dims, Constant)
    shape = op.operands()[0].type.shape
    return all(shape[d] == 1 for d in dims.value)  # type: ignore[union-attr, index]


def _origin_of_round_trip(producers: Mapping[Value, Op], op: Op) -> Value | None:
    value = op.operands()[0]
    while value.type.dtype != op.result.type.dtype:
        before = producers.get(value)
        if before is None or before.name != "convert" or not before.operands():
            return None
        value = before.operands()[0]
    return value
