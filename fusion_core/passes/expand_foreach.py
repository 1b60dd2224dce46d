"""Replace `_foreach_*` list operators by one operator a tensor, so that each tensor's chain can fuse on its own."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten

# Per-tensor twin of each list operator, by name and overload; lists among the arguments are taken apart by position.
_TWINS: dict[str, Any] = {
    **{
        f"_foreach_{name}.default": getattr(aten, name).default
        for name in [
            "abs",
            "acos",
            "asin",
            "atan",
            "ceil",
            "cos",
            "cosh",
            "erf",
            "erfc",
            "exp",
            "expm1",
            "floor",
            "frac",
            "lgamma",
            "log",
            "log10",
            "log1p",
            "log2",
            "neg",
            "reciprocal",
            "round",
            "rsqrt",
            "sigmoid",
            "sign",
            "sin",
            "sinh",
            "sqrt",
            "tan",
            "tanh",
            "trunc",
            "zero",
        ]
    },
    **{
        f"_foreach_{name}.{overload}": getattr(aten, name).Tensor
        for name in ("add", "sub", "mul", "div")
        for overload in ("List", "Scalar", "ScalarList", "Tensor")
    },
    **{
        f"_foreach_{name}.{overload}": twin
        for name, tensor, scalar in (
            ("maximum", aten.maximum.default, aten.clamp_min.default),
            ("minimum", aten.minimum.default, aten.clamp_max.default),
            ("clamp_min", aten.maximum.default, aten.clamp_min.default),
            ("clamp_max", aten.minimum.default, aten.clamp_max.default),
            ("pow", aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar),
        )
        for overload, twin in (("List", tensor), ("Scalar", scalar), ("ScalarList", scalar))
    },
    "_foreach_pow.ScalarAndTensor": aten.pow.Scalar,
    "_foreach_addcmul.Scalar": aten.addcmul.default,
    "_foreach_addcmul.ScalarList": aten.addcmul.default,
    "_foreach_addcdiv.Scalar": aten.addcdiv.default,
    "_foreach_addcdiv.ScalarList": aten.addcdiv.default,
    "_foreach_lerp.Scalar": aten.lerp.Scalar,
    "_foreach_lerp.ScalarList": aten.lerp.Scalar,
    "_foreach_lerp.List": aten.lerp.Tensor,
    "_foreach_copy.default": aten.copy.default,
}
# Scalars that the twin takes by keyword, where the list operator takes them by position.
_VALUE_KEYWORD = frozenset({aten.addcmul.default, aten.addcdiv.default})


def expand_foreach(graph: Graph) -> Graph:
    """Returns `graph` with every known list operator expanded whose results are taken out one by one."""
    lists = {node: _TWINS[_qualified(node)] for node in graph.nodes if _is_expandable(node)}
    if not lists:
        return graph
    copied = Graph()
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        source = node.args[0] if node.target is operator.getitem else None
        if isinstance(source, Node) and source in lists:
            new[node] = _single(copied, node, source, lists[source], new)
        elif node not in lists:
            new[node] = copied.node_copy(node, new.__getitem__)
    return copied


def _is_expandable(node: Node) -> bool:
    taken = node.users and all(u.target is operator.getitem for u in node.users)
    return bool(taken) and _qualified(node) in _TWINS


def _qualified(node: Node) -> str:
    target = node.target
    return (
        f"{target.overloadpacket.__name__}.{target._overloadname}"
        if isinstance(target, torch._ops.OpOverload)
        else ""
    )


def _single(graph: Graph, taken: Node, node: Node, twin: Any, new: dict[Node, Node]) -> Node:
    """Adds the operator that computes one element of a list operator's result."""
    position = int(taken.args[1])  # type: ignore[arg-type]
    arguments = [_element(a, position, new) for a in node.args]
    keywords = {name: _element(a, position, new) for name, a in node.kwargs.items()}
    if twin in _VALUE_KEYWORD and len(arguments) == 4:
        keywords["value"] = arguments.pop()
    single = graph.call_function(twin, tuple(arguments), keywords)
    single.meta = {**taken.meta, "stack_trace": node.meta.get("stack_trace")}
    return single


def _element(argument: Any, position: int, new: dict[Node, Node]) -> Any:
    value = argument[position] if isinstance(argument, (list, tuple)) else argument
    return new[value] if isinstance(value, Node) else value
