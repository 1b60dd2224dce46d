"""`fusion_core.estimate_memory`: what a compiled call needs, step by step."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from fusion_core.backend import CompiledGraph
from fusion_core.capture import reset_compiler
from fusion_core.examine import GraphReport
from fusion_core.lowering.support import WHOLE_GRAPH
from fusion_core.memory.estimate import MemoryEstimate
from fusion_core.memory.watcher import Watcher
from fusion_core.options import parse_options
from fusion_core.restore import unchanged


def estimate_memory(
    function: Callable[..., Any],
    *args: Any,
    run: bool = True,
    train: bool | None = None,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> MemoryEstimate:
    """Compiles `function` and returns the bytes that a call needs above its inputs, step by step.

    What values take and when they are freed follows from the plan. What operators and kernels need besides (`workspace`)
    is read from the allocator while the steps run, and what it shows is compared with the plan; with `run=False` the
    function is called only once, to compile it, workspaces are not counted and the estimate is a lower bound. `train`
    tells whether a backward with cotangents of one follows the call (default: if an output requires grad and the function
    did not run one itself). `dynamic` and `options` are those of the compilation.

    Everything that the function reaches is put back afterwards, as by `explain`.
    Raises what the function raises, OptionError for unknown options, and ProfilerUnavailableError where no torch
    profiler can run.
    """
    parsed, watcher = parse_options(options), Watcher()
    refused: list[str] = []

    def record(report: GraphReport) -> None:
        refused.extend(f"{s.operator}: {s.reason}" for s in report.eager_steps if s.operator == WHOLE_GRAPH)

    def backend(module: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return CompiledGraph(module, example_inputs, parsed, record, watcher.watch)

    roots = {"function": function, "args": args, "kwargs": kwargs}
    with unchanged(roots), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reset_compiler()
        try:
            compiled = torch.compile(function, backend=backend, dynamic=dynamic)
            _call(compiled, args, kwargs, train)
            for _ in range(
                2 if run else 0
            ):  # the first of them warms up: what is freed must have been seen taken
                gc.collect()
                with watcher.observed_call():
                    _call(compiled, args, kwargs, train)
        finally:
            reset_compiler()
    return watcher.estimate(refused)


def _call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], train: bool | None
) -> None:
    result = function(*args, **kwargs)
    if train is False:
        return
    roots = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    roots = [t for t in {id(t): t for t in roots}.values() if t.grad_fn is not None]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
