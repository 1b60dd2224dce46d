"""Dynamo graph -> AOTAutograd -> aten graphs and their calling convention; the only reader of torch's internals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import RestartAnalysis
from torch._dynamo.utils import counters
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2, auto_functionalized_v2_dense
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fusion_core.decompositions import decompositions
from fusion_core.errors import FusionError, InternalError
from fusion_core.unsound import unsound, writes_a_number, written_inputs


@dataclass(frozen=True, slots=True)
class Captured:
    """One aten graph. `kind` is `inference`, `forward` or `backward`.

    `rebuilt` are the output positions that alias an input: the host makes them from the input, so that their values
    need no memory. `written` are the positions of inputs that the call as a whole writes. `merged` tells that inputs which
    share memory were replaced by one base. Outputs from position `saved_from` on are kept for the backward graph;
    with `lends`, it lets go of them after its call.
    """

    module: GraphModule
    kind: str
    rebuilt: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    merged: bool = False
    saved_from: int | None = None
    lends: bool = False


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled Dynamo graph; `written` are positions of its inputs (all of them where inputs were merged)."""

    call: Callable[..., Any]
    written: frozenset[int] = frozenset()
    merged: bool = False


CompileGraph = Callable[[Captured], Callable[[list[Any]], Any]]


class AotRefusalError(Exception):
    """AOTAutograd cannot trace this graph; `__cause__` is its error."""


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
    reason = unsound(module)
    if reason:
        raise AotRefusalError(reason)
    written: set[int] = set()
    merged: list[bool] = []
    intended = Intended.of(module)
    expected = len(example_inputs) + len(list(module.parameters())) + len(list(module.buffers()))

    def forward(kind: str) -> Callable[[GraphModule, list[Any]], Any]:
        def compile_one(graph_module: GraphModule, _inputs: list[Any]) -> Any:
            captured = _captured(graph_module, kind, expected)
            _refuse_other_meaning(graph_module, captured, intended)
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
    except RestartAnalysis as error:
        if writes_a_number(module):
            raise AotRefusalError(
                "tracing again would lose a write to a tensor without dimensions"
            ) from error
        raise  # Dynamo traces again, with numbers that are fixed
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
    # Autograd does not let go of those for which it checks no version, and tokens shift the outputs.
    held = getattr(metadata, "num_tensors_saved_with_no_vc_check", 0) or metadata.tokens
    lends = kind == "forward" and not held
    return Captured(module, kind, frozenset(rebuilt), frozenset(written), merged, saved_from, lends)


@dataclass(frozen=True, slots=True)
class Intended:
    """What a Dynamo graph does: the inputs that it writes, as far as that is seen, and its outputs."""

    inputs: int
    written: frozenset[int]
    outputs: tuple[Any, ...]

    @staticmethod
    def of(module: GraphModule) -> Intended:
        """Reads a Dynamo graph."""
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        outputs = module.graph.output_node().args[0]
        values = [o.meta.get("example_value") if isinstance(o, Node) else o for o in outputs]  # type: ignore[union-attr]
        return Intended(len(placeholders), written_inputs(module), tuple(values))


def _refuse_other_meaning(module: GraphModule, captured: Captured, intended: Intended) -> None:
    """Raises AotRefusalError where the traced graph loses a write (seen after `x.squeeze_()`) or a layout.

    Functionalization gives a written tensor the layout of the functional operator's result, which what is computed from it
    inherits (seen for `masked_fill_` and `scatter_` on a transposed tensor in torch 2.13).
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None or captured.merged or len(metadata.input_info) != intended.inputs:
        return
    infos = enumerate(metadata.input_info)
    lost = intended.written - {i for i, info in infos if info.mutates_data or info.mutates_metadata}
    if lost:
        raise AotRefusalError("AOTAutograd loses a write to an input")
    first = metadata.num_mutated_inp_runtime_indices
    outputs: Any = module.graph.output_node().args[0]
    traced = outputs[first : first + len(intended.outputs)]
    for node, wanted, info in zip(traced, intended.outputs, metadata.output_info, strict=False):
        value = node.meta.get("val") if isinstance(node, Node) else None
        if info.output_type.name == "non_alias" and not _laid_out_alike(value, wanted):
            raise AotRefusalError("AOTAutograd gives an output another layout")


def _laid_out_alike(one: Any, other: Any) -> bool:
    """False where both are tensors of known strides, of one shape, and differ in a stride that leads somewhere."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return True
    if one.layout is not torch.strided or other.layout is not torch.strided or one.shape != other.shape:
        return True
    if any(type(n) is not int for t in (one, other) for n in (*t.shape, *t.stride())) or 0 in one.shape:
        return True
    dims = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(size == 1 or mine == theirs for size, mine, theirs in dims)


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


def foreign(argument: Any) -> str:
    """Returns what an argument is that AOTAutograd takes for a plain tensor (seen in torch 2.13), or an empty string.

    Of a subclass without a `__torch_dispatch__` its kernels know nothing; a tensor of mkldnn has a strided fake.
    """
    if not isinstance(argument, torch.Tensor):
        return ""
    if argument.is_mkldnn:
        return "a tensor of mkldnn"
    known: bool = type(argument) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or argument.is_nested
    kind = type(argument).__name__
    known = known or bool(is_traceable_wrapper_subclass(argument))
    return "" if known else f"a {kind}, a subclass of Tensor"


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
