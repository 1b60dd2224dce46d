"""The three forms of a test: body, builder, imperative; how each is recognised, parametrized and run."""

from __future__ import annotations

import dataclasses
import inspect
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_fusealias import session
from pytest_fusealias.devices import gate_of
from pytest_fusealias.markers import NAME, MarkerError, arguments_of, make_spec, program_parameters
from pytest_fusealias.recording import against_baseline, entry_of
from pytest_fusealias.report.failure import failure_text
from pytest_fusealias.report.timeline import write_timeline
from pytest_fusealias.units import artifact_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_fusealias.baseline.judge import Change
    from pytest_fusealias.build import Program
    from pytest_fusealias.model import Spec, Verdict
    from pytest_fusealias.options import Settings

BACKEND_PARAMETER = "_fusion_backend"
BUILDER_FIXTURE = "fusion_program"
IMPERATIVE_FIXTURE = "fusion_check"
BENCH_FIXTURE = "fusion_bench"
_IMPERATIVE = frozenset({IMPERATIVE_FIXTURE, BENCH_FIXTURE})


@dataclass(frozen=True, slots=True)
class _Placeholder:
    """Stands for a program parameter until the program runs."""

    name: str


def reject_unittest(collector: pytest.Collector, name: str, obj: object) -> None:
    """Raises CollectError for a marked unittest class: its methods cannot take parameters or return programs."""
    unittest = sys.modules.get("unittest")  # not loaded: then there is no such class either
    if unittest is None or not (inspect.isclass(obj) and issubclass(obj, unittest.TestCase)):
        return
    marked = [obj, *(getattr(obj, n) for n in dir(obj) if n.startswith("test"))]
    if any(_has_mark(m) for m in marked) or collector.get_closest_marker(NAME) is not None:
        raise collector.CollectError(
            f"{NAME} on unittest class {name}: unittest methods take no arguments; write a plain pytest function or class"
        )


def _has_mark(obj: object) -> bool:
    marks = getattr(obj, "pytestmark", ())
    return any(m.name == NAME for m in (marks if isinstance(marks, (list, tuple)) else (marks,)))


def prepare(metafunc: pytest.Metafunc) -> None:
    """Validates a marked test at collection and parametrizes it over its backends and program parameters."""
    marks = list(metafunc.definition.iter_markers(NAME))
    imperative = not _IMPERATIVE.isdisjoint(metafunc.fixturenames)
    if not marks and not imperative:
        return
    try:
        arguments = arguments_of(marks)
        _require_form(metafunc, arguments, imperative=imperative)
        _parametrize_backends(metafunc, arguments)
        if arguments.get("inputs") is not None:
            for name in program_parameters(metafunc.function, _filled(metafunc), arguments.get("args")):
                metafunc.parametrize(name, [_Placeholder(name)], ids=[pytest.HIDDEN_PARAM])
    except MarkerError as error:
        where = f"{metafunc.definition.nodeid}: {NAME}"
        raise pytest.Collector.CollectError(f"{where}: {error}") from None


def _require_form(metafunc: pytest.Metafunc, arguments: dict[str, Any], *, imperative: bool) -> None:
    function = metafunc.function
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise MarkerError(
            "async tests are not supported; make the program a plain function and the test synchronous"
        )
    body = arguments.get("inputs") is not None
    builder = BUILDER_FIXTURE in metafunc.fixturenames
    if body and (builder or imperative):
        which = BUILDER_FIXTURE if builder else IMPERATIVE_FIXTURE
        raise MarkerError(
            f"inputs= makes the test body the program, so it cannot also use {which}; drop one of them"
        )
    if not (body or builder or imperative):
        raise MarkerError(
            f"nothing to compare: give inputs= (the test body is the program), or use the fixture {BUILDER_FIXTURE} "
            f"(the test returns a program) or {IMPERATIVE_FIXTURE}"
        )


def _filled(metafunc: pytest.Metafunc) -> frozenset[str]:
    """Names that fixtures, parametrization or pytest itself fill."""
    known = set(metafunc.definition._fixtureinfo.name2fixturedefs)  # noqa: SLF001 - no public way to ask
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", ())
        known.update(n.strip() for n in names.split(",")) if isinstance(names, str) else known.update(names)
    return frozenset(known | {"self", "request"})


def _parametrize_backends(metafunc: pytest.Metafunc, arguments: dict[str, Any]) -> None:
    backends = backends_of(arguments, metafunc.config)
    names = _unique([resolved(metafunc.config, backend).name for backend in backends])
    _require_known_prefixes(arguments, names, metafunc.config)
    ids: list[Any] = [pytest.HIDDEN_PARAM] if len(backends) == 1 else list(names)
    metafunc.fixturenames.append(BACKEND_PARAMETER)
    metafunc.parametrize(BACKEND_PARAMETER, backends, ids=ids)


