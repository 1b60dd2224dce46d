"""A plan as straight-line Python: what is known of its steps is written into the code, and not looked up at every call.

The plan itself runs the same steps one by one where they are watched or recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from keyword import iskeyword
from typing import Any

import torch

from fusion_core.errors import KernelError
from fusion_core.runtime.plan import AnyStep, Plan
from fusion_core.runtime.steps import CopyBack, Free, Launch, RunEager, SlotRef, has_slots, laid_out
from fusion_core.runtime.views import View

_ATEN = torch.ops.aten
# The same operators by a shorter way: an overload called by name matches its arguments against a schema each time.
_SHORTER: dict[Any, Callable[..., Any]] = {
    _ATEN.mm.default: torch.mm,
    _ATEN.addmm.default: torch.addmm,
    _ATEN.bmm.default: torch.bmm,
    _ATEN.baddbmm.default: torch.baddbmm,
    _ATEN.cat.default: torch.cat,
    _ATEN.index_select.default: torch.index_select,
    _ATEN.index_copy_.default: torch.Tensor.index_copy_,
}


def straight_line(plan: Plan) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Returns a function that does what `plan.run` does."""
    names: dict[str, Any] = {}
    lines = [
        "def run(arguments):",
        f"slots = [*arguments, {'None, ' * (plan.slots - plan.inputs)}]",
        "arguments.clear()",
        *(f"slots[{index}] = {_named(constant, names)}" for index, constant in plan.constants),
        *(line for step in plan.steps for line in _lines(step, names)),
        f"return ({''.join(f'{_expression(o, names)}, ' for o in plan.outputs)})",
    ]
    exec(compile("\n ".join(lines), "<plan of fusion_core>", "exec"), names)
    run: Callable[[list[Any]], tuple[Any, ...]] = names.pop("run")  # its globals would keep it, and it them
    return run


def _lines(step: AnyStep, names: dict[str, Any]) -> Iterator[str]:
    if isinstance(step, Free):
        yield f"{''.join(f'slots[{i}] = ' for i in step.slots)}None"
    elif isinstance(step, View):
        yield f"slots[{step.output}] = {_named(step.of, names)}(slots[{step.base}])"
    elif isinstance(step, CopyBack):
        yield f"slots[{step.target}].copy_(slots[{step.source}])"
    elif isinstance(step, RunEager):
        yield f"slots[{step.output}] = {_call(step, names)}"
    elif isinstance(step, Launch) and not (step.inputs.are_checked or step.likes or step.consumed):
        yield from _launch(step, names)
    else:
        yield f"{_named(step.run, names)}(slots)"


def _launch(step: Launch, names: dict[str, Any]) -> Iterator[str]:
    """Does what `Launch.run` does, where nothing has to be looked at before."""
    given = f"[{', '.join(f'slots[{i}]' for i in step.inputs.slots)}]"
    yield f"try: results = {_named(step.kernel, names)}({_named(step.inputs.viewed, names)}({given}))"
    yield f"except {_named(KernelError, names)}: {_named(step.run_eager, names)}(slots)"
    made = [
        f"slots[{spec.slot}] = {_named(laid_out, names)}(results[{i}], {_named(spec, names)})"
        for i, spec in enumerate(step.outputs)
    ]
    read = [f"slots[{value}] = slots[{target}]" for value, target in (*step.forwarded, *step.reused)]
    yield f"else: {'; '.join([*made, *read, 'results = None'])}"


def _call(step: RunEager, names: dict[str, Any]) -> str:
    given = [_expression(a, names) for a in step.arguments]
    if step.function is operator.getitem:
        return f"{given[0]}[{given[1]}]"
    given += [_keyword(name, _expression(a, names)) for name, a in step.keywords.items()]
    return f"{_named(_SHORTER.get(step.function, step.function), names)}({', '.join(given)})"


def _keyword(name: str, code: str) -> str:
    """Some operators have keywords, such as `from`, that Python has too."""
    return f"**{{{name!r}: {code}}}" if iskeyword(name) else f"{name}={code}"


def _expression(value: Any, names: dict[str, Any]) -> str:
    """Returns the code of an argument: slots, and nests of lists that have slots in them, are written out."""
    if isinstance(value, SlotRef):
        return f"slots[{value.index}]"
    if has_slots(value) and isinstance(value, dict):
        return f"{{{', '.join(f'{k!r}: {_expression(v, names)}' for k, v in value.items())}}}"
    if has_slots(value):
        return f"[{', '.join(_expression(v, names) for v in value)}]"
    return repr(value) if value is None or type(value) in (bool, int) else _named(value, names)


def _named(value: Any, names: dict[str, Any]) -> str:
    name = f"v{len(names)}"
    names[name] = value
    return name
