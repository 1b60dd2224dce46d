"""A FusionProgram as a fusion of nvFuser.

Half types are computed in `f32` and rounded after every operation, as eager does. Scalars stay Python numbers or symbolic
scalars as long as possible: a tensor without dimensions would cost a kernel (rule R8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fusion_core.executors import nvfuser_pointwise as rules
from fusion_core.executors.nvfuser_types import NVFUSER_NAMES, as_number, common, computing, scalar_name
from fusion_core.lowering.types import DTYPES
from fusion_core.program.ir import CONSTANTS, Argument, Constant, FusionProgram, Op, TensorType, Value


@dataclass(frozen=True, slots=True)
class Operand:
    """A value under construction: a tensor or scalar of nvFuser, or a Python number; `dtype` is its present type."""

    handle: Any
    dtype: str
    is_tensor: bool


class Definition:
    """Builds one fusion; `nvfuser` is the `nvfuser_direct` module."""

    def __init__(self, nvfuser: Any, program: FusionProgram) -> None:
        self._nvfuser = nvfuser
        self._ops = nvfuser.ops
        self._program = program
        self._env: dict[Value, Operand] = {}
        self._sizes: dict[str, tuple[Any, int]] = {}

    def build(self) -> Any:
        """Returns the `Fusion`; raises RuntimeError where nvFuser refuses an operation."""
        fusion = self._nvfuser.Fusion()
        guard = self._nvfuser.FusionGuard(fusion)
        try:
            for given in self._program.inputs:
                self._env[given.value] = self._define(fusion, given.value.type)
            for op in self._program.ops:
                self._env[op.result] = self._compute(op)
            for output in self._program.outputs:
                fusion.add_output(self._output(output))
            for pair in self._program.aliases:
                fusion.add_output(self._tensor(pair.source), self._env[pair.target].handle)
        finally:
            del guard
        return fusion

    def _type(self, name: str) -> Any:
        return getattr(self._nvfuser.DataType, name)

    def _define(self, fusion: Any, kind: TensorType) -> Operand:
        if kind.host:
            scalar = self._nvfuser.define_scalar(None, self._type(scalar_name(kind.dtype)))
            fusion.add_input(scalar)
            return Operand(scalar, kind.dtype, is_tensor=False)
        arguments = input_arguments(kind)
        tensor = self._nvfuser.define_tensor(**arguments, dtype=self._type(NVFUSER_NAMES[kind.dtype]))
        fusion.add_input(tensor)
        for dim, size in enumerate(kind.shape):
            if isinstance(size, str):
                self._sizes.setdefault(size, (tensor, dim))
        return Operand(tensor, kind.dtype, is_tensor=True)

    def _size(self, dim: int | str) -> Any:
        return dim if isinstance(dim, int) else self._ops.size(*self._sizes[dim])

    def _compute(self, op: Op) -> Operand:
        if op.name in CONSTANTS:
            dtype = op.result.type.dtype
            return Operand(as_number(_constant(op.arguments[-1]), dtype), dtype, is_tensor=False)
        if op.name in _MOVES:
            return self._finish(_MOVES[op.name](self, op), op.result.type)
        return self._finish(self._pointwise(op), op.result.type)

    def _finish(self, handle: Any, kind: TensorType) -> Operand:
        if not isinstance(handle, self._nvfuser.TensorView):
            return Operand(handle, kind.dtype, is_tensor=False)
        return self._cast(Operand(handle, self._dtype_of(handle), is_tensor=True), kind.dtype)

    def _dtype_of(self, handle: Any) -> str:
        found = handle.dtype()
        return next((ours for ours, theirs in NVFUSER_NAMES.items() if self._type(theirs) == found), "")

    def _cast(self, operand: Operand, dtype: str) -> Operand:
        if operand.dtype == dtype:
            return operand
        if not operand.is_tensor:
            number = isinstance(operand.handle, (bool, int, float, complex))
            return Operand(
                as_number(operand.handle, dtype) if number else operand.handle, dtype, is_tensor=False
            )
        cast = self._ops.cast(operand.handle, self._type(NVFUSER_NAMES[dtype]))
        return Operand(cast, dtype, is_tensor=True)

    def _pointwise(self, op: Op) -> Any:
        name = op.name.rpartition(".")[0]
        result = op.result.type.dtype
        arguments = [self._operand(a, op) for a in op.arguments]
        keywords = {k: self._operand(a, op) for k, a in op.keywords}
        if name in rules.COMPARING:
            return rules.COMPARING[name](
                self._ops, *self._prepared(op, arguments, self._common(op, arguments))
            )
        if name in rules.CONDITIONAL:
            if name == "masked_fill":
                arguments = [arguments[1], arguments[0], arguments[2]]
            condition = self._as_tensor(self._cast(arguments[0], "bool"), op.result.type)
            return rules.CONDITIONAL[name](
                self._ops,
                condition.handle,
                *self._prepared(op, arguments[1:], computing(result), first=False),
            )
        whole = not (DTYPES[result].is_floating_point or DTYPES[result].is_complex)
        rule = rules.WHOLE.get(name) if whole else None
        rule = rule or rules.ARITHMETIC[name]
        dtype = result if name.startswith("bitwise") else computing(result)
        prepared = self._prepared(op, arguments, dtype)
        named = dict(
            zip(keywords, self._prepared(op, list(keywords.values()), dtype, first=False), strict=True)
        )
        return rule(self._ops, *prepared, **named)

    def _common(self, op: Op, arguments: list[Operand]) -> str:
        shaped = {self._env[v].handle: bool(v.type.shape) for v in op.operands() if self._env[v].is_tensor}
        tensors = [(a.dtype, shaped.get(a.handle, True)) for a in arguments if a.is_tensor]
        scalars = [(a.dtype, False) for a in arguments if not a.is_tensor and not _is_number(a)]
        numbers = [a.handle for a in arguments if _is_number(a)]
        return (
            computing(common(tensors + scalars, numbers))
            if tensors + scalars
            else computing(arguments[0].dtype)
        )

    def _prepared(self, op: Op, arguments: list[Operand], dtype: str, *, first: bool = True) -> list[Any]:
        """Casts operands; where all are scalars, the first becomes a tensor, so that the operation makes one."""
        cast = [
            a if a.handle is None or isinstance(a.handle, str) else self._cast(a, dtype) for a in arguments
        ]
        if first and cast and not any(a.is_tensor for a in cast):
            cast[0] = self._as_tensor(cast[0], op.result.type)
        return [a.handle for a in cast]

    def _operand(self, argument: Argument, op: Op) -> Operand:
        """Returns an operand; a constant with dimensions is made a tensor where no other operand has the result's shape."""
        operand = self._argument(argument)
        if operand.is_tensor or not isinstance(argument, Value) or argument.type.host:
            return operand
        shapes = {v.type.shape for v in op.operands() if self._env[v].is_tensor}
        spreads = (
            bool(shapes) and op.result.type.shape not in shapes and any(d != 1 for d in argument.type.shape)
        )
        return self._as_tensor(operand, argument.type) if spreads else operand

    def _argument(self, argument: Argument) -> Operand:
        if isinstance(argument, Value):
            return self._env[argument]
        return Operand(argument.value, _dtype_of_number(argument.value), is_tensor=False)

    def _as_tensor(self, operand: Operand, kind: TensorType) -> Operand:
        if operand.is_tensor:
            return operand
        shape = [self._size(d) for d in kind.shape]
        full = self._ops.full(shape, operand.handle, self._type(NVFUSER_NAMES[operand.dtype]))
        return Operand(full, operand.dtype, is_tensor=True)

    def _tensor(self, value: Value) -> Any:
        """Returns the tensor of a value in its own type."""
        return self._cast(self._as_tensor(self._env[value], value.type), value.type.dtype).handle

    def _output(self, value: Value) -> Any:
        """Fixes the order of dimensions, which nvFuser would take from an input whose layout differs."""
        handle, order = self._tensor(value), value.type.order
        orders = {order, *(i.value.type.order for i in self._program.inputs)}
        if all(o == tuple(range(len(o))) for o in orders):
            return handle
        return self._ops.stride_order(handle, stride_order(order))

    # Operations on indices, reductions and copies; each returns a tensor of nvFuser or a scalar.

    def move(self, op: Op) -> Any:
        """`set`, and `convert`, whose cast follows."""
        operand = self._env[op.operands()[0]]
        if op.name == "set" and operand.is_tensor:
            return self._ops.set(operand.handle)
        return operand.handle if operand.is_tensor else self._cast(operand, op.result.type.dtype).handle

    def clone(self, op: Op) -> Any:
        """Memory of its own: nvFuser may return a `set` of an input as the input (rule R5), an operation it computes."""
        value = op.operands()[0]
        dtype = value.type.dtype
        operand = self._cast(Operand(self._tensor(value), dtype, is_tensor=True), computing(dtype))
        if dtype == "bool":
            return self._ops.ne(operand.handle, 0)
        return self._ops.mul(operand.handle, as_number(1, operand.dtype))

    def view(self, op: Op) -> Any:
        """Permutations, reshapes, and dimensions of size 1 that come, go or expand."""
        value, shape = op.operands()[0], op.result.type.shape
        tensor, o = self._tensor(value), self._ops
        if op.name == "reshape":
            return o.reshape(tensor, [self._size(d) for d in shape])
        if op.name == "expand":
            missing = len(shape) - len(value.type.shape)
            if missing:
                tensor = o.broadcast(tensor, [True] * missing + [False] * len(value.type.shape))
            before = (*[1] * missing, *value.type.shape)
            return o.expand(
                tensor, [-1 if a == b else self._size(b) for a, b in zip(before, shape, strict=True)]
            )
        dims = _dims(op)
        if op.name == "permute":
            return o.permute(tensor, list(dims))
        if op.name == "unsqueeze":
            return o.broadcast(tensor, [d in dims for d in range(len(shape))])
        return o.squeeze(tensor, list(dims)) if dims else o.set(tensor)

    def positions(self, op: Op) -> Any:
        """0, 1, 2, ... as whole numbers."""
        (size,) = op.result.type.shape
        length = self._nvfuser.define_scalar(size) if isinstance(size, int) else self._size(size)
        return self._ops.iota(length, dtype=self._type("Int"))

    def draw(self, op: Op) -> Any:
        """Random numbers from the device's default generator, which the kernel advances."""
        value = op.operands()[0]
        dtype = self._type(NVFUSER_NAMES[computing(op.result.type.dtype)])
        shape = [self._size(d) for d in value.type.shape]
        low, high = (0.0, 1.0)  # of a normal distribution: mean and deviation
        return (self._ops.uniform if op.name == "uniform" else self._ops.normal)(
            low, high, shape, dtype=dtype
        )

    def reduce(self, op: Op) -> Any:
        """Sums and their kin, in the type in which the result is computed."""
        value, dims = op.operands()[0], list(_dims(op))
        if not dims:
            return self._ops.set(self._tensor(value))
        keepdim = bool(_constant(dict(op.keywords)["keepdim"]))
        single = _single_dims(value.type.shape, dims)
        result = self._reduced(op, sorted([*dims, *single]), keepdim=keepdim)
        if keepdim or not single:
            return result
        return self._ops.broadcast(
            result, [d in single for d in range(len(value.type.shape)) if d not in dims]
        )

    def _reduced(self, op: Op, dims: list[int], *, keepdim: bool) -> Any:
        value, o = op.operands()[0], self._ops
        if op.name in ("any", "all"):
            truth = o.cast(o.ne(self._tensor(value), 0), self._type("Int32"))
            return (o.max if op.name == "any" else o.min)(truth, dims, keepdim)
        tensor = self._cast(
            Operand(self._tensor(value), value.type.dtype, is_tensor=True), computing(op.result.type.dtype)
        )
        if op.name == "var":
            return o.var(tensor.handle, dims, int(_constant(dict(op.keywords)["correction"])), keepdim)
        if op.name == "mean":
            return o.truediv(o.sum(tensor.handle, dims, keepdim), self._count(value, dims))
        return getattr(o, {"amax": "max", "amin": "min"}.get(op.name, op.name))(tensor.handle, dims, keepdim)

    def _count(self, value: Value, dims: list[int]) -> Any:
        sizes = [value.type.shape[d] for d in dims]
        known = 1
        for size in sizes:
            known *= size if isinstance(size, int) else 1
        count: Any = None
        for size in sizes:
            if isinstance(size, str):
                count = self._size(size) if count is None else self._ops.mul(count, self._size(size))
        if count is None:
            return float(known)
        return self._ops.cast(count if known == 1 else self._ops.mul(count, known), self._type("Double"))


