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
# Values that the interface names and this version does not carry out; refusing beats ignoring.
_NOT_YET: dict[str, tuple[Any, ...]] = {
    "graphs": (True,),
}


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile. `fallback="error"` refuses programs of which anything would run eager inside the plan."""

    executor: str = "auto"
    bookend: bool = False
    graphs: str | bool = "auto"
    rng: str = "eager"
    fallback: str = "allow"
    verify: bool = True


def parse_options(given: Mapping[str, Any] | None, mode: str | None = None) -> Options:
    """Returns validated Options; raises OptionError naming the nearest known option or the known values."""
    given = dict(given or {})
    if mode not in (None, "default"):
        raise OptionError(f"mode={mode!r}: fusion_core has no such mode; known: 'default'")
    known = tuple(f.name for f in dataclasses.fields(Options))
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise OptionError(f"unknown option {name!r}{hint} Known: {', '.join(known)}")
        if not any(value is c or (isinstance(c, str) and value == c) for c in _CHOICES[name]):
            raise OptionError(f"{name}={value!r}: expected one of {', '.join(map(repr, _CHOICES[name]))}")
        if value in _NOT_YET.get(name, ()) and value is not False:
            raise OptionError(f"{name}={value!r} is not available in this version")
    return Options(**given)
