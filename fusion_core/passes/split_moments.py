"""Replace `var_mean`, whose result is a pair, by a variance and a mean, so that each is a tensor of its own."""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph

from fusion_core.passes.copying import copy_graph

aten = torch.ops.aten


def split_moments(graph: Graph) -> Graph:
    """Returns `graph` with every `var_mean` taken apart whose results are taken out one by one."""
    if not any(node.target is aten.var_mean.correction for node in graph.nodes):
        return graph
    copied, _ = copy_graph(graph)
    for node in list(copied.nodes):
        if node.target is not aten.var_mean.correction:
            continue
        if not all(user.target is operator.getitem for user in node.users):
            continue
        dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        keepdim = bool(node.kwargs.get("keepdim"))
        for taken in list(node.users):
            with copied.inserting_before(taken):
                if taken.args[1] == 0:
                    single = copied.call_function(aten.var.correction, node.args, dict(node.kwargs))
                else:
                    single = copied.call_function(aten.mean.dim, (node.args[0], dims, keepdim))
            single.meta = {**taken.meta, "stack_trace": node.meta.get("stack_trace")}
            taken.replace_all_uses_with(single)
            copied.erase_node(taken)
        copied.erase_node(node)
    return copied
