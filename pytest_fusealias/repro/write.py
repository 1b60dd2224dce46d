"""Find a script that shows a failed check, reduce it where asked, and write it."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_fusealias.build import build
from pytest_fusealias.compilers import resolve
from pytest_fusealias.model import Outcome
from pytest_fusealias.repro.graphs import Recorder
from pytest_fusealias.repro.probe import Probe, fails_alone
from pytest_fusealias.repro.script import HEAD, Asked, NoScriptError, data_files, graph_script
from pytest_fusealias.repro.shrink import shrunk
from pytest_fusealias.repro.source import source_script
from pytest_fusealias.run import run_compiled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from pytest_fusealias.build import Program
    from pytest_fusealias.model import Spec, Verdict
    from pytest_fusealias.repro.graphs import GraphCase

MINIFY_SECONDS = 120.0
_MOST_GRAPHS = 16
# Checks that results show, worst first: a reduction holds on to the first of those that failed, else it would end at
# whatever else is wrong with the same backend.
_WORST_FIRST = ("raises", "mutation", "alias", "values", "grads", "identity", "layout", "meta", "rng")


@dataclass(frozen=True, slots=True)
class _Found:
    """A script that fails, the files it reads, and its graph, where it holds one."""

    text: str
    files: dict[str, bytes]
    case: GraphCase | None = None

    def described(self) -> str:
        """Returns what the script holds."""
        if self.case is None:
            return "imports the test's file"
        return f"{self.case.operations} operations, {len(self.case.inputs)} inputs"


def write_repro(
    path: Path,
    item: pytest.Function,
    factory: Callable[[], Program],
    verdict: Verdict,
    spec: Spec,
    *,
    names: tuple[str, ...],
    minify: bool,
) -> str:
    """Writes a script to `path` that shows a failed check of the verdict without the plugin; returns what to tell.

    The script was run in a new process and failed there. Otherwise nothing is left, and the reason is returned.
    """
    failed = {c.check for c in verdict.failures if c.outcome is Outcome.FAIL}
    checks = tuple(check for check in _WORST_FIRST if check in failed)
    if not checks or spec.backend is None:
        return f"none: a script does not show {', '.join(c.check for c in verdict.failures)}"
    asked = Asked(item.nodeid, resolve(spec.backend), spec, checks)
    try:
        _require_ours(path)
        with Probe() as probe:
            search = _Search(asked, probe, f"{path.stem}-")
            found = search.script(_recorded(factory, asked), lambda: source_script(item, asked, names))
            if minify and found.case is not None:
                found = search.minified(found.case)
        _write(path, found)
    except (NoScriptError, OSError) as error:
        return f"none: {error}"
    if not fails_alone(path):
        path.unlink()
        return "none: the check fails in a forked process only, not in a new one"
    return f"{path} ({found.described()})"


@dataclass(frozen=True, slots=True)
class _Search:
    """Looks for a script that fails; `data` begins the names of the files that scripts read."""

    asked: Asked
    probe: Probe
    data: str

    def script(self, cases: list[GraphCase], whole: Callable[[], str]) -> _Found:
        """Returns a script for the worst check, or else for any: of one graph, or of the whole program."""
        worst = dataclasses.replace(self.asked, checks=self.asked.checks[:1])
        for asked in dict.fromkeys((worst.checks, self.asked.checks)):
            wanted = dataclasses.replace(self.asked, checks=asked)
            for case in cases[:_MOST_GRAPHS]:
                for candidate in (seeded(case), case):
                    if self._fails(candidate, wanted):
                        return self._graph(candidate, self.asked)
        text = whole()
        if self.probe.fails(text):
            return _Found(text, {})
        raise NoScriptError(f"the check does not fail outside of this test run ({self.probe.said()})")

    def minified(self, case: GraphCase) -> _Found:
        """Returns the script of the smallest case for which the worst check that `case` shows still fails."""
        alone = [dataclasses.replace(self.asked, checks=(check,)) for check in self.asked.checks]
        worst = next(asked for asked in alone if self._fails(case, asked))
        return self._graph(shrunk(case, lambda smaller: self._fails(smaller, worst), MINIFY_SECONDS), worst)

    def _fails(self, case: GraphCase, asked: Asked) -> bool:
        try:
            found = self._graph(case, asked)
        except NoScriptError:
            return False
        return self.probe.fails(found.text, found.files)

    def _graph(self, case: GraphCase, asked: Asked) -> _Found:
        return _Found(graph_script(asked, case, self.data), data_files(case, self.data), case)


def seeded(case: GraphCase) -> GraphCase:
    """Returns the case with numbers from a seed for its own."""
    return dataclasses.replace(
        case, storages=tuple(dataclasses.replace(s, recorded=None) for s in case.storages)
    )


def _recorded(factory: Callable[[], Program], asked: Asked) -> list[GraphCase]:
    if asked.compiler.takes_function:
        return []
    recorder = Recorder(asked.compiler)
    with contextlib.suppress(Exception):  # a program that breaks off may have given a graph before
        run_compiled(build(factory, asked.spec.seed), asked.spec, recorder.as_compiler())
    return recorder.cases


def _require_ours(path: Path) -> None:
    """Raises NoScriptError where a file of somebody else's has the script's name."""
    if path.is_file() and not path.read_text(errors="replace").startswith(HEAD):
        raise NoScriptError(f"{path} is there and is no repro script; move it away")


def _write(path: Path, found: _Found) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, content in found.files.items():
        (path.parent / name).write_bytes(content)
    waiting = path.with_suffix(".py.part")
    waiting.write_text(found.text, encoding="utf-8")
    waiting.replace(path)
