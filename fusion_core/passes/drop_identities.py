"""What returns its argument in eager, and not a copy or a view of it, goes before AOTAutograd makes one of it.

These are conversions to the dtype, layout or device that a tensor has already, and dropout that drops nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node


def _is_off(probability: object, training: object) -> bool:
    """As eager decides: a probability of zero, or evaluation. A symbolic one is not known, so it stays."""
    return training is False or (isinstance(probability, (int, float)) and probability == 0)


def _functional(p: object = 0.5, training: object = True, inplace: object = False) -> bool:  # noqa: ARG001 - called as dropout is
    return _is_off(p, training)


def _aten(p: object = None, train: object = None) -> bool:
    return _is_off(p, train)


# Each tells from the arguments after the first whether the call returns its first argument.
_RULES: dict[Any, Callable[..., bool]] = {
    torch.nn.functional.dropout: _functional,
    torch.dropout: _aten,
    torch.dropout_: _aten,
}
_CONVERSIONS = frozenset(
    "float double half bfloat16 long int short bool to type type_as contiguous cuda cpu resolve_conj resolve_neg".split()
)


def once_each(module: GraphModule) -> tuple[int, ...]:
    """Lets a Dynamo graph return each value once; returns where the values that it returned before are among them.

    AOTAutograd would make several tensors of one that is returned several times.
    """
    output = module.graph.output_node()
    values: Any = output.args[0]
    kept = list(dict.fromkeys(values))
    if len(kept) < len(values):
        output.args = (tuple(kept),)
        module.recompile()
    return tuple(kept.index(value) for value in values)


def drop_identities(module: GraphModule) -> None:
    """Takes calls that return their argument out of a Dynamo graph and of the graphs nested in it.

    It edits the graph, which Dynamo made for this backend alone, since a copy would lose what Dynamo attaches to it.
    """
    for part in [m for m in module.modules() if isinstance(m, GraphModule)]:
        found = [node for node in part.graph.nodes if _is_identity(node)]
        for node in found:
            node.replace_all_uses_with(_argument(node))
            part.graph.erase_node(node)
        if found:
            part.recompile()


def _is_same_object(node: Node) -> bool:
    source, value = _argument(node), node.meta.get("example_value")
    return (
        isinstance(source, Node)
        and isinstance(value, torch.Tensor)
        and source.meta.get("example_value") is value
    )


def _argument(node: Node) -> Any:
    return node.args[0] if node.args else node.kwargs.get("input")


def _is_identity(node: Node) -> bool:
    if (node.op == "call_method" and node.target in _CONVERSIONS) or node.target is getattr:
        return _is_same_object(node)
    rule = _RULES.get(node.target) if node.op == "call_function" else None
    if rule is None or not isinstance(_argument(node), Node):
        return False
    return rule(*node.args[1:], **{name: value for name, value in node.kwargs.items() if name != "input"})
