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
