"""Dynamo graph -> AOTAutograd -> aten graphs and their calling convention; the only reader of torch's internals."""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2, auto_functionalized_v2_dense
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node

from fusion_core.decompositions import decompositions
from fusion_core.errors import FusionError, InternalError


@dataclass(frozen=True, slots=True)
class Captured:
    """One aten graph. `kind` is `inference`, `forward` or `backward`.

    `rebuilt` are the output positions that alias an input: the host makes them from the input, so that their values
    need no memory. `written` are the positions of inputs that the call as a whole writes. `merged` tells that inputs which
    share memory were replaced by one base. Outputs from position `saved_from` on are kept for the backward graph.
    """

    module: GraphModule
    kind: str
    rebuilt: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    merged: bool = False
    saved_from: int | None = None


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled Dynamo graph; `written` are positions of its inputs (all of them where inputs were merged)."""

    call: Callable[..., Any]
    written: frozenset[int] = frozenset()
    merged: bool = False


_INPLACE_OPERATORS = frozenset(
    {"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor"}
)

CompileGraph = Callable[[Captured], Callable[[list[Any]], Any]]


class AotRefusalError(Exception):
    """AOTAutograd cannot trace this graph; `__cause__` is its error."""


def unsound_write(module: GraphModule) -> str:
    """Returns why functionalization would compute wrong numbers for this Dynamo graph, or an empty string.

    Torch undoes a view by adding up (`expand`) or by scattering into zeros (`unfold`); a write through memory that overlaps
    itself, or through windows with gaps, then changes other elements than eager's. An operator that writes several tensors
    computes all of them from the old values, though one may show another's memory. A write through `.data` moves no version
    counter in eager, and a compiled one does, which autograd sees.
    """
    graphs = [m.graph for m in module.modules() if isinstance(m, GraphModule)]
    written = {n: _written_nodes(n) for graph in graphs for n in graph.nodes}
    for node, targets in written.items():
        if _share_elements(targets):
            return f"{node.target} writes several tensors that share memory"
    for node, target in ((n, t) for n, targets in written.items() for t in targets):
        value = target.meta.get("example_value")
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and _overlaps_itself(value):
            return f"{node.target} writes through a view that overlaps itself"
        if _comes_from(target, lambda n: "unfold" in str(n.target)):
            return f"{node.target} writes through an unfold view"
        if _comes_from(target, _is_data_of_trained):
            return f"{node.target} writes through .data of a tensor that requires grad"
    return ""


def _is_data_of_trained(node: Node) -> bool:
    if getattr(node.target, "__name__", "") != "_get_data_attr":
        return False
    source = node.args[0].meta.get("example_value") if isinstance(node.args[0], Node) else None
    return isinstance(source, torch.Tensor) and source.requires_grad


def _share_elements(targets: list[Node]) -> bool:
    """True if two of several tensors are one, or reach into each other in one storage."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for target in targets if len(targets) > 1 else ():
        value = target.meta.get("example_value")
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            continue
        dims = list(zip(value.shape, value.stride(), strict=True))
        numbers = [value.storage_offset(), *(n for dim in dims for n in dim)]
        mine = spans.setdefault(value.untyped_storage()._cdata, [])
        if not all(type(n) is int for n in numbers):
            mine.append((0, sys.maxsize))  # symbolic: it may be anywhere in its storage
        elif 0 not in value.shape:
            first = int(value.storage_offset())
            mine.append((first, first + sum((int(n) - 1) * int(stride) for n, stride in dims)))
    ordered = [sorted(mine) for mine in spans.values()]
    return any(b[0] <= a[1] for mine in ordered for a, b in itertools.pairwise(mine))