def _require_known_prefixes(arguments: dict[str, Any], names: list[str], config: pytest.Config) -> None:
    if config.stash[session.SETTINGS].command_line_backends is not None:
        return  # the entries are for the backends that the command line replaced
    for key in arguments.get("xfail_checks", {}):
        prefix = key.rpartition(":")[0]
        if prefix and prefix not in names:
            raise MarkerError(f"xfail_checks names {key!r}, but the backends are {', '.join(names)}")


def backends_of(arguments: dict[str, Any], config: pytest.Config) -> list[Any]:
    """Returns the backends of a test: the command line's, else the marker's, else the ini's or the default."""
    settings = config.stash[session.SETTINGS]
    if settings.command_line_backends is not None:
        return list(settings.command_line_backends)
    given = arguments.get("backend")
    if given is None:
        return list(settings.default_backends)
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _unique(names: list[str]) -> list[str]:
    return [n if names.index(n) == i else f"{n}-{names[: i + 1].count(n)}" for i, n in enumerate(names)]


def resolved(config: pytest.Config, backend: Any) -> Any:
    """Returns the compiler of a backend as a test names it; raises MarkerError where there is none."""
    from pytest_fusealias.compilers import UnknownBackendError, resolve

    try:
        return resolve(registered(config, backend))
    except UnknownBackendError as error:
        raise MarkerError(str(error)) from None


def registered(config: pytest.Config, backend: Any) -> Any:
    """Returns the compiler that a plugin registered under a name, or `backend` as it is."""
    from pytest_fusealias.compilers import named

    for table in config.hook.pytest_fusealias_register_backends(config=config):
        if isinstance(backend, str) and backend in table:
            return named(backend, table[backend])
    return backend


def run_marked(item: pytest.Function) -> bool:
    """Runs a marked test in body or builder form; returns False for every other test, which pytest then runs."""
    marks = list(item.iter_markers(NAME))
    if not marks or not _IMPERATIVE.isdisjoint(item.fixturenames):
        return False
    if hasattr(item, "callspec") and any(m.name == NAME for m in item.callspec.marks):
        fail(
            f"fusion_equiv ERROR ({item.nodeid}): the marker stands on a pytest.param; put it on the function"
        )
    spec = _spec_or_fail(item, arguments_of(marks))
    factory = _body_factory(item, spec) if spec.inputs is not None else _builder_factory(item)
    judge(item, factory, spec)
    return True


def is_measured(item: pytest.Item) -> bool:
    """True for the tests that `--fusion-bench` measures: marked ones, and those that check or measure by a fixture."""
    marked = item.get_closest_marker(NAME) is not None
    return marked or not _IMPERATIVE.isdisjoint(getattr(item, "fixturenames", ()))


def spec_for(item: pytest.Function, arguments: dict[str, Any], backend: object = None) -> Spec:
    """Returns the item's Spec; `backend` overrides the one that the item is parametrized with."""
    settings: Settings = item.config.stash[session.SETTINGS]
    if backend is None:
        backend = item.callspec.params.get(BACKEND_PARAMETER) if hasattr(item, "callspec") else None
    if backend is None:
        backend = backends_of(arguments, item.config)[0]
    return make_spec(arguments, settings, registered(item.config, backend), session.device_of(item.config))


def _spec_or_fail(item: pytest.Function, arguments: dict[str, Any]) -> Spec:
    __tracebackhide__ = True
    try:
        return spec_for(item, arguments)
    except MarkerError as error:
        text = f"fusion_equiv ERROR ({item.nodeid}): {error}"
    return fail(text)


def judge(item: pytest.Function, factory: Callable[[], Program], spec: Spec) -> Verdict:
    """Checks a program, records the verdict on the item, and fails the item where the verdict does."""
    __tracebackhide__ = True
    from pytest_fusealias.build import ProgramError
    from pytest_fusealias.check import check
    from pytest_fusealias.compilers import name_of

    backend = name_of(spec.backend) if spec.backend is not None else "none"
    verdict, message = None, ""
    budget = item.config.stash[session.SETTINGS].bench.budget
    try:
        verdict = check(factory, spec, budget, gate_of(str(spec.device)))
    except ProgramError as error:
        message = str(error)
    if verdict is None:  # failed outside of the handler, so that the message is shown once
        session.record_error(item, backend, message)
        fail(f"fusion_equiv ERROR ({item.nodeid}): {message}")
    return conclude(item, verdict, spec, factory)