def _single_dims(shape: tuple[int | str, ...], reduced: list[int]) -> list[int]:
    """Returns the dimensions of size 1 that a reduction keeps beside others; it may as well reduce them.

    nvFuser 0.2.36 (seen on an H200) merges the kept dimensions; where one of them has size 1 and two operands are broadcast
    into the result, it takes the merged one for a single element and writes the first row only.
    """
    kept = [d for d in range(len(shape)) if d not in reduced]
    single = [d for d in kept if shape[d] == 1]
    return single if len(single) < len(kept) else []


_MOVES: dict[str, Any] = {
    "set": Definition.move,
    "convert": Definition.move,
    "clone": Definition.clone,
    "iota": Definition.positions,
    **dict.fromkeys(("uniform", "normal"), Definition.draw),
    **dict.fromkeys(("permute", "reshape", "expand", "squeeze", "unsqueeze"), Definition.view),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "prod", "var", "any", "all"), Definition.reduce),
}


def input_arguments(kind: TensorType) -> dict[str, Any]:
    """Returns `define_tensor`'s shape, contiguity (from the outermost dimension inwards) and stride order."""
    shape = [d if isinstance(d, int) else -1 for d in kind.shape]
    flags = (
        kind.layout.flags if kind.layout is not None else "".join("b" if d == 1 else "c" for d in kind.shape)
    )
    arguments: dict[str, Any] = {
        "shape": shape,
        "contiguity": [{"c": True, "g": False, "b": None, "e": None}[flag] for flag in flags],
    }
    if kind.order != tuple(range(len(shape))):
        arguments["stride_order"] = stride_order(kind.order)
    return arguments


def stride_order(order: tuple[int, ...]) -> list[int]:
    """Returns for each dimension its place from the innermost, which is 0."""
    places = {dim: len(order) - 1 - position for position, dim in enumerate(order)}
    return [places[dim] for dim in range(len(order))]


def _constant(argument: Argument) -> Any:
    assert isinstance(argument, Constant)
    return argument.value


def _dims(op: Op) -> tuple[int, ...]:
    dims: tuple[int, ...] = _constant(op.arguments[1])
    return dims


def _is_number(operand: Operand) -> bool:
    return not operand.is_tensor and isinstance(operand.handle, (bool, int, float, complex))


def _dtype_of_number(value: object) -> str:
    return {bool: "bool", int: "i64", float: "f32", complex: "c64"}.get(type(value), "")
