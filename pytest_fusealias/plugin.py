"""The pytest hooks; each delegates. Importing this module does not import torch."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

import pytest

from pytest_fusealias import (
    devices,
    forms,
    hookspecs,
    markers,
    nvfuser_version,
    options,
    outputs,
    recording,
    session,
)
from pytest_fusealias.baseline.storage import StorageError
from pytest_fusealias.fixtures import (
    assert_no_illegal_alias,
    fusion_bench,
    fusion_check,
    fusion_compile,
    fusion_device,
    fusion_memory,
    fusion_program,
)
from pytest_fusealias.progress import Progress
from pytest_fusealias.report import github, terminal

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = [
    "assert_no_illegal_alias",
    "fusion_bench",
    "fusion_check",
    "fusion_compile",
    "fusion_device",
    "fusion_memory",
    "fusion_program",
]

WRITTEN: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares options and ini values."""
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declares the extension points."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker and freezes the settings."""
    config.addinivalue_line("markers", markers.HELP)
    settings = options.settings_of(config)
    config.stash[session.SETTINGS] = settings
    config.stash[session.COLLECTED] = []
    try:
        config.stash[session.BASELINE] = recording.load_baseline(settings.bench, config.invocation_params.dir)
    except StorageError as error:
        raise pytest.UsageError(f"--fusion-bench-compare: {error}") from None
    if settings.bench.measures and devices.worker_of(config) is None:
        config.pluginmanager.register(Progress(config), "fusealias-progress")
    config.pluginmanager.register(session.Collector(config), "fusealias-collector")


def pytest_report_header(config: pytest.Config) -> str:
    """Says what marked tests are compared with."""
    torch_version = importlib.metadata.version("torch")
    versions = f"torch {torch_version}, {nvfuser_version.describe(torch_version)}"
    return terminal.header(config.stash[session.SETTINGS], versions)


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> None:
    """Refuses marked unittest classes."""
    forms.reject_unittest(collector, name, obj)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Validates the marker and parametrizes over backends."""
    forms.prepare(metafunc)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs marked tests in body and builder form."""
    __tracebackhide__ = True
    return forms.run_marked(pyfuncitem) or None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attaches verdicts to the report."""
    report = yield
    session.attach(item, report)
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps only tests that are measured, under `--fusion-bench-only`."""
    if config.stash[session.SETTINGS].bench.only:
        kept = [item for item in items if forms.is_measured(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes files, on the controller; a file that cannot be written makes the run fail."""
    config = session.config
    if devices.worker_of(config) is not None or config.option.collectonly:
        return
    broken_off = session.exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
    done, errors = outputs.write_outputs(config, saves=not broken_off)
    config.stash[WRITTEN] = [*done, *(f"ERROR {error}" for error in errors)]
    if errors and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the counts and everything that a green run must not hide."""
    entries = config.stash[session.COLLECTED]
    settings = config.stash[session.SETTINGS]
    lines: list[str] = []
    if settings.bench.measures and entries:
        lines += outputs.table_lines(config)
    if entries:
        lines += terminal.summary(entries, verbose=config.get_verbosity() > 0)
    lines += outputs.baseline_lines(config)
    written: list[str] = config.stash.get(WRITTEN, [])
    lines += written
    if settings.bench.github_summary:
        lines += github.annotation_lines(entries)
    if lines:
        terminalreporter.section("fusealias")
        for line in lines:
            terminalreporter.write_line(line)
