"""The one function that names the stages of a check in order: build, run, compare, decide."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pytest_fusealias.bounded import Bounds, kept_random_state
from pytest_fusealias.build import (
    ProgramError,
    build,
    require_disjoint,
    require_equal_builds,
    require_one_device,
)
from pytest_fusealias.compare import compare, decide
from pytest_fusealias.compilers import forget_compiled, resolve
from pytest_fusealias.locks import DeviceGate
from pytest_fusealias.model import UNMEASURED, CheckResult, Outcome, Spec, Verdict
from pytest_fusealias.observation import Observation
from pytest_fusealias.relation import alias_diagram
from pytest_fusealias.run import run_compiled, run_control, run_eager
from pytest_fusealias.timing import Budget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_fusealias.build import Program


_NO_BACKEND = "no backend to compare with; name one in the marker or with --fusion-backend"


def check(
    factory: Callable[[], Program], spec: Spec, budget: Budget | None = None, gate: DeviceGate | None = None
) -> Verdict:
    """Builds the program three times, runs it in eager (twice) and compiled, and returns the verdict.

    Bounds are measured within `budget`; `gate` is the lock of the device. Raises ProgramError where the program cannot
    be judged, and UnknownBackendError.
    """
    if spec.backend is None:
        raise ProgramError(_NO_BACKEND)
    compiler = resolve(spec.backend)
    budget, gate = budget or Budget(), gate or DeviceGate("cpu")
    with gate.shared(), kept_random_state():
        programs = {name: build(factory, spec.seed) for name in ("eager", "control", "compiled")}
        eager_program, control_program, compiled_program = programs.values()
        require_disjoint(programs)
        require_equal_builds(eager_program, control_program)
        require_one_device(eager_program)
        control = run_control(control_program, spec)
        forget_compiled()  # the control run may have left code that higher-order operators compiled under its mode
        require_disjoint(programs)  # again: state that appears during a run may be shared too
        eager = _with_written(run_eager(eager_program, spec), control)
        _require_expected_error(eager, spec)
        _require_deterministic(eager, control, spec)
        compiled = run_compiled(compiled_program, spec, compiler)
    findings = compare(eager, compiled, spec)
    results = [decide(name, found, spec, compiler.name) for name, found in findings.items()]
    results = list(_with_doubts(results, eager, control, compiled, spec))

    bounds = Bounds(factory, spec, compiler, budget, gate)
    raised = next((arm for arm, seen in (("eager", eager), ("compiled", compiled)) if seen.error), None)
    return Verdict(
        backend=compiler.name,
        checks=(*results, *bounds.decide(f"the {raised} program raises" if raised else "")),
        refused=eager.error is None and compiled.error is not None,
        graphs=compiled.compilation.graphs if compiled.compilation else None,
        tensors=len(eager.tensors),
        strict=spec.strict,
        memory=bounds.memory,
        bench=bounds.bench,
        diagram=_diagram(results, eager, compiled),
        measure_memory=bounds.measured_memory,
    )


def _diagram(
    results: list[CheckResult], eager: Observation, compiled: Observation
) -> tuple[tuple[str, str, str, str], ...]:
    if not any(r.check in ("alias", "identity") and r.findings for r in results):
        return ()
    return alias_diagram(eager.relations, compiled.relations)


def measure_program(
    factory: Callable[[], Program],
    spec: Spec,
    budget: Budget,
    gate: DeviceGate,
) -> Bounds:
    """Returns what measures the memory and the time of the program without checking it; raises UnknownBackendError."""
    if spec.backend is None:
        raise ProgramError(_NO_BACKEND)
    return Bounds(factory, spec, resolve(spec.backend), budget, gate)


def _with_written(eager: Observation, control: Observation) -> Observation:
    """Gives eager's storages the write masks that the control run saw on their twins."""
    masks = {s.path: s.written for s in control.storages}
    storages = tuple(dataclasses.replace(s, written=masks.get(s.path)) for s in eager.storages)
    return dataclasses.replace(eager, storages=storages)


# Raised by a mistake in the test, not by an operator that refuses its arguments.
_MISTAKES = frozenset(
    {"AssertionError", "AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "TypeError"}
)


def _require_expected_error(eager: Observation, spec: Spec) -> None:
    if spec.raises is None:
        if eager.error is not None and eager.error.phase == "call" and eager.error.type_name in _MISTAKES:
            raise ProgramError(
                f"the program fails in eager with {eager.error.type_name} ({eager.error.message})"
            )
        return
    expected = spec.raises if isinstance(spec.raises, tuple) else (spec.raises,)
    names = [kind.__name__ for kind in expected]
    if eager.error is None:
        raise ProgramError(f"raises={', '.join(names)} is declared, but eager runs through")
    bases = {base.__name__ for kind in expected for base in [kind, *_subclasses(kind)]}
    if eager.error.type_name not in bases:
        found = f"{eager.error.type_name} ({eager.error.message})"
        raise ProgramError(f"raises={', '.join(names)} is declared, but eager raises {found}")


def _subclasses(kind: type[BaseException]) -> list[type[BaseException]]:
    return [s for child in kind.__subclasses__() for s in [child, *_subclasses(child)]]


def _require_deterministic(eager: Observation, control: Observation, spec: Spec) -> None:
    """Eager must equal eager. The control run fills uninitialised memory with junk, so reading it shows here."""
    loose = dataclasses.replace(spec, alias="eager", allow_fallback=True)
    for found in compare(control, eager, loose).values():
        strong = [f for f in found if f.strong]
        if strong:
            text = strong[0].text.replace("the backend", "eager again")
            raise ProgramError(
                f"eager differs from eager at {strong[0].path}: {text}; the program reads uninitialised memory "
                "(torch.empty) or is not deterministic, so no backend can be compared with it"
            )


def _with_doubts(
    results: list[CheckResult], eager: Observation, control: Observation, compiled: Observation, spec: Spec
) -> Iterator[CheckResult]:
    """Turns passes that rest on nothing into NOT-MEASURED, and adds what was asked for but cannot be measured."""
    for result in results:
        reason = _doubt(result, eager, control, compiled, spec)
        if reason and result.outcome is Outcome.PASS and not result.expected_failure:
            yield dataclasses.replace(result, outcome=Outcome.NOT_MEASURED, reason=reason)
        else:
            yield result
    default = Spec()
    for name, kind in UNMEASURED.items():
        if getattr(spec, name) != getattr(default, name):
            yield CheckResult(kind, Outcome.NOT_MEASURED, (), f"{name} is not measured by this version")


def _doubt(
    result: CheckResult, eager: Observation, control: Observation, compiled: Observation, spec: Spec
) -> str:
    failed = eager.error is not None and eager.error.phase == "call"
    if failed and eager.error is not None and spec.raises is None and result.check == "values":
        error = f"{eager.error.type_name} ({eager.error.message})"
        return f"eager raises {error}, so there are no values; if it must raise, declare raises={eager.error.type_name}"
    if control.unnamed_writes and result.check == "mutation":
        return f"eager writes a tensor that no argument, state, closure or global names: {control.unnamed_writes[0]}"
    done = compiled.compilation
    if result.check == "compiled" and done is not None and done.graphs is None and not spec.allow_fallback:
        return "this compiler does not use Dynamo and gives no count, so a silent eager fallback would look the same"
    return ""