def conclude(
    item: pytest.Function, verdict: Verdict, spec: Spec, factory: Callable[[], Program] | None = None
) -> Verdict:
    """Compares with the baseline, records the verdict, and fails the item where the verdict does.

    With a factory, and --fusion-repro-dir, a failure is also written as a script.
    """
    __tracebackhide__ = True
    settings = item.config.stash[session.SETTINGS]
    baseline = item.config.stash[session.BASELINE]
    entry = entry_of(item, verdict, spec, place=session.measured(item, verdict.backend) + 1)
    changes: list[Change] = []
    if baseline is not None and entry is not None:
        verdict, changes = against_baseline(verdict, entry, baseline, settings.bench)
        entry = dataclasses.replace(entry, outcome=verdict.outcome.value)
    session.record(item, verdict, entry, changes)
    if settings.memory_timeline is not None and verdict.memory is not None:
        write_timeline(settings.memory_timeline, f"{item.nodeid} [{verdict.backend}]", verdict.memory)
    if verdict.failures:
        repro = "" if factory is None else _repro(item, factory, verdict, spec)
        fail(failure_text(verdict, item.nodeid, replay_command(item, spec), repro))
    return verdict


def _repro(item: pytest.Function, factory: Callable[[], Program], verdict: Verdict, spec: Spec) -> str:
    """Writes the script of a failure where the settings ask for it, and returns what to tell of it."""
    settings: Settings = item.config.stash[session.SETTINGS]
    if settings.repro_folder is None:
        return ""
    from pytest_fusealias.repro.write import write_repro

    path = settings.repro_folder / f"repro_{artifact_name(f'{item.nodeid} [{verdict.backend}]')}.py"
    names = () if spec.inputs is None else _program_names(item, spec)
    with gate_of(str(spec.device)).shared():
        return write_repro(path, item, factory, verdict, spec, names=names, minify=settings.minify)


def fail(text: str) -> NoReturn:
    """Fails the running test with a text and no traceback."""
    __tracebackhide__ = True
    pytest.fail(text, pytrace=False)


def replay_command(item: pytest.Function, spec: Spec) -> str:
    """Returns the command line that runs this item again with the same settings."""
    from pytest_fusealias.compilers import name_of

    parts = ["pytest", item.nodeid, f"--fusion-seed={spec.seed}", f"--fusion-device={spec.device}"]
    if item.config.stash[session.SETTINGS].command_line_backends is not None and spec.backend is not None:
        parts.append(f"--fusion-backend={name_of(spec.backend)}")
    if spec.dtype is not None:
        parts.append(f"--fusion-dtype={str(spec.dtype).removeprefix('torch.')}")
    return shlex.join(parts)


def _body_factory(item: pytest.Function, spec: Spec) -> Callable[[], Program]:
    from pytest_fusealias.build import Program, ProgramError

    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}  # noqa: SLF001 - as pytest's own call
    names = _program_names(item, spec)
    fixtures = {name: value for name, value in arguments.items() if name not in names}

    def factory() -> Program:
        assert spec.inputs is not None
        values = spec.inputs(device=spec.device, dtype=spec.dtype, seed=spec.seed)
        if not isinstance(values, (tuple, list)):
            raise ProgramError(
                f"inputs returned {type(values).__name__}; expected a tuple of positional arguments"
            )
        if len(values) != len(names):
            raise ProgramError(_arity_message(len(values), names, fixtures))
        given = dict(zip(names, values, strict=True))
        return Program(item.obj, kwargs={**given, **fixtures}, fixtures=frozenset(fixtures))

    return factory


def _program_names(item: pytest.Function, spec: Spec) -> tuple[str, ...]:
    """Returns the parameters of the test that `inputs` fills."""
    if spec.args is not None:
        return tuple(spec.args)
    names = item._fixtureinfo.argnames  # noqa: SLF001 - as pytest's own call
    return tuple(name for name in names if isinstance(item.funcargs[name], _Placeholder))


def _arity_message(count: int, names: tuple[str, ...], fixtures: dict[str, Any]) -> str:
    text = f"inputs returned {count} values for the {len(names)} program parameters ({', '.join(names) or 'none'})"
    if fixtures:
        text += f"; {', '.join(fixtures)} come from fixtures or parametrization: a fixture of that name shadows a parameter"
    return f"{text}; rename one of them, or say args=(...)"


def _builder_factory(item: pytest.Function) -> Callable[[], Program]:
    from pytest_fusealias.build import Program, ProgramError

    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}  # noqa: SLF001 - as pytest's own call

    def factory() -> Program:
        program = item.obj(**arguments)
        if not isinstance(program, Program):
            raise ProgramError(
                f"the test returned {type(program).__name__}; expected it to `return fusion_program(function, *args)`"
            )
        return program

    return factory
