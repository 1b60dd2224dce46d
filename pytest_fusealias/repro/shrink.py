"""Reduce a graph and its inputs while a predicate holds: drop results, operations and inputs, then shrink what is left."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Interpreter

from pytest_fusealias.repro import materials
from pytest_fusealias.repro.graphs import GraphCase, StorageInput, TensorInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.fx import Graph, Node


def shrunk(case: GraphCase, fails: Callable[[GraphCase], bool], seconds: float) -> GraphCase:
    """Returns the smallest case found within the time for which `fails` still holds; it holds for `case`."""
    ending = time.monotonic() + seconds
    while True:
        smaller = case
        for reduce in REDUCTIONS:
            smaller = _exhausted(smaller, reduce, fails, ending)
        if smaller is case or time.monotonic() > ending:
            return smaller
        case = smaller


def _exhausted(
    case: GraphCase,
    reduce: Callable[[GraphCase], Iterator[GraphCase]],
    fails: Callable[[GraphCase], bool],
    ending: float,
) -> GraphCase:
    """Applies one kind of reduction until none of its candidates fails any more."""
    while True:
        for candidate in reduce(case):
            if time.monotonic() > ending:
                return case
            if fails(candidate):
                case = candidate
                break
        else:
            return case


def fewer_results(case: GraphCase) -> Iterator[GraphCase]:
    """Yields the case with half of the graph's results, then with one less."""
    results = _output(case.graph.graph).args[0]
    if not isinstance(results, (tuple, list)) or len(results) < 2:
        return
    count = len(results)
    parts = [list(range(count // 2)), list(range(count // 2, count))] if count > 3 else []
    parts += [[i for i in range(count) if i != left_out] for left_out in range(count)]
    for part in parts:
        yield _edited(case, partial(_keep_results, part=part))


def _keep_results(graph: Graph, part: list[int]) -> None:
    output = _output(graph)
    results: Any = output.args[0]
    output.args = (tuple(results[i] for i in part),)


def fewer_operations(case: GraphCase) -> Iterator[GraphCase]:
    """Yields the case with an operation left out: nothing, one of its arguments, or a new input takes its place."""
    made = _made_by(case)
    for name in [node.name for node in reversed(case.graph.graph.nodes) if _computes(node)]:
        node = _named(case.graph.graph, name)
        if not node.users:
            yield _edited(case, partial(_erase, name=name))
            continue
        for argument in dict.fromkeys(a.name for a in node.all_input_nodes):
            if name in made and made.get(argument) == made[name]:
                yield _edited(case, partial(_bypass, name=name, argument=argument))
        if name in made and any(_computes(n) for n in node.all_input_nodes):
            yield _with_input(case, name, made[name])


def _erase(graph: Graph, name: str) -> None:
    graph.erase_node(_named(graph, name))


def _bypass(graph: Graph, name: str, argument: str) -> None:
    node = _named(graph, name)
    node.replace_all_uses_with(_named(graph, argument))
    graph.erase_node(node)


def _with_input(case: GraphCase, name: str, given: TensorInput) -> GraphCase:
    """Gives the graph a new last input in the place of an operation."""
    extent = (
        1 + sum((n - 1) * s for n, s in zip(given.shape, given.stride, strict=True))
        if 0 not in given.shape
        else 0
    )
    device = case.storages[0].device if case.storages else "cpu"
    storage = StorageInput(extent * given.dtype.itemsize, given.dtype, device)
    placed = dataclasses.replace(given, storage=len(case.storages), offset=0)

    def edit(graph: Graph) -> None:
        node = _named(graph, name)
        last = [n for n in graph.nodes if n.op == "placeholder"][-1:]
        with graph.inserting_after(last[0]) if last else graph.inserting_before(next(iter(graph.nodes))):
            made = graph.placeholder(f"given_{name}")
        node.replace_all_uses_with(made)
        graph.erase_node(node)

    wider = dataclasses.replace(case, storages=(*case.storages, storage), inputs=(*case.inputs, placed))
    return _edited(wider, edit)


def plainer_inputs(case: GraphCase) -> Iterator[GraphCase]:
    """Yields the case with numbers from a seed, contiguous inputs, no shared memory, and no gradient."""
    if any(s.recorded for s in case.storages):
        yield dataclasses.replace(
            case, storages=tuple(dataclasses.replace(s, recorded=None) for s in case.storages)
        )
    for number, value in enumerate(case.inputs):
        if not isinstance(value, TensorInput):
            continue
        if value.requires_grad:
            yield _with_value(case, number, dataclasses.replace(value, requires_grad=False, leaf=True))
        if not value.leaf:
            yield _with_value(case, number, dataclasses.replace(value, leaf=True))
        plain = _own_storage(case, value)
        if plain is not None:
            storage, tensor = plain
            yield _with_value(dataclasses.replace(case, storages=(*case.storages, storage)), number, tensor)


def _own_storage(case: GraphCase, value: TensorInput) -> tuple[StorageInput, TensorInput] | None:
    """Returns a contiguous input with memory of its own, or None where the input is that already."""
    base = case.storages[value.storage]
    tensor = dataclasses.replace(value, storage=len(case.storages), offset=0, stride=_contiguous(value.shape))
    storage = StorageInput(math.prod(value.shape) * value.dtype.itemsize, value.dtype, base.device)
    sharing = sum(isinstance(v, TensorInput) and v.storage == value.storage for v in case.inputs) > 1
    if not sharing and (storage.nbytes, tensor.stride, value.offset) == (base.nbytes, value.stride, 0):
        return None
    return storage, tensor


def smaller_sizes(case: GraphCase) -> Iterator[GraphCase]:
    """Yields the case with each length that occurs in inputs made smaller in all of them; strided inputs stay."""
    lengths = sorted(
        {n for v in case.inputs if isinstance(v, TensorInput) for n in v.shape if n > 1}, reverse=True
    )
    for length in lengths:
        for smaller in dict.fromkeys((1, 2, length // 2, length - 1)):
            if 0 < smaller < length and (resized := _resized(case, length, smaller)) is not None:
                yield resized


def _resized(case: GraphCase, length: int, smaller: int) -> GraphCase | None:
    inputs: list[TensorInput | bool | int | float] = []
    storages = list(case.storages)
    for value in case.inputs:
        if not isinstance(value, TensorInput) or length not in value.shape:
            inputs.append(value)
            continue
        if _own_storage(case, value) is not None:
            return None
        shape = tuple(smaller if n == length else n for n in value.shape)
        inputs.append(dataclasses.replace(value, shape=shape, stride=_contiguous(shape)))
        size = math.prod(shape) * value.dtype.itemsize
        storages[value.storage] = dataclasses.replace(storages[value.storage], nbytes=size, recorded=None)
    return dataclasses.replace(case, storages=tuple(storages), inputs=tuple(inputs))


REDUCTIONS: tuple[Callable[[GraphCase], Iterator[GraphCase]], ...] = (
    fewer_results,
    fewer_operations,
    plainer_inputs,
    smaller_sizes,
)


def _edited(case: GraphCase, edit: Callable[[Graph], None]) -> GraphCase:
    """Returns the case with a changed copy of its graph; inputs that nothing uses any more go too."""
    module = copy.deepcopy(case.graph)
    edit(module.graph)
    kept = []
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    for node, value in zip(placeholders, case.inputs, strict=True):
        if node.users:
            kept.append(value)
        else:
            module.graph.erase_node(node)
    module.recompile()
    return _without_unused_storages(dataclasses.replace(case, graph=module, inputs=tuple(kept)))


def _with_value(case: GraphCase, number: int, value: TensorInput) -> GraphCase:
    inputs = (*case.inputs[:number], value, *case.inputs[number + 1 :])
    return _without_unused_storages(dataclasses.replace(case, inputs=inputs))


def _without_unused_storages(case: GraphCase) -> GraphCase:
    used = sorted({v.storage for v in case.inputs if isinstance(v, TensorInput)})
    renumbered = {old: new for new, old in enumerate(used)}
    inputs = tuple(
        dataclasses.replace(v, storage=renumbered[v.storage]) if isinstance(v, TensorInput) else v
        for v in case.inputs
    )
    return dataclasses.replace(case, storages=tuple(case.storages[n] for n in used), inputs=inputs)


def built_inputs(case: GraphCase) -> list[Any]:
    """Returns the inputs as a script builds them, with numbers from a seed."""
    bases = [materials.numbers(s.nbytes, s.dtype, s.device, number) for number, s in enumerate(case.storages)]
    return [
        materials.view(
            bases[v.storage], v.dtype, v.shape, v.stride, v.offset, requires_grad=v.requires_grad, leaf=v.leaf
        )
        if isinstance(v, TensorInput)
        else v
        for v in case.inputs
    ]


def _made_by(case: GraphCase) -> dict[str, TensorInput]:
    """Returns what each node of the graph makes in eager, as an input would be described."""
    made: dict[str, TensorInput] = {}

    class Noting(Interpreter):
        def run_node(self, n: Node) -> Any:
            result = super().run_node(n)
            if isinstance(result, torch.Tensor) and result.layout is torch.strided:
                made[n.name] = TensorInput(0, result.dtype, tuple(result.shape), tuple(result.stride()))
            return result

    try:
        with torch.set_grad_enabled(case.grad):
            Noting(case.graph).run(*built_inputs(case))
    except Exception:  # noqa: BLE001 - numbers from a seed may not suit; then less is known, and less is tried
        return made
    return made


def _output(graph: Graph) -> Node:
    found: Node = next(node for node in reversed(graph.nodes) if node.op == "output")
    return found


def _named(graph: Graph, name: str) -> Node:
    found: Node = next(node for node in graph.nodes if node.name == name)
    return found


def _computes(node: Node) -> bool:
    return node.op not in ("placeholder", "output", "get_attr")


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides of a contiguous tensor."""
    return tuple(math.prod(max(n, 1) for n in shape[i + 1 :]) for i in range(len(shape)))
