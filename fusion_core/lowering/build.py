"""One component into one FusionProgram: the copy rule.

A write leaves the program as an alias of its target wherever that is safe, without an extra output and without a `set`.
A `set` is emitted only for a reason, an alias is refused only for a reason, and both are told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fusion_core.alias import AliasFacts
from fusion_core.components import Component
from fusion_core.lowering import translate
from fusion_core.lowering.rows import ROWS, aten, operation_name
from fusion_core.lowering.support import source_line
from fusion_core.lowering.types import DTYPE_NAMES, Form, TypeTable, fake, is_dense, same_layout
from fusion_core.program.ir import AliasPair, Argument, Constant, FusionProgram, Input, Op, TensorType, Value
from fusion_core.program.memory import memory_chain
from fusion_core.program.verify import moving_readers, unordered_reader


@dataclass(frozen=True, slots=True)
class Note:
    """Something that `explain` tells about a write: a `set` that was needed, or an alias that was refused."""

    target: str
    reason: str
    line: str


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program and what its values stand for in the graph. `nodes` are those that it computes, in order.

    `forwarded` maps nodes to the written placeholder that holds their value after the launch, `reused` to an input that
    dies in the launch and whose memory they take over. `deferred` are writes to do as copies after the region.
    """

    component: Component
    nodes: tuple[Node, ...]
    program: FusionProgram
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    forwarded: tuple[tuple[Node, Node], ...]
    deferred: tuple[Node, ...]
    sets: tuple[Note, ...]
    refused: tuple[Note, ...]
    form: Form
    device: str
    reused: tuple[tuple[Node, Node], ...] = ()

    def operands(self) -> set[Node]:
        """Returns what the program or, in its place, the eager operators of its nodes read from outside."""
        inside = set(self.nodes)
        return {n for node in self.nodes for n in node.all_input_nodes if n not in inside} | set(self.inputs)


def lower(
    component: Component, facts: AliasFacts, fresh: frozenset[int | str], *, bookend: bool = False
) -> Lowered:
    """Returns the program of `component`. `fresh` are the storage classes whose values leave the graph as new memory.

    With `bookend`, views of the component's inputs are left to the host. Without it they are part of the program, except
    where the rest is pointwise: then there is nothing that a view inside could be fused with.
    """
    peeled = bookend or all(ROWS[n.target].kind not in ("view", "reduce") for n in component.nodes)
    nodes = component.nodes if peeled else (*component.leading, *component.nodes)
    return _Lowering(component, nodes, facts, fresh).lower()


