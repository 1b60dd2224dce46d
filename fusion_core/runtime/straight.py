"""A plan as straight-line Python: what is known of its steps is written into the code, and not looked up at every call.

The plan itself runs the same steps one by one where they are watched or recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from keyword import iskeyword
from typing import Any

import torch

from fusion_core.errors import KernelError
from fusion_core.runtime.kept import KeptViews, Make
from fusion_core.runtime.packed import ListLaunch, PackedLaunch
from fusion_core.runtime.plan import AnyStep, Plan
from fusion_core.runtime.steps import (
    CopyBack,
    Free,
    Inputs,
    InputSpec,
    Launch,
    RunEager,
    SlotRef,
    has_slots,
    laid_out,
)
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
    code = _Code(plan)
    steps = [line for step in plan.steps for line in code.lines(step)]
    kept = [f"kept = {code.named(KeptViews(tuple(code.kept)).of)}(arguments)"] if code.kept else []
    lines = [
        "def run(arguments):",
        *kept,
        f"slots = [*arguments, {'None, ' * (plan.slots - plan.inputs)}]",
        "arguments.clear()",
        *(f"slots[{index}] = {code.named(constant)}" for index, constant in plan.constants),
        *steps,
        f"return ({''.join(f'{code.expression(o)}, ' for o in plan.outputs)})",
    ]
    exec(compile("\n ".join(lines), "<plan of fusion_core>", "exec"), code.names)
    run: Callable[[list[Any]], tuple[Any, ...]] = code.names.pop(
        "run"
    )  # its globals would keep it, and it them
    return run


class _Code:
    """The code of a plan's steps; `names` are the objects in it, `kept` the views of arguments that it keeps, by number."""

    def __init__(self, plan: Plan) -> None:
        self.names: dict[str, Any] = {}
        self.kept: dict[tuple[int, Make], int] = {}
        self._held: set[int] = set()
        self._unread = _unread(plan)
        self._argument = _arguments(plan)

    def lines(self, step: AnyStep) -> Iterator[str]:
        """Yields the lines of one step, indented as deep as they stand in each other."""
        if isinstance(step, Free):
            yield from self._free(step)
        elif isinstance(step, View):
            yield f"slots[{step.output}] = {self.named(step.of)}(slots[{step.base}])"
        elif isinstance(step, CopyBack):
            yield f"slots[{step.target}].copy_(slots[{step.source}])"
        elif isinstance(step, RunEager):
            yield f"slots[{step.output}] = {self._call(step)}"
        elif isinstance(step, ListLaunch):
            yield from self._list(step)
        elif isinstance(step, PackedLaunch) and not any(i.are_checked for i in step.inputs):
            yield from self._packed(step)
        elif isinstance(step, Launch) and not (step.likes or step.consumed):
            yield from self._launch(step)
        else:
            yield f"{self.named(step.run)}(slots)"

    def _free(self, step: Free) -> Iterator[str]:
        """What views are kept of is the caller's, and lives until the end."""
        gone = [i for i in step.slots if i not in self._held and i not in self._unread]
        if gone:
            yield f"{''.join(f'slots[{i}] = ' for i in gone)}None"

    def _launch(self, step: Launch) -> Iterator[str]:
        """Does what `Launch.run` does."""
        run_eager, deeper = f"{self.named(step.run_eager)}(slots)", ""
        misfits = [self._misfit(spec) for spec in step.inputs.specs if not spec.trusted]
        if misfits:
            yield f"if {' or '.join(misfits)}: {run_eager}"
            yield "else:"
            deeper = " "
        made = [
            f"slots[{spec.slot}] = {self.named(laid_out)}(results[{i}], {self.named(spec)})"
            for i, spec in enumerate(step.outputs)
        ]
        after = [*made, *self._read_in(step.reused), *self._forwarded(step), "results = None"]
        yield f"{deeper}try: results = {self.named(step.kernel)}([{self._given(step.inputs)}])"
        yield f"{deeper}except {self.named(KernelError)}: {run_eager}"
        yield f"{deeper}else: {'; '.join(after)}"

    def _packed(self, step: PackedLaunch) -> Iterator[str]:
        """Does what `PackedLaunch.run` does."""
        given = ", ".join(f"[{self._given(inputs)}]" for inputs in step.inputs)
        yield f"if not {self.named(step.launch)}([{given}]): {self.named(step.run_eager)}(slots)"
        yield from self._forwarded(step)

    def _list(self, step: ListLaunch) -> Iterator[str]:
        """Does what `ListLaunch.run` does."""
        tensors = ", ".join(f"slots[{i}]" for i in step.reads)
        numbers = "".join(f", {self.expression(n)}" for n in step.numbers)
        yield f"{self.named(step.function)}([{tensors}]{numbers})"
        yield from self._forwarded(step)

    def _forwarded(self, step: Launch | PackedLaunch | ListLaunch) -> list[str]:
        return self._read_in(pair for pair in step.forwarded if pair[0] not in self._unread)

    def _read_in(self, pairs: Iterable[tuple[int, int]]) -> list[str]:
        return [f"slots[{value}] = slots[{target}]" for value, target in pairs]

    def _given(self, inputs: Inputs) -> str:
        return ", ".join(map(self._view, inputs.specs))

    def _view(self, spec: InputSpec) -> str:
        """Views are kept of arguments whose memory is laid out in the same way at every call."""
        if spec.view is None:
            return f"slots[{spec.slot}]"
        if not (spec.trusted and spec.fixed and spec.slot in self._argument):
            return f"{self.named(spec.view)}(slots[{spec.slot}])"
        position = self._argument[spec.slot]
        self._held.add(position)
        return f"kept[{self.kept.setdefault((position, spec.view), len(self.kept))}]"

    def _misfit(self, spec: InputSpec) -> str:
        """`fits` says the same; the common case does without the call."""
        tensor, strides, fits = f"slots[{spec.slot}]", self.named(spec.strides), self.named(spec.fits)
        other = f"{tensor}.layout is not {self.named(torch.strided)} or {tensor}.stride() != {strides}"
        return f"(({other}) and not {fits}({tensor}))"

    def _call(self, step: RunEager) -> str:
        given = [self.expression(a) for a in step.arguments]
        if step.function is operator.getitem:
            return f"{given[0]}[{given[1]}]"
        given += [_keyword(name, self.expression(a)) for name, a in step.keywords.items()]
        return f"{self.named(_SHORTER.get(step.function, step.function))}({', '.join(given)})"

    def expression(self, value: Any) -> str:
        """Returns the code of an argument: slots, and nests of lists that have slots in them, are written out."""
        if isinstance(value, SlotRef):
            return f"slots[{value.index}]"
        if has_slots(value) and isinstance(value, dict):
            return f"{{{', '.join(f'{k!r}: {self.expression(v)}' for k, v in value.items())}}}"
        if has_slots(value):
            return f"[{', '.join(map(self.expression, value))}]"
        return repr(value) if value is None or type(value) in (bool, int) else self.named(value)

    def named(self, value: Any) -> str:
        """Returns the name by which the code knows an object."""
        name = f"v{len(self.names)}"
        self.names[name] = value
        return name


