"""Hooks that other plugins and conftest files may implement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@pytest.hookspec
def pytest_fusealias_register_backends(config: pytest.Config) -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return backends by name.

    Each is a Dynamo backend `(graph_module, example_inputs)` or a compiler `(function) -> function`. A name given here
    wins over one that torch knows.
    """


@pytest.hookspec(firstresult=True)
def pytest_fusealias_machine_key(config: pytest.Config, device: str) -> str | None:
    """Return what must be equal for numbers to be compared, in place of the plugin's own machine key.

    `device` is `cpu` or `cuda`. None leaves the plugin's: processor, driver, torch and backend versions.
    """


@pytest.hookspec
def pytest_fusealias_update_json(config: pytest.Config, document: dict[str, Any]) -> None:
    """Change the document of a run before it is saved: `machine_info`, `commit_info`, `benchmarks`."""
