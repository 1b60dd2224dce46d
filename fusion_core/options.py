"""The options of the compiler as one frozen object."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusion_core.errors import OptionError

_CHOICES: dict[str, tuple[Any, ...]] = {
    "executor": ("auto", "nvfuser", "reference"),
    "bookend": (True, False),
    "graphs": ("auto", True, False),
    "rng": ("eager", "fused"),
    "fallback": ("allow", "error"),
    "verify": (True, False),
}


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile. `fallback="error"` refuses programs of which anything would run eager inside the plan.

    `graphs=True` replays plans as CUDA graphs where they can be; "auto" those that only write inputs, where nothing that a
    replay overwrites can be in the user's hands.
    """

    executor: str = "auto"
    bookend: bool = False
    graphs: str | bool = "auto"
    rng: str = "eager"
    fallback: str = "allow"
    verify: bool = True


def parse_options(given: Mapping[str, Any] | None, mode: str | None = None) -> Options:
    """Returns validated Options; raises OptionError naming the nearest known option or the known values."""
    given = dict(given or {})
    if mode not in (None, "default", "reduce-overhead"):
        raise OptionError(
            f"mode={mode!r}: fusion_core has no such mode; known: 'default' and 'reduce-overhead' (graphs=True)"
        )
    if mode == "reduce-overhead":
        given.setdefault("graphs", True)
    known = tuple(f.name for f in dataclasses.fields(Options))
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise OptionError(f"unknown option {name!r}{hint} Known: {', '.join(known)}")
        if not any(value is c or (isinstance(c, str) and value == c) for c in _CHOICES[name]):
            raise OptionError(f"{name}={value!r}: expected one of {', '.join(map(repr, _CHOICES[name]))}")
    return Options(**given)