def _written_nodes(node: Node) -> list[Node]:
    """Returns what a Dynamo node may write: its first argument where it works in place, and everything given as `out`."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op not in ("call_method", "call_function"):
        return []
    given: list[Any] = [node.kwargs.get("out")]
    in_place = (name.endswith("_") and not name.endswith("__")) or name in _INPLACE_OPERATORS
    if (
        in_place
        or node.target is operator.setitem
        or node.kwargs.get("inplace")
        or _is_inplace_by_position(node)
    ):
        given.append(node.args[0] if node.args else None)
    found: list[Node] = []
    torch.fx.node.map_arg(given, found.append)
    return found


def _is_inplace_by_position(node: Node) -> bool:
    """`F.relu(x, True)`: the flag of a functional."""
    functional = getattr(node.target, "__module__", "") in ("torch.nn.functional", "torch._C._nn")
    return functional and any(a is True for a in node.args[1:])


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """True if two elements may share an address, by the order of strides; symbolic strides are left to torch."""
    dims = list(zip(tensor.stride(), tensor.shape, strict=True))
    if any(
        type(stride) is int and stride == 0 and not (type(size) is int and size <= 1) for stride, size in dims
    ):
        return True
    known = [(st, sz) for st, sz in dims if type(st) is int and type(sz) is int and sz > 1]
    reach = 0
    for stride, size in sorted(known):
        if stride <= reach:
            return len(known) == len([d for d in dims if d[1] != 1])
        reach += stride * (size - 1)
    return False


def _comes_from(node: Node, wanted: Callable[[Node], bool]) -> bool:
    """True where a node, or one of which it is a view, is as wanted."""
    while node.op in ("call_method", "call_function") and node.args and isinstance(node.args[0], Node):
        if wanted(node):
            return True
        value, source = node.meta.get("example_value"), node.args[0].meta.get("example_value")
        if (
            isinstance(value, torch.Tensor)
            and isinstance(source, torch.Tensor)
            and not _same_storage(value, source)
        ):
            return False  # where a tuple (unbind, split) is between them, the walk goes on
        node = node.args[0]
    return False


def _same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    strided = a.layout is torch.strided and b.layout is torch.strided
    return strided and a.untyped_storage()._cdata == b.untyped_storage()._cdata


def compile_through_aot(
    module: GraphModule,
    example_inputs: list[Any],
    compile_graph: CompileGraph,
    *,
    fuses_random: bool = False,
) -> Compiled:
    """Returns the compiled callable, the positions of the inputs that it writes, and whether inputs were merged.

    With `fuses_random`, random operators are taken apart to what a program can draw by itself.
    Raises AotRefusalError where AOTAutograd does not support the graph, or would compile it to something else; errors of
    `compile_graph` pass through.
    """
    reason = unsound_write(module)
    if reason:
        raise AotRefusalError(reason)
    written: set[int] = set()
    merged: list[bool] = []
    expected = len(example_inputs) + len(list(module.parameters())) + len(list(module.buffers()))

    def forward(kind: str) -> Callable[[GraphModule, list[Any]], Any]:
        def compile_one(graph_module: GraphModule, _inputs: list[Any]) -> Any:
            captured = _captured(graph_module, kind, expected)
            written.update(captured.written)
            merged.append(captured.merged)
            return _boxed(compile_graph, captured)

        return compile_one

    def backward(graph_module: GraphModule, _inputs: list[Any]) -> Any:
        return _boxed(compile_graph, Captured(graph_module, "backward"))

    backend = aot_autograd(
        fw_compiler=forward("forward"),
        bw_compiler=backward,
        inference_compiler=forward("inference"),
        decompositions=decompositions(random=fuses_random),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    try:
        compiled = backend(module, example_inputs)
    except (FusionError, AotRefusalError):
        raise
    except Exception as error:
        raise AotRefusalError(str(error)) from error
    if any(merged):
        return Compiled(compiled, frozenset(range(len(example_inputs))), merged=True)
    return Compiled(compiled, frozenset(written))


def _boxed(compile_graph: CompileGraph, captured: Captured) -> Callable[[list[Any]], Any]:
    """Returns the compiled graph under AOTAutograd's boxed convention: it takes the list, and may free what is in it."""
    try:
        with unset_fake_temporarily():  # executors make real tensors
            run = compile_graph(captured)
    except FusionError:
        raise
    except Exception as error:
        raise InternalError(f"{captured.kind} graph: {type(error).__name__}: {error}") from error

    def call(arguments: list[Any]) -> Any:
        return run(arguments)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _captured(module: GraphModule, kind: str, expected_inputs: int) -> Captured:
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return Captured(module, kind, written=_copied_inputs(module))
    first = metadata.num_mutated_inp_runtime_indices
    rebuilt = {
        first + position
        for position, info in enumerate(metadata.output_info)
        if info.output_type.name in ("alias_of_input", "is_input")
    }
    merged = len(metadata.input_info) < expected_inputs
    if rebuilt and merged:
        # AOTAutograd replays such an output's views on the merged input, without the offset of the view that it was.
        raise AotRefusalError("an output is a view of one of several inputs that share memory")
    kept = {i for i, info in enumerate(metadata.input_info) if info.mutation_type.name == "MUTATED_IN_GRAPH"}
    returned = {i.base_idx for i in metadata.output_info if i.output_type.name == "is_input"}
    if first and not kept.isdisjoint(returned):
        # AOTAutograd (seen in torch 2.13) puts the returned input in the place of another input's new value.
        raise AotRefusalError(
            "a written input is returned beside one that is written out of autograd's sight"
        )
    written = {i for i, info in enumerate(metadata.input_info) if info.mutates_data}
    saved_from = metadata.num_forward if kind == "forward" else None
    return Captured(module, kind, frozenset(rebuilt), frozenset(written), merged, saved_from)


