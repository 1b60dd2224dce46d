"""Dynamo graphs that AOTAutograd would compile to something else than eager, without a word."""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

_INPLACE_OPERATORS = frozenset(
    {"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor"}
)
_WRITES_NO_DATA = frozenset({"requires_grad_", "detach_", "share_memory_", "dropout_", "alpha_dropout_"})
_CHANGES_SHAPE = frozenset(
    """set_ transpose_ t_ squeeze_ unsqueeze_ swapaxes_ swapdims_ as_strided_ resize_ resize_as_ rename_""".split()
)


def unsound(module: GraphModule) -> str:
    """Returns why AOTAutograd would miscompile this Dynamo graph, or an empty string."""
    return _unsound_write(module) or _unsound_output(module)


def _unsound_output(module: GraphModule) -> str:
    """Returns why AOTAutograd would compute wrong gradients for an output of this Dynamo graph, or an empty string.

    It makes a view of an intermediate anew, outside of the compiled graph and from its strides. Where elements of the view
    are one element of the intermediate, the gradient that comes back is not the sum of theirs (seen in torch 2.13).
    """
    returned: list[Node] = []
    torch.fx.node.map_arg(module.graph.output_node().args[0], returned.append)
    for node in returned:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.requires_grad:
            dims = [
                (n, st)
                for n, st in zip(value.shape, value.stride(), strict=True)
                if type(st) is not int or st
            ]
            if _overlap(dims):
                return f"{node.name} is returned, requires grad and overlaps itself"
    return ""


def _unsound_write(module: GraphModule) -> str:
    """Returns why functionalization would compute wrong numbers for this Dynamo graph, or an empty string.

    Torch undoes a view by adding up (`expand`) or by scattering into zeros (`unfold`); a write through memory that overlaps
    itself, or through windows with gaps, then changes other elements than eager's. An operator that writes several tensors
    computes all of them from the old values, though one may show another's memory. A write through `.data` moves no version
    counter in eager, and a compiled one does, which autograd sees. A tensor that is given other memory (`set_`, which
    Dynamo makes of an assignment to `.data` too) keeps its old shape where that memory is its own. Where a tensor is turned
    or squeezed in place, strides and later writes are lost. A detached view does not require grad after it was written with
    something that does.
    """
    graphs = [m.graph for m in module.modules() if isinstance(m, GraphModule)]
    written = {n: _written_nodes(n) for graph in graphs for n in graph.nodes}
    for node, targets in written.items():
        if targets and _name(node) in _CHANGES_SHAPE:
            return f"{node.target} changes the shape or memory of a tensor in place"
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
        if any(_requires_grad(n) for n in node.all_input_nodes) and _comes_from(target, _is_detached):
            return f"{node.target} writes a detached view with something that requires grad"
    return ""


def _is_data_of_trained(node: Node) -> bool:
    return getattr(node.target, "__name__", "") == "_get_data_attr" and _requires_grad(node.args[0])


def _is_detached(node: Node) -> bool:
    return _name(node) == "detach" and _requires_grad(node.args[0])


def _requires_grad(node: object) -> bool:
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.requires_grad


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


def written_inputs(module: GraphModule) -> frozenset[int]:
    """Returns the positions of those inputs that operators of a Dynamo graph write themselves, not through views."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    written = {
        target
        for node in module.graph.nodes
        if _name(node) not in _WRITES_NO_DATA and not _is_inplace_by_position(node)
        for target in _written_nodes(node)
        if not _is_empty(target)
    }
    return frozenset(i for i, n in enumerate(placeholders) if n in written)


def writes_a_number(module: GraphModule) -> bool:
    """True where an operator writes a tensor that Dynamo also holds as a number.

    When Dynamo traces again to fix numbers (seen in torch 2.13), it takes such a write out of the graph.
    """
    values = (n.meta.get("example_value") for n in module.graph.nodes if _written_nodes(n))
    return any(getattr(value, "item_memo", None) is not None for value in values)


def _is_empty(node: Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and 0 in value.shape


def _written_nodes(node: Node) -> list[Node]:
    """Returns what a Dynamo node may write: its first argument where it works in place, and everything given as `out`."""
    name = _name(node)
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


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_inplace_by_position(node: Node) -> bool:
    """`F.relu(x, True)`: the flag of a functional."""
    functional = getattr(node.target, "__module__", "") in ("torch.nn.functional", "torch._C._nn")
    return functional and any(a is True for a in node.args[1:])


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """True if two elements may share an address, by the order of strides; symbolic strides are left to torch."""
    dims = list(zip(tensor.shape, tensor.stride(), strict=True))
    if any(
        type(stride) is int and stride == 0 and not (type(size) is int and size <= 1) for size, stride in dims
    ):
        return True
    return _overlap(dims)


def _overlap(dims: list[tuple[Any, Any]]) -> bool:
    """True if dimensions, as (size, stride) with strides above 0, may reach one address twice."""
    known = [(st, sz) for sz, st in dims if type(st) is int and type(sz) is int and sz > 1]
    reach = 0
    for stride, size in sorted(known):
        if stride <= reach:
            return len(known) == len([size for size, _ in dims if size != 1])
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
