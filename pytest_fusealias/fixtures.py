"""Fixtures for users; torch is imported when one is used, not before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_fusealias import forms, imperative, session

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


@pytest.fixture
def fusion_program() -> Callable[..., Any]:
    """Makes the program that a test in builder form returns: `fusion_program(function, *args, state=, drive=, **kwargs)`.

    `state` names objects that the function changes (modules, optimizers, caches). `drive(function, *args)` replaces the
    plain call.
    """
    from pytest_fusealias.build import Program

    def make(
        function: Callable[..., Any],
        *args: Any,
        state: object = None,
        drive: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> Program:
        return Program(function, args=args, kwargs=kwargs, state=state, drive=drive)

    return make


@pytest.fixture
def fusion_check(request: pytest.FixtureRequest) -> imperative.Checker:
    """Checks a function inside a test: `fusion_check(function, make=..., backend=...) -> Verdict`."""
    return imperative.Checker(request.node)


@pytest.fixture
def fusion_memory(request: pytest.FixtureRequest) -> imperative.MemoryMeter:
    """Measures memory in eager and compiled without judging it: `fusion_memory(function, make=..., backend=...)`.

    Returns a MemoryComparison with `peak_bytes`, `retained_bytes` and `leak_bytes`, each `eager` and `compiled`; raises
    NotMeasuredError where memory cannot be measured.
    """
    return imperative.MemoryMeter(request.node)


@pytest.fixture
def fusion_bench(request: pytest.FixtureRequest) -> imperative.Bencher:
    """Measures time, compilation and memory, without comparing results: `fusion_bench(function, make=..., backend=...)`.

    Returns a Benchmark with `time` and `facts`. Bounds of the marker, or given here, fail the test; the measurement
    stands in the table. Raises NotMeasuredError where nothing can be measured; skips under `--fusion-bench-skip`.
    """
    if request.config.stash[session.SETTINGS].bench.budget.skipped:
        pytest.skip("--fusion-bench-skip")
    return imperative.Bencher(request.node)


@pytest.fixture
def fusion_device(request: pytest.FixtureRequest) -> torch.device:
    """The device that marked tests build on."""
    import torch

    return torch.device(session.device_of(request.config))


@pytest.fixture
def fusion_compile(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Compiles a function with the session's backend, or the one named: `fusion_compile(function, backend=None)`."""
    from pytest_fusealias.compilers import Compiled, resolve

    default = request.config.stash[session.SETTINGS].default_backends[0]

    def compile_function(
        function: Callable[..., Any], backend: Any = None, dynamic: bool | None = None
    ) -> Callable[..., Any]:
        chosen = forms.registered(request.config, backend or default)
        compiled: Callable[..., Any] = Compiled(resolve(chosen), function, dynamic).call
        return compiled

    return compile_function


@pytest.fixture
def assert_no_illegal_alias() -> Callable[..., None]:
    """Asserts that outputs share no memory with inputs or each other: `assert_no_illegal_alias(outputs, inputs)`.

    Pairs that eager relates too are legal: pass `like=(eager_outputs, eager_inputs)` of the same structure.
    """
    from fusion_core import reach
    from pytest_fusealias.relation import relations

    def related(outputs: object, inputs: object) -> set[tuple[str, str]]:
        tensors = {r.path: r.tensor for r in reach.walk({"input": inputs, "output": outputs})}
        return {pair for pair in relations(tensors) if pair[1].startswith("output")}

    def check(outputs: object, inputs: object = (), like: tuple[object, object] | None = None) -> None:
        __tracebackhide__ = True
        illegal = related(outputs, inputs) - (related(*like) if like is not None else set())
        if illegal:
            text = "; ".join(f"{second} shares memory with {first}" for first, second in sorted(illegal))
            pytest.fail(f"illegal alias: {text}", pytrace=False)

    return check
