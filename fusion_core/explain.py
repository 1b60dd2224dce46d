"""`fusion_core.compile` and `fusion_core.explain`: the convenient front of the backend."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule

from fusion_core.backend import CompiledGraph
from fusion_core.capture import collected_graph_breaks, reset_compiler
from fusion_core.examine import Explanation, GraphReport, explanation
from fusion_core.kernels import describe_executor
from fusion_core.memory.watcher import Watcher
from fusion_core.options import Options, parse_options
from fusion_core.restore import unchanged


def compile(  # noqa: A001 - the name of the public interface, as in torch.compile
    function: Callable[..., Any], *, dynamic: bool | None = None, **options: Any
) -> Callable[..., Any]:
    """Returns `function` compiled with this backend; `options` are those of `fusion_core.Options`.

    Raises OptionError at once for an unknown option.
    """
    parse_options(options)
    compiled: Callable[..., Any] = torch.compile(
        function, backend="fusion_core", dynamic=dynamic, options=options
    )
    return compiled


def explain(
    function: Callable[..., Any],
    *args: Any,
    run: bool = True,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Explanation:
    """Compiles `function`, calls it on the arguments, and returns what was done.

    Everything that the function reaches through arguments, closures, bound objects and globals is put back afterwards:
    bytes, sizes, optimizer state, gradients, version counters and torch's random state. Python attributes and numbers
    that the function changes are not. With `run=False` nothing is executed and only the first graph is reported.
    `options` are those of the compilation, by name.
    """
    reports: list[GraphReport] = []
    roots = {"function": function, "args": args, "kwargs": kwargs}
    parsed = parse_options(options)
    watcher = Watcher()
    backend = _recording_backend(reports, parsed, watcher, run=run)
    with unchanged(roots), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reset_compiler()
        with collected_graph_breaks() as breaks:
            try:
                torch.compile(function, backend=backend, dynamic=dynamic)(*args, **kwargs)
            except _StopError:
                pass
            finally:
                reset_compiler()
    return explanation(reports, breaks, describe_executor(parsed.executor), watcher.estimate([]))


class _StopError(BaseException):
    """Leaves the function before its first compiled graph would run."""


def _recording_backend(
    reports: list[GraphReport], options: Options, watcher: Watcher, *, run: bool
) -> Callable[..., Any]:
    def record(module: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        compiled = CompiledGraph(module, example_inputs, options, reports.append, watcher.watch)
        return compiled if run else _stop

    return record


def _stop(*_args: Any) -> Any:
    raise _StopError
