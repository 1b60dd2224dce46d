"""The program of a test as a script that imports the test's file, for what no single graph shows."""

from __future__ import annotations

import ast
import inspect
import sys
from typing import TYPE_CHECKING, Any

from pytest_fusealias.repro.script import Asked, NoScriptError, path_lines, program_script

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

_BODY = """def build():
    marks = [m for place in PLACES for m in marks_of(place) if m.name == "fusion_equiv" and "inputs" in m.kwargs]
    values = marks[0].kwargs["inputs"](device={device!r}, dtype={dtype}, seed={seed})
    return Program(TEST, kwargs={{**dict(zip({names!r}, values)), **{given}}})


def marks_of(place):
    marks = getattr(place, "pytestmark", ())
    return marks if isinstance(marks, (list, tuple)) else (marks,)"""
_BUILDER = """def build():
    return TEST(fusion_program=program, **{given})


def program(function, *args, state=None, drive=None, **kwargs):
    return Program(function, args, kwargs, state, drive)"""


def source_script(item: pytest.Function, asked: Asked, names: tuple[str, ...]) -> str:
    """Returns a script that imports the test's file and calls its function without pytest.

    `names` are the program's parameters, which `inputs` fills; none in builder form. Raises NoScriptError where the
    test takes what only pytest can give.
    """
    filled = {n: item.funcargs[n] for n in item._fixtureinfo.argnames if n not in names}  # noqa: SLF001 - as pytest's own call
    builder = filled.pop("fusion_program", None) is not None
    if not names and not builder:
        raise NoScriptError("the program lives inside of the test, and none of its graphs fails alone")
    text = _BUILDER if builder else _BODY
    spec = asked.spec
    build = text.format(
        device=spec.device, dtype=spec.dtype, seed=spec.seed, names=names, given=_literals(filled)
    )
    return program_script(asked, _imports(item), build)


def _imports(item: pytest.Function) -> list[str]:
    module: Any = item.module
    function: Any = item.function
    known = sys.modules.get(module.__name__)
    if known is None or known is not module:
        raise NoScriptError(f"{module.__name__} is not importable by that name")
    owner, _, name = str(function.__qualname__).rpartition(".")
    if "<locals>" in owner:
        raise NoScriptError(f"{function.__qualname__} is not at the top of its module")
    lines = [*path_lines(module.__name__), f"import {module.__name__} as tests"]
    if inspect.isclass(item.cls):
        return [*lines, f"TEST = tests.{owner}().{name}", f"PLACES = (TEST, tests.{owner}, tests)"]
    return [*lines, f"TEST = tests.{name}", "PLACES = (TEST, tests)"]


def _literals(values: Mapping[str, Any]) -> str:
    for name, value in values.items():
        try:
            same = ast.literal_eval(repr(value)) == value
        except (ValueError, SyntaxError):
            same = False
        if not same:
            raise NoScriptError(f"the test takes {name}, a {type(value).__name__} that only pytest can give")
    return repr(dict(values))
