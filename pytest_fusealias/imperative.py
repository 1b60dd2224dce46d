"""The fixtures that take a function and a factory of its arguments inside a test: `fusion_check` and `fusion_memory`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_fusealias.forms import fail, judge, resolved, spec_for
from pytest_fusealias.markers import NAME, MarkerError, arguments_of, validate

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from pytest_fusealias.build import Program
    from pytest_fusealias.measurement import MemoryComparison
    from pytest_fusealias.model import Spec, Verdict


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
        from pytest_fusealias.check import measure_program

        spec = _spec(self._item, arguments, "fusion_memory")
        return measure_program(_factory(function, make, drive), spec)


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