class _Lowering:
    """The state of building one program; used once."""

    def __init__(
        self, component: Component, nodes: tuple[Node, ...], facts: AliasFacts, fresh: frozenset[int | str]
    ) -> None:
        self._component = component
        self._nodes = nodes
        self._facts = facts
        self._fresh = fresh
        self._device = fake(next(n for n in component.nodes if n in component.own)).device
        self._form = _form(component, nodes, self._device)
        self._types = TypeTable(self._form)
        self._values: dict[Node, Value] = {}
        self._inputs: dict[Node, Input] = {}
        self._storages: dict[Any, int] = {}
        self._ops: list[Op] = []
        self._count = 0
        self._sets: list[Note] = []
        self._refused: list[Note] = []

    def lower(self) -> Lowered:
        for node in self._nodes:
            self._values[node] = self._translate(node)
        for copy in self._component.writes:
            self._read(_target(copy))
        accepted, deferred = self._decide_writes()
        outputs, leaving, pairs, late = self._leave(accepted, deferred)
        while late:
            accepted, deferred = [c for c in accepted if c not in late], [*deferred, *late]
            outputs, leaving, pairs, late = self._leave(accepted, deferred)
        alike = [c for c in accepted if self._stays_readable(c)]
        forwarded = tuple((_source(c), _target(c)) for c in alike if _source(c) not in outputs)
        program = FusionProgram(tuple(self._inputs.values()), tuple(self._ops), leaving, self._unique(pairs))
        return Lowered(
            component=self._component,
            nodes=self._nodes,
            program=program,
            inputs=tuple(self._inputs),
            outputs=outputs,
            forwarded=forwarded,
            deferred=tuple(deferred),
            sets=tuple(self._sets),
            refused=tuple(self._refused),
            form=self._form,
            device=self._device.type,
        )

    def _new(self, kind: TensorType) -> Value:
        self._count += 1
        return Value(self._count - 1, kind)

    def _type(self, node: Node) -> TensorType:
        return self._types.type_of(node, device=self._device)

    def _read(self, node: Node) -> Value:
        if node not in self._values:
            value = self._new(self._type(node))
            storage = self._storages.setdefault(self._facts.storage[node], len(self._storages))
            self._inputs[node] = Input(value, storage, source_line(node))
            self._values[node] = value
        return self._values[node]

    def _emit(
        self, name: str, operands: tuple[Argument, ...], kind: TensorType, line: str, keywords: Any = ()
    ) -> Value:
        result = self._new(kind)
        self._ops.append(Op(name, operands, keywords, result, line))
        return result

    def _translate(self, node: Node) -> Value:
        row = ROWS[node.target]
        if row.kind == "apply":
            return self._apply(node)
        if row.kind == "constant":
            value: Any = node.args[row.operand]
            return self._emit("full", (Constant.of(value),), self._type(node), source_line(node))
        if row.kind == "positions":
            return self._positions(node)
        operand = self._read(node.args[row.operand])  # type: ignore[arg-type]
        kind, line = self._type(node), source_line(node)
        if row.kind == "alias":
            return operand
        if row.kind == "create":
            given: Any = node.args[1] if len(node.args) > 1 else int(node.target is aten.ones_like.default)
            return self._emit("full_like", (operand, Constant.of(given)), kind, line)
        if row.kind == "random":
            return self._emit(row.name, (operand,), kind, line)
        reduced = translate.reduced_dims(node) if row.kind == "reduce" else ()
        if (
            row.kind == "reduce"
            and not reduced
            and row.name in ("any", "all")
            and operand.type.dtype != "bool"
        ):
            return self._emit("ne.Scalar", (operand, Constant.of(0)), kind, line)
        if reduced:
            dims = Constant.of(reduced)
            keywords = translate.reduction_keywords(node)
            named = tuple((name, Constant.of(value)) for name, value in sorted(keywords.items()))
            return self._emit(row.name, (operand, dims), kind, line, named)
        if row.kind == "view":
            argument = translate.view_argument(node)
            extra = () if argument is None else (Constant.of(argument),)
            return self._emit(row.name, (operand, *extra), kind, line)
        if (operand.type.dtype, operand.type.shape) == (kind.dtype, kind.shape) and not operand.type.host:
            return operand  # the same value; where it leaves decides whether it needs memory of its own
        return self._emit("convert", (operand,), kind, line)

    def _positions(self, node: Node) -> Value:
        kind, line = self._type(node), source_line(node)
        missing = len(kind.shape) - 1
        value = self._emit("iota", (), TensorType(kind.dtype, kind.shape[-1:]), line)
        if missing == 0:
            return value
        return self._emit("unsqueeze", (value, Constant.of(tuple(range(missing)))), kind, line)

    def _apply(self, node: Node) -> Value:
        line = source_line(node)
        dtype = translate.common_dtype(node)
        kind = self._type(node)
        arguments = tuple(self._argument(a, dtype, kind, line) for a in node.args)
        keywords = tuple(
            (name, self._argument(a, dtype, kind, line))
            for name, a in sorted(node.kwargs.items())
            if a is not None
        )
        return self._emit(operation_name(node.target), arguments, kind, line, keywords)

    def _argument(self, argument: Any, dtype: torch.dtype | None, kind: TensorType, line: str) -> Argument:
        """Reads an operand; one without dimensions is cast, since as a tensor with some it would promote the others."""
        if not isinstance(argument, Node):
            return Constant.of(argument)
        value, tensor = self._read(argument), fake(argument)
        lifted = self._form.collapsed or self._form.rank
        if dtype is None or tensor.dtype == dtype or tensor.dim() > 0 or not kind.shape or not lifted:
            return value
        cast = TensorType(
            DTYPE_NAMES[dtype], value.type.shape if not value.type.host else (1,) * len(kind.shape)
        )
        return self._emit("convert", (value,), cast, line)

    def _decide_writes(self) -> tuple[list[Node], list[Node]]:
        accepted: list[Node] = []
        deferred: list[Node] = []
        for copy in self._component.writes:
            reason = self._refusal(copy)
            if reason:
                self._refused.append(Note(_target(copy).name, reason, source_line(_source(copy))))
            (deferred if reason else accepted).append(copy)
        return accepted, deferred

    def _leave(
        self, accepted: list[Node], deferred: list[Node]
    ) -> tuple[tuple[Node, ...], tuple[Value, ...], tuple[AliasPair, ...], list[Node]]:
        """Returns the nodes that leave, their values, the writes, and those writes that come too early.

        Too early is a write that could come before a clone, which an output needs, has read the old value. Where there is
        one, what was emitted here is taken back.
        """
        before = (len(self._ops), self._count, len(self._sets))
        outputs = self._output_nodes(accepted, deferred)
        leaving = self._outputs(outputs, accepted)
        pairs = tuple(self._alias(copy, leaving, accepted) for copy in accepted)
        ops = tuple(self._ops)
        gone = (*leaving, *(p.source for p in pairs))
        late = [
            c for c, p in zip(accepted, pairs, strict=True) if unordered_reader(ops, p.target, p.source, gone)
        ]
        if late:
            reason = "an output is a clone of the old value, made in another kernel"
            self._refused += [Note(_target(c).name, reason, source_line(_source(c))) for c in late]
            del self._ops[before[0] :], self._sets[before[2] :]
            self._count = before[1]
        return outputs, leaving, pairs, late

    def _stays_readable(self, copy: Node) -> bool:
        """True if the source can be read in its target from now on: they look alike, and nothing else is written there."""
        target, source = _target(copy), _source(copy)
        return (
            same_layout(fake(target), fake(source)) and self._facts.writes[self._facts.storage[target]] == 1
        )

    def _refusal(self, copy: Node) -> str:
        """Rule 3: why the write cannot be an alias; it becomes a fresh output that is copied after the launch."""
        target, source = _target(copy), _source(copy)
        a, b = fake(target), fake(source)
        if a.dtype != b.dtype or list(map(str, a.shape)) != list(map(str, b.shape)) or a.device != b.device:
            return "source and target differ in dtype, shape or device"
        if not is_dense(a):
            return "the target is not dense"
        sharing = [
            n
            for n in self._inputs
            if n is not target and self._facts.storage[n] == self._facts.storage[target]
        ]
        if sharing:
            return f"another input ({sharing[0].name}) shares the target's storage"
        reader = moving_readers(tuple(self._ops), self._values[target])
        if reader is not None:
            return f"{reader.name} reads the old value at other indices ({reader.line})"
        nodes = (*self._component.leaving, *map(_source, self._component.writes))
        leaving = [self._values[n] for n in nodes if n in self._values]
        reader = unordered_reader(tuple(self._ops), self._values[target], self._values[source], leaving)
        if reader is not None:
            return f"{reader.name} may run in another kernel than the write and reads the old value ({reader.line})"
        written = {self._values[_target(c)] for c in self._component.writes}
        if self._values[source] in written and self._values[source] is not self._values[target]:
            return "the source is the old value of another written input"
        return ""

    def _output_nodes(self, accepted: list[Node], deferred: list[Node]) -> tuple[Node, ...]:
        """Nodes that leave as memory of their own: read outside, and not readable in a written input instead.

        The sources of deferred writes are needed for a copy after the region.
        """
        held = {_source(c) for c in accepted if self._stays_readable(c)}
        copied = {_source(c) for c in deferred}
        names = []
        for node in self._component.nodes:
            outside = node in self._component.leaving
            is_fresh = outside and self._facts.storage[node] in self._fresh
            if node in self._component.own and (node in copied or is_fresh or (outside and node not in held)):
                names.append(node)
        return tuple(names)

    def _outputs(self, nodes: tuple[Node, ...], accepted: list[Node]) -> tuple[Value, ...]:
        """Gives each output memory of its own: what may share an input's or another output's is cloned."""
        taken = {i.value for i in self._inputs.values()}
        written = {self._values[_source(c)] for c in accepted}
        leaving: list[Value] = []
        for node in nodes:
            value, kind = self._values[node], self._type(node)
            producers = {op.result: op for op in self._ops}
            chain = memory_chain(producers, value)
            shares = not taken.isdisjoint(chain) or not written.isdisjoint(chain[1:])
            if shares or value.type.layout != kind.layout:
                value = self._emit("clone", (value,), kind, source_line(node))
            leaving.append(value)
            taken.add(value)
        return tuple(leaving)

    def _alias(self, copy: Node, leaving: tuple[Value, ...], accepted: list[Node]) -> AliasPair:
        target, source = self._values[_target(copy)], self._values[_source(copy)]
        line = source_line(_source(copy))
        earlier = [self._values[_source(c)] for c in accepted[: accepted.index(copy)]]
        inputs = {i.value for i in self._inputs.values()}
        origin = memory_chain({op.result: op for op in self._ops}, source)[-1]
        reason, name = "", "set"
        if source in inputs:
            reason = "(a) the source is an input of the region"
        elif source in leaving:
            reason = "(b) the source also leaves as a value of its own"
        elif source in earlier:
            reason = "(c) the source is already written to another target"
        elif origin in inputs:
            # nvFuser takes a `set` of such a value for a view of the input, and writes nothing (measured on 0.2.36)
            reason, name = (
                "(e) the source is an input's value again, by views or a cast there and back",
                "clone",
            )
        if reason:
            self._sets.append(Note(_target(copy).name, reason, line))
            source = self._emit(name, (source,), source.type, line)
        return AliasPair(target, source, line)

    @staticmethod
    def _unique(pairs: tuple[AliasPair, ...]) -> tuple[AliasPair, ...]:
        """Rule 5: of several writes to one target only the last leaves."""
        return tuple({pair.target: pair for pair in pairs}.values())


