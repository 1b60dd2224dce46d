"""One component into one FusionProgram: the copy rule.

A write leaves the program as an alias of its target wherever that is safe, without an extra output and without a `set`.
A `set` is emitted only for a reason, an alias is refused only for a reason, and both are told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from fusion_core.alias import AliasFacts
from fusion_core.lowering.pointwise import ROWS, operation_name
from fusion_core.lowering.support import source_line
from fusion_core.lowering.types import TypeTable, fake, is_dense, same_layout, static_sizes, static_strides
from fusion_core.partition import Component
from fusion_core.program.ir import AliasPair, Argument, Constant, FusionProgram, Input, Op, Value
from fusion_core.program.verify import moving_readers


@dataclass(frozen=True, slots=True)
class Note:
    """Something that `explain` tells about a write: a `set` that was needed, or an alias that was refused."""

    target: str
    reason: str
    line: str


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program and what its values stand for in the graph.

    `forwarded` maps nodes to the written placeholder that holds their value after the launch. `deferred` are writes to do
    as copies after the region. `collapsed` programs take and give one-dimensional tensors.
    """

    component: Component
    program: FusionProgram
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    forwarded: tuple[tuple[Node, Node], ...]
    deferred: tuple[Node, ...]
    sets: tuple[Note, ...]
    refused: tuple[Note, ...]
    collapsed: bool


def lower(component: Component, facts: AliasFacts, fresh: frozenset[int | str]) -> Lowered:
    """Returns the program of `component`. `fresh` are the storage classes whose values leave the graph as new memory."""
    return _Lowering(component, facts, fresh).lower()


