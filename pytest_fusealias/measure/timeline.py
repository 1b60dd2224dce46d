"""From the allocator's events to live bytes, and to the values that live at the peak."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch.autograd.profiler import record_function
from torch.overrides import TorchFunctionMode

from pytest_fusealias.measurement import Allocation, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from fusion_core.memory.events import AllocatorEvent

_LINE = "line "
_AUTOGRAD = "autograd::engine::evaluate_function: "
_KEPT = "left by earlier calls"


def timeline_of(events: Iterable[AllocatorEvent], kept_bytes: int) -> Timeline:
    """Returns the timeline of one call's events; `kept_bytes` were held before it."""
    live, highest = kept_bytes, kept_bytes
    points = [live]
    held: dict[int, Allocation] = {}
    at_peak: tuple[Allocation, ...] = ()
    for event in events:
        live += event.nbytes
        points.append(live)
        if event.nbytes > 0:
            held[event.address] = Allocation(event.nbytes, source_of(event.inside))
        else:
            held.pop(event.address, None)
        if live > highest:
            highest, at_peak = live, tuple(held.values())
    before = (Allocation(kept_bytes, _KEPT),) if kept_bytes > 0 else ()
    return Timeline(tuple(points), (*before, *at_peak))


def source_of(inside: tuple[str, ...]) -> str:
    """Returns the operator that took memory, what called it, and the user's line where a label tells it."""
    lines = [name.removeprefix(_LINE) for name in inside if name.startswith(_LINE)]
    operators = [name.removeprefix(_AUTOGRAD) for name in inside if not name.startswith(_LINE)]
    called = operators[-1] if operators else "outside of operators"
    outer = next((name for name in operators if name != called), "")
    text = f"{called} in {outer}" if outer else called
    return f"{text} ({lines[-1]})" if lines else text


class LineLabels(TorchFunctionMode):
    """Labels what torch functions do, in the profile, with the line of the user's code that calls them."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs the function inside a label."""
        del types
        with record_function(_LINE + _users_line()):
            return func(*args, **(kwargs or {}))


def _users_line() -> str:
    """Returns `file.py:12` of the nearest frame outside of torch and this plugin."""
    frame: Any = sys._getframe(2)  # noqa: SLF001 - there is no public way that is as cheap
    while frame is not None and _is_inner(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    if frame is None:
        return "no line of yours"
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"


def _is_inner(module: str) -> bool:
    return module.split(".")[0] in ("torch", "pytest_fusealias", "contextlib", "pluggy", "_pytest")
