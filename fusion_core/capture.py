"""Dynamo graph -> AOTAutograd -> aten graphs with their calling convention; the only reader of torch's capture internals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._dynamo.utils import counters
from torch._guards import TracingContext
from torch.fx import GraphModule

from fusion_core.errors import FusionError


@dataclass(frozen=True, slots=True)
class Captured:
    """One aten graph. `kind` is `inference`, `forward` or `backward`.

    `rebuilt` are the output positions that alias an input: the host makes them from the input, so that their values
    need no memory. `written` are the positions of inputs that the call as a whole writes.
    """

    module: GraphModule
    kind: str
    rebuilt: frozenset[int]
    written: frozenset[int]


CompileGraph = Callable[[Captured], Callable[[list[Any]], Any]]


class AotRefusalError(Exception):
    """AOTAutograd cannot trace this graph; `__cause__` is its error."""


def compile_through_aot(
    module: GraphModule, example_inputs: list[Any], compile_graph: CompileGraph
) -> tuple[Callable[..., Any], frozenset[int]]:
    """Returns the compiled callable and the positions of the inputs that it writes.

    Raises AotRefusalError where AOTAutograd does not support the graph; errors of `compile_graph` pass through.
    """
    written: set[int] = set()

    def forward(kind: str) -> Callable[[GraphModule, list[Any]], Any]:
        def compile_one(graph_module: GraphModule, _inputs: list[Any]) -> Any:
            captured = _captured(graph_module, kind)
            written.update(captured.written)
            return make_boxed_func(_unpacking(compile_graph(captured)))

        return compile_one

    def backward(graph_module: GraphModule, _inputs: list[Any]) -> Any:
        captured = Captured(graph_module, "backward", frozenset(), frozenset())
        return make_boxed_func(_unpacking(compile_graph(captured)))

    backend = aot_autograd(
        fw_compiler=forward("forward"),
        bw_compiler=backward,
        inference_compiler=forward("inference"),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    try:
        compiled = backend(module, example_inputs)
    except FusionError:
        raise
    except Exception as error:
        raise AotRefusalError(str(error)) from error
    return compiled, frozenset(written)


def _unpacking(run: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        return run(list(arguments))

    return call


def _captured(module: GraphModule, kind: str) -> Captured:
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return Captured(module, kind, frozenset(), _copied_inputs(module))
    first = metadata.num_mutated_inp_runtime_indices
    rebuilt = {
        first + position
        for position, info in enumerate(metadata.output_info)
        if info.output_type.name in ("alias_of_input", "is_input")
    }
    written = {i for i, info in enumerate(metadata.input_info) if info.mutates_data}
    return Captured(module, kind, frozenset(rebuilt), frozenset(written))


def _copied_inputs(module: GraphModule) -> frozenset[int]:
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    copies = [n for n in module.graph.nodes if n.target is torch.ops.aten.copy_.default]
    return frozenset(placeholders.index(c.args[0]) for c in copies if c.args[0] in placeholders)


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