def _target(copy: Node) -> Node:
    target = copy.args[0]
    assert isinstance(target, Node)
    return target


def _source(copy: Node) -> Node:
    source = copy.args[1]
    assert isinstance(source, Node)
    return source


def _form(component: Component, nodes: tuple[Node, ...], device: torch.device) -> Form:
    rows = [ROWS[n.target] for n in nodes]
    static = any(
        r.name in ("reshape", "expand", "iota") for r in rows
    )  # they bring sizes that no input may have
    if any(r.kind in ("view", "reduce") for r in rows):
        return Form(static=static)
    inside = set(nodes)
    tensors = list(dict.fromkeys(n for node in nodes for n in (*node.all_input_nodes, node)))
    tensors += [_target(c) for c in component.writes]
    if static:
        return Form(rank=max(fake(n).dim() for n in tensors), static=True)
    if _can_collapse(component, tensors, inside):
        return Form(collapsed=True, sized=_sized(tensors, inside, device))
    return Form(rank=max(fake(n).dim() for n in tensors))


def _sized(tensors: list[Node], inside: set[Node], device: torch.device) -> int:
    """Returns from which number of dimensions on tensors have a size that the program does not know.

    Where there are only single elements, these have: nvFuser may compute what is known to have size 1 in kernels apart. An
    input must give the size.
    """
    most = max(fake(n).dim() for n in tensors)
    given = max((fake(n).dim() for n in tensors if n not in inside and fake(n).device == device), default=-1)
    return min(most, 1) if given >= min(most, 1) else most + 1


def _can_collapse(component: Component, tensors: list[Node], inside: set[Node]) -> bool:
    """True if all tensors but scalars have one shape and one dense layout, so that rank does not matter."""
    sources = {_source(c) for c in component.writes}
    shapes, strides = set(), set()
    for node in tensors:
        tensor = fake(node)
        if tensor.dim() == 0:
            continue
        if not is_dense(tensor):
            return False
        shapes.add(tuple(map(str, tensor.shape)))
        if node not in inside or node in component.leaving or node in sources:
            strides.add(tuple(map(str, tensor.stride())))
    return len(shapes) <= 1 and len(strides) <= 1
