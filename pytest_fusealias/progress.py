"""Progress of a measuring run: what is measured now, how many tests are left, how long that may take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from pytest_fusealias.units import seconds_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_EVERY_S = 5.0


class Progress:
    """Writes a line at most every few seconds, where a test starts; lives on the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._total = 0
        self._done = 0
        self._begun = time.monotonic()
        self._said = self._begun

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Counts the tests of a run without xdist."""
        self._total = len(session.items)
        self._begun = time.monotonic()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: Sequence[str]) -> None:
        """Counts the tests of a run with xdist: each worker has collected all of them."""
        del node
        self._total = len(ids)
        self._begun = time.monotonic()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Says what starts, if the last line is some seconds old."""
        now = time.monotonic()
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or now - self._said < _EVERY_S or self._config.get_verbosity() < 0:
            return
        self._said = now
        reporter.ensure_newline()
        reporter.write_line(progress_text(nodeid, self._done, self._total, now - self._begun))

    def pytest_runtest_logfinish(self) -> None:
        """Counts a finished test."""
        self._done += 1


def progress_text(node_id: str, done: int, total: int, elapsed_s: float) -> str:
    """Returns one line of progress; the time left is that of the tests so far, carried on."""
    left = max(total - done, 0)
    text = f"fusealias: measuring {node_id}; {done} of {total} tests done, {left} left"
    if done:
        text += f", about {seconds_text(round(elapsed_s / done * left, 1))} to go"
    return text
