"""Backends by name or callable, and how a function is compiled and its graphs counted."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import logging
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo

from pytest_fusealias.dynamo import generated_kernels
from pytest_fusealias.observation import Compilation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class UnknownBackendError(ValueError):
    """A backend name that neither torch nor a plugin knows, or a callable of neither known form."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A named way to compile: a Dynamo backend `(graph_module, example_inputs)`, or a function `compile(fn)`."""

    name: str
    target: Any
    takes_function: bool = False


@dataclass(slots=True)
class _Counts:
    graphs: int = 0
    executions: int = 0


def forget_compiled() -> None:
    """Clears what Dynamo has compiled in this process."""
    torch._dynamo.reset()


def resolve(backend: str | Callable[..., Any] | Compiler) -> Compiler:
    """Returns the compiler for a backend name or callable.

    A callable with two required parameters is a Dynamo backend, one with a single required parameter compiles a
    function and returns another (`thunder.jit`, say). Raises UnknownBackendError.
    """
    if isinstance(backend, Compiler):
        return backend
    if isinstance(backend, str):
        names = torch._dynamo.list_backends(exclude_tags=())
        if backend not in names:
            near = difflib.get_close_matches(backend, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UnknownBackendError(f"unknown backend {backend!r}{hint} Known: {', '.join(names)}")
        return Compiler(backend, backend)
    if not callable(backend):
        raise UnknownBackendError(f"a backend is a name or a callable, found {type(backend).__name__}")
    return Compiler(name_of(backend), backend, takes_function=_takes_function(backend))


def as_dynamo_backend(compiler: Compiler) -> Callable[..., Any]:
    """Returns what Dynamo calls with a graph and its example inputs; the compiler must not take functions."""
    target = compiler.target
    found: Callable[..., Any] = torch._dynamo.lookup_backend(target) if isinstance(target, str) else target
    return found


def backend_module(name: str) -> str:
    """Returns the module that defines a backend which is registered under a name."""
    return str(getattr(torch._dynamo.lookup_backend(name), "__module__", "torch"))


def named(name: str, target: Callable[..., Any]) -> Compiler:
    """Returns the compiler for a callable that is registered under a name of its own."""
    return Compiler(name, target, takes_function=_takes_function(target))


def name_of(backend: str | Callable[..., Any] | Compiler) -> str:
    """Returns a readable name, fit for a test id."""
    if isinstance(backend, str):
        return backend
    if isinstance(backend, Compiler):
        return backend.name
    if isinstance(backend, functools.partial):
        return name_of(backend.func)
    name = str(getattr(backend, "__name__", type(backend).__name__))
    return "backend" if name == "<lambda>" else name


def _takes_function(backend: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(backend).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in parameters if p.kind in kinds]
    required = [p for p in positional if p.default is inspect.Parameter.empty]
    if not required and positional:
        return True  # such as a partial of torch.compile
    if len(required) not in (1, 2):
        raise UnknownBackendError(
            f"backend {name_of(backend)!r} takes {len(required)} required arguments; expected two for a Dynamo backend "
            "(graph_module, example_inputs), or one for a compiler (function)"
        )
    return len(required) == 1


class Compiled:
    """A compiled function together with the counts of what its compiler did.

    Counting executions costs time at every call: `counts_executions=False` leaves that out.
    """

    def __init__(
        self,
        compiler: Compiler,
        function: Callable[..., Any],
        dynamic: bool | None,
        *,
        counts_executions: bool = True,
    ) -> None:
        self._compiler = compiler
        self._function = function
        self._counts = _Counts()
        self._counts_executions = counts_executions
        self._results: list[Any] = []
        self._graphs_before = _graphs_in_process()
        self._kernels_before = generated_kernels() or 0
        if compiler.takes_function:
            self.call = compiler.target(function)
        else:
            self.call = torch.compile(function, backend=self._backend(), dynamic=dynamic)

    def compilation(self) -> Compilation:
        """Returns what has been compiled and run so far."""
        if not self._compiler.takes_function:
            return Compilation(self._counts.graphs, self._counts.executions)
        graphs = _graphs_in_process() - self._graphs_before  # zero proves nothing: it may not use Dynamo
        return Compilation(graphs=graphs or None, is_same_function=self.call is self._function)

    def fused(self) -> tuple[int | None, int | None]:
        """Returns regions and kernels so far, of fusion_core and inductor; None where the compiler does not tell."""
        told = [result.fusion_counts for result in self._results if hasattr(result, "fusion_counts")]
        if told:
            return sum(regions for regions, _ in told), sum(kernels for _, kernels in told)
        generated = generated_kernels()
        if generated is None or "inductor" not in self._compiler.name:
            return None, None
        return generated - self._kernels_before, generated - self._kernels_before

    def _backend(self) -> Callable[..., Any]:
        inner, counts = as_dynamo_backend(self._compiler), self._counts

        def counting_backend(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
            compiled: Callable[..., Any] = inner(graph, example_inputs)
            counts.graphs += 1
            self._results.append(compiled)
            if not self._counts_executions:
                return compiled

            @functools.wraps(compiled, updated=("__dict__",) if hasattr(compiled, "__dict__") else ())
            def counted(*args: Any) -> Any:
                counts.executions += 1
                return compiled(*args)

            return counted

        return counting_backend


@contextlib.contextmanager
def _quiet_trace_log() -> Iterator[None]:
    """Keeps torch's structured trace, a line for every tensor of every graph, out of pytest's log capture."""
    trace = logging.getLogger("torch.__trace")
    capturing = [h for h in trace.handlers if type(h).__module__.startswith("_pytest")]
    for handler in capturing:
        trace.removeHandler(handler)
    try:
        yield
    finally:
        for handler in capturing:
            trace.addHandler(handler)


def _graphs_in_process() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@contextlib.contextmanager
def compile_session(compiler: Compiler, *, eager_rng: bool) -> Iterator[None]:
    """A fresh compiler state, eager's random stream where the compiler offers it, and no compiler chatter."""
    forget_compiled()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet_trace_log())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if eager_rng and ("inductor" in compiler.name or "torch._inductor.config" in sys.modules):
            import torch._inductor.config as inductor_config

            stack.enter_context(inductor_config.patch(fallback_random=True))
        yield
    forget_compiled()
