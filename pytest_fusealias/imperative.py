"""The fixtures that take a function and a factory of its arguments: `fusion_check`, `fusion_memory`, `fusion_bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_fusealias import session
from pytest_fusealias.devices import gate_of
from pytest_fusealias.forms import conclude, fail, judge, resolved, spec_for
from pytest_fusealias.markers import NAME, MarkerError, arguments_of, validate
from pytest_fusealias.model import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from pytest_fusealias.bounded import Bounds
    from pytest_fusealias.build import Program
    from pytest_fusealias.measurement import MemoryComparison
    from pytest_fusealias.model import Spec
    from pytest_fusealias.timing import Benchmark


class Checker:
    """The value of the fixture `fusion_check`."""

    def __init__(self, item: pytest.Function) -> None:
        self._item = item

    def __call__(
        self,
        function: Callable[..., Any],
        make: Callable[[], Any],
        *,
        drive: Callable[..., Any] | None = None,
        **arguments: Any,
    ) -> Verdict:
        """Checks `function` on what `make()` returns; fails the test on a difference, else returns the Verdict.

        `make` is called once per arm, seeded alike, and returns the positional arguments as a tuple, or a program made
        by `fusion_program`. `drive(function, *args)` replaces the plain call where a test calls several times, runs
        backward itself or keeps results. `arguments` are those of the marker.
        """
        __tracebackhide__ = True
        spec = _spec(self._item, arguments, "fusion_check")
        return judge(self._item, _factory(function, make, drive), spec)


def _factory(
    function: Callable[..., Any], make: Callable[[], Any], drive: Callable[..., Any] | None
) -> Callable[[], Program]:
    from pytest_fusealias.build import Program, ProgramError

    def factory() -> Program:
        made = make()
        if isinstance(made, Program):
            return made
        if not isinstance(made, (tuple, list)):
            raise ProgramError(
                f"make returned {type(made).__name__}; expected a tuple of positional arguments"
            )
        return Program(function, args=tuple(made), drive=drive)

    return factory


class MemoryMeter:
    """The value of the fixture `fusion_memory`."""

    def __init__(self, item: pytest.Function) -> None:
        self._item = item

    def __call__(
        self,
        function: Callable[..., Any],
        make: Callable[[], Any],
        *,
        drive: Callable[..., Any] | None = None,
        **arguments: Any,
    ) -> MemoryComparison:
        """Measures `function` on what `make()` returns, in eager and compiled; arguments are those of `fusion_check`.

        Raises NotMeasuredError with the reason where memory cannot be measured.
        """
        __tracebackhide__ = True
        spec = _spec(self._item, arguments, "fusion_memory")
        return _bounds(self._item, _factory(function, make, drive), spec).measured_memory()


class Bencher:
    """The value of the fixture `fusion_bench`."""

    def __init__(self, item: pytest.Function) -> None:
        self._item = item

    def __call__(
        self,
        function: Callable[..., Any],
        make: Callable[[], Any],
        *,
        drive: Callable[..., Any] | None = None,
        **arguments: Any,
    ) -> Benchmark:
        """Measures `function` on what `make()` returns, in eager and compiled; arguments are those of `fusion_check`."""
        __tracebackhide__ = True
        from pytest_fusealias.compilers import name_of

        spec = _spec(self._item, arguments, "fusion_bench")
        bounds = _bounds(self._item, _factory(function, make, drive), spec)
        bench = bounds.measured_bench()
        verdict = Verdict(
            backend=name_of(spec.backend) if spec.backend is not None else "none",
            checks=tuple(bounds.decide("")),
            graphs=bench.facts.graphs,
            strict=spec.strict,
            memory=bounds.memory,
            bench=bench,
        )
        conclude(self._item, verdict, spec)
        return bench


def _bounds(item: pytest.Function, factory: Callable[[], Program], spec: Spec) -> Bounds:
    from pytest_fusealias.check import measure_program

    budget = item.config.stash[session.SETTINGS].bench.budget
    return measure_program(factory, spec, budget, gate_of(str(spec.device)))


def _spec(item: pytest.Function, arguments: dict[str, Any], fixture: str) -> Spec:
    __tracebackhide__ = True
    try:
        validate(arguments)
        backend = arguments.get("backend")
        if isinstance(backend, (list, tuple)):
            raise MarkerError("backend: a single check takes one backend; loop or parametrize over several")
        merged = arguments_of(item.iter_markers(NAME)) | arguments
        if backend is not None:
            resolved(item.config, backend)
        return spec_for(item, merged, backend)
    except MarkerError as error:
        text = f"{fixture}: {error}"
    return fail(text)
