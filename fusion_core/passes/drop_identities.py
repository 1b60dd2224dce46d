"""Dropout that drops nothing returns its argument in eager, not a copy; AOTAutograd makes a copy. It goes before that."""

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


def _argument(node: Node) -> Any:
    return node.args[0] if node.args else node.kwargs.get("input")


def _is_identity(node: Node) -> bool:
    rule = _RULES.get(node.target) if node.op == "call_function" else None
    if rule is None or not isinstance(_argument(node), Node):
        return False
    return rule(*node.args[1:], **{name: value for name, value in node.kwargs.items() if name != "input"})
