"""The pytest hooks; each delegates. Importing this module does not import torch."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

import pytest

from pytest_fusealias import forms, hookspecs, markers, nvfuser_version, options, session
from pytest_fusealias.fixtures import (
    assert_no_illegal_alias,
    fusion_check,
    fusion_compile,
    fusion_device,
    fusion_memory,
    fusion_program,
)
from pytest_fusealias.report import terminal

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = [
    "assert_no_illegal_alias",
    "fusion_check",
    "fusion_compile",
    "fusion_device",
    "fusion_memory",
    "fusion_program",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares options and ini values."""
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declares the extension points."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker and freezes the settings."""
    config.addinivalue_line("markers", markers.HELP)
    config.stash[session.SETTINGS] = options.settings_of(config)
    config.stash[session.COLLECTED] = []
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the counts and everything that a green run must not hide."""
    entries = config.stash[session.COLLECTED]
    if entries:
        terminalreporter.section("fusealias")
        for line in terminal.summary(entries, verbose=config.get_verbosity() > 0):
            terminalreporter.write_line(line)