class _Lowering:
    """The state of building one program; used once."""

    def __init__(self, component: Component, facts: AliasFacts, fresh: frozenset[int | str]) -> None:
        self._component = component
        self._facts = facts
        self._fresh = fresh
        self.collapsed = _can_collapse(component)
        self._types = TypeTable(collapse=self.collapsed)
        self._values: dict[Node, Value] = {}
        self._inputs: dict[Node, Input] = {}
        self._storages: dict[Any, int] = {}
        self._ops: list[Op] = []
        self._count = 0
        self._sets: list[Note] = []
        self._refused: list[Note] = []

    def lower(self) -> Lowered:
        for node in self._component.nodes:
            self._values[node] = self._translate(node)
        for copy in self._component.writes:
            self._read(_target(copy))
        accepted, deferred = self._decide_writes()
        alike = [c for c in accepted if same_layout(fake(_target(c)), fake(_source(c)))]
        outputs = self._output_nodes({_source(c) for c in alike}, {_source(c) for c in deferred})
        leaving = self._outputs(outputs)
        pairs = tuple(self._alias(copy, leaving, accepted) for copy in accepted)
        forwarded = tuple((_source(c), _target(c)) for c in alike if _source(c) not in outputs)
        program = FusionProgram(tuple(self._inputs.values()), tuple(self._ops), leaving, self._unique(pairs))
        return Lowered(
            component=self._component,
            program=program,
            inputs=tuple(self._inputs),
            outputs=outputs,
            forwarded=forwarded,
            deferred=tuple(deferred),
            sets=tuple(self._sets),
            refused=tuple(self._refused),
            collapsed=self.collapsed,
        )

    def _new(self, kind: Any) -> Value:
        self._count += 1
        return Value(self._count - 1, kind)

    def _read(self, node: Node) -> Value:
        if node not in self._values:
            value = self._new(self._types.type_of(node, is_input=True))
            storage = self._storages.setdefault(self._facts.storage[node], len(self._storages))
            self._inputs[node] = Input(value, storage, source_line(node))
            self._values[node] = value
        return self._values[node]

    def _argument(self, argument: Any) -> Argument:
        return self._read(argument) if isinstance(argument, Node) else Constant.of(argument)

    def _emit(
        self, name: str, operands: tuple[Argument, ...], kind: Any, line: str, keywords: Any = ()
    ) -> Value:
        result = self._new(kind)
        self._ops.append(Op(name, operands, keywords, result, line))
        return result

    def _translate(self, node: Node) -> Value:
        row, line = ROWS[node.target], source_line(node)
        kind = self._types.type_of(node)
        if row.kind != "apply":
            operand = self._read(node.args[row.operand])  # type: ignore[arg-type]
            if (operand.type.dtype, operand.type.shape) == (kind.dtype, kind.shape):
                return operand  # the same value; where it leaves decides whether it needs memory of its own
            return self._emit("convert", (operand,), kind, line)
        arguments = tuple(self._argument(a) for a in node.args)
        keywords = tuple(
            (name, self._argument(a)) for name, a in sorted(node.kwargs.items()) if a is not None
        )
        return self._emit(operation_name(node.target), arguments, kind, line, keywords)

    def _decide_writes(self) -> tuple[list[Node], list[Node]]:
        accepted: list[Node] = []
        deferred: list[Node] = []
        for copy in self._component.writes:
            reason = self._refusal(copy)
            if reason:
                self._refused.append(Note(_target(copy).name, reason, source_line(_source(copy))))
            (deferred if reason else accepted).append(copy)
        return accepted, deferred

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
        written = {self._values[_target(c)] for c in self._component.writes}
        if self._values[source] in written and self._values[source] is not self._values[target]:
            return "the source is the old value of another written input"
        return ""

    def _output_nodes(self, held: set[Node], copied: set[Node]) -> tuple[Node, ...]:
        """Nodes that leave as memory of their own: read outside, and not readable in a written input instead.

        `held` can be read in a written input, `copied` are needed for a copy after the region.
        """
        names = []
        for node in self._component.nodes:
            outside = [u for u in node.users if u not in self._component.region]
            is_fresh = self._facts.storage[node] in self._fresh and bool(outside)
            if node in self._component.own and (node in copied or is_fresh or (outside and node not in held)):
                names.append(node)
        return tuple(names)

    def _outputs(self, nodes: tuple[Node, ...]) -> tuple[Value, ...]:
        """Gives each output memory of its own: an input's value, or one that leaves twice, is cloned."""
        inputs = {i.value for i in self._inputs.values()}
        leaving: list[Value] = []
        for node in nodes:
            value = self._values[node]
            if value in inputs or value in leaving:
                value = self._emit("clone", (value,), value.type, source_line(node))
            leaving.append(value)
        return tuple(leaving)

    def _alias(self, copy: Node, leaving: tuple[Value, ...], accepted: list[Node]) -> AliasPair:
        target, source = self._values[_target(copy)], self._values[_source(copy)]
        line = source_line(_source(copy))
        earlier = [self._values[_source(c)] for c in accepted[: accepted.index(copy)]]
        reason = ""
        if source in {i.value for i in self._inputs.values()}:
            reason = "(a) the source is an input of the region"
        elif source in leaving:
            reason = "(b) the source also leaves as a value of its own"
        elif source in earlier:
            reason = "(c) the source is already written to another target"
        if reason:
            self._sets.append(Note(_target(copy).name, reason, line))
            source = self._emit("set", (source,), source.type, line)
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


def _can_collapse(component: Component) -> bool:
    """True if all tensors but scalars have one shape and one dense layout, so that rank does not matter."""
    inside = set(component.nodes)
    nodes = [n for node in component.nodes for n in (*node.all_input_nodes, node)]
    nodes += [_target(c) for c in component.writes]
    layouts = set()
    for node in dict.fromkeys(nodes):
        tensor = fake(node)
        if tensor.dim() == 0:
            continue
        leaves = node not in inside or any(
            u not in component.region or u in component.writes for u in node.users
        )
        sizes, strides = static_sizes(tensor), static_strides(tensor)
        if sizes is None or strides is None or not is_dense(tensor):
            return False
        layouts.add((sizes, strides if leaves else None))
    full = {layout for layout in layouts if layout[1] is not None}
    return len({sizes for sizes, _ in layouts}) == 1 and len(full) <= 1