def _keyword(name: str, code: str) -> str:
    """Some operators have keywords, such as `from`, that Python has too."""
    return f"**{{{name!r}: {code}}}" if iskeyword(name) else f"{name}={code}"


def _unread(plan: Plan) -> frozenset[int]:
    """Values that live in a written argument, and that nobody reads there."""
    read = {o.index for o in plan.outputs if isinstance(o, SlotRef)}
    forwarded: set[int] = set()
    for step in plan.steps:
        if isinstance(step, (Launch, PackedLaunch, ListLaunch)):
            forwarded.update(value for value, _ in step.forwarded)
        read.update(_reads(step))
    return frozenset(forwarded - read)


def _reads(step: AnyStep) -> Iterator[int]:
    if isinstance(step, (Launch, PackedLaunch, ListLaunch)):
        yield from step.reads
        yield from (target for _, target in step.forwarded)
        if isinstance(step, Launch):
            yield from (target for _, target in step.reused)
    elif isinstance(step, RunEager):
        yield from step.reads
    elif isinstance(step, View):
        yield step.base
    elif isinstance(step, CopyBack):
        yield from (step.target, step.source)


def _arguments(plan: Plan) -> dict[int, int]:
    """By slot, the position of the argument that lies there: its own, and those of values that live in it after a write."""
    found = {i: i for i in range(plan.inputs)}
    for step in plan.steps:
        if isinstance(step, (Launch, PackedLaunch, ListLaunch)):
            found.update({value: found[target] for value, target in step.forwarded if target in found})
    return found
