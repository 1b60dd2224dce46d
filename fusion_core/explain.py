"""`fusion_core.compile` and `fusion_core.explain`: the convenient front of the backend."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from fusion_core import reach
from fusion_core.backend import CompiledGraph
from fusion_core.capture import collected_graph_breaks, reset_compiler
from fusion_core.examine import Explanation, GraphReport, explanation
from fusion_core.kernels import describe_executor
from fusion_core.options import Options, parse_options
from fusion_core.overlap import bytes_of, geometry


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
    backend = _recording_backend(reports, parsed, run=run)
    with _unchanged(roots), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reset_compiler()
        with collected_graph_breaks() as breaks:
            try:
                torch.compile(function, backend=backend, dynamic=dynamic)(*args, **kwargs)
            except _StopError:
                pass
            finally:
                reset_compiler()
    return explanation(reports, breaks, describe_executor(parsed.executor))


class _StopError(BaseException):
    """Leaves the function before its first compiled graph would run."""


def _recording_backend(reports: list[GraphReport], options: Options, *, run: bool) -> Callable[..., Any]:
    def record(module: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        compiled = CompiledGraph(module, example_inputs, options, reports.append)
        return compiled if run else _stop

    return record


def _stop(*_args: Any) -> Any:
    raise _StopError


@dataclass(frozen=True, slots=True)
class _Saved:
    tensor: torch.Tensor
    storage: torch.UntypedStorage
    contents: torch.Tensor
    layout: tuple[int, tuple[int, ...], tuple[int, ...]]
    version: int | None
    grad: torch.Tensor | None


@contextmanager
def _unchanged(roots: Mapping[str, object]) -> Iterator[None]:
    """Puts back bytes, gradients, version counters, optimizer state keys and random state of all that `roots` reach."""
    saved = [_save(r.tensor) for r in reach.walk(roots) if geometry(r.tensor) is not None]
    optimizers = [o for o in reach.objects(roots) if isinstance(o, torch.optim.Optimizer)]
    states = [(o, {key: dict(state) for key, state in o.state.items()}) for o in optimizers]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        for optimizer, known in states:
            for key in [k for k in optimizer.state if not any(k is old for old in known)]:
                del optimizer.state[key]
            for key, state in known.items():
                optimizer.state[key].clear()
                optimizer.state[key].update(state)
        for entry in saved:
            _restore(entry)


def _save(tensor: torch.Tensor) -> _Saved:
    storage = tensor.untyped_storage()
    contents = bytes_of(storage).clone()
    version = None if tensor.is_inference() else tensor._version
    return _Saved(
        tensor, storage, contents, _layout(tensor), version, tensor.grad if tensor.is_leaf else None
    )


def _restore(entry: _Saved) -> None:
    with torch.no_grad():
        if entry.storage.nbytes() != entry.contents.numel():
            entry.storage.resize_(entry.contents.numel())
        bytes_of(entry.storage).copy_(entry.contents)
        if entry.layout != _layout(entry.tensor):
            entry.tensor.set_(entry.storage, *entry.layout)
    if entry.version is not None and entry.tensor._version != entry.version:
        torch._C._autograd._unsafe_set_version_counter((entry.tensor,), (entry.version,))
    if entry.tensor.is_leaf and entry.tensor.grad is not entry.grad:
        entry.tensor.grad = entry.grad


def _layout(tensor: torch.Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride())