def _copied_inputs(module: GraphModule) -> frozenset[int]:
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    copies = [n for n in module.graph.nodes if n.target is torch.ops.aten.copy_.default]
    return frozenset(placeholders.index(c.args[0]) for c in copies if c.args[0] in placeholders)


def functionalized_base(taken: Node) -> Node | None:
    """Returns the tensor that a functionalized custom operator would copy and write to make the value `taken` from it."""
    node, position = taken.args
    if not isinstance(node, Node) or node.target not in (auto_functionalized_v2, run_in_place):
        return None
    bases: Any = node.kwargs["_all_bases"]
    index = int(position) - _first_base(node)  # type: ignore[arg-type]
    return bases[index] if index >= 0 else None


def call_in_place(node: Node, taken: Node) -> None:
    """Lets a functionalized custom operator, in a graph of our own, write the base of `taken` instead of a copy of it."""
    count = len(node.kwargs["_all_bases"])  # type: ignore[arg-type]
    copied: Any = node.args[1] if node.target is run_in_place else tuple(range(count))
    written = int(taken.args[1]) - _first_base(node)  # type: ignore[arg-type]
    node.args = (node.args[0], tuple(index for index in copied if index != written))
    node.target = run_in_place


def run_in_place(operator: Any, copied: tuple[int, ...], **arguments: Any) -> Any:
    """Runs a custom operator that writes its arguments; of its bases, only those at the positions `copied` are copied."""
    return auto_functionalized_v2_dense(operator, copied, **arguments)


def _first_base(node: Node) -> int:
    """The results of the operator come first, or None where it has none; then the bases."""
    custom: Any = node.args[0]
    return max(1, len(custom._schema.returns))


def reset_compiler() -> None:
    """Forgets everything that Dynamo has compiled in this process."""
    torch._dynamo.reset()


@contextmanager
def collected_graph_breaks() -> Iterator[list[str]]:
    """Yields a list that holds, after the block, the reason of every graph break that occurred in it."""
    before = dict(counters["graph_break"])
    breaks: list[str] = []
    try:
        yield breaks
    finally:
        for reason, count in counters["graph_break"].items():
            breaks += [reason.splitlines()[0]] * (count - before.get(reason, 0))
