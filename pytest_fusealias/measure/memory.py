"""Measure the memory of a program in eager and compiled, after warm-up, until two calls agree."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusion_core import reach
from fusion_core.collection import frozen_heap
from pytest_fusealias.build import Program, build, seed_everything
from pytest_fusealias.compilers import Compiled, Compiler, compile_session, forget_compiled
from pytest_fusealias.measure.sessions import Meter, Seen, meter_for, profiled
from pytest_fusealias.measure.timeline import LineLabels, timeline_of
from pytest_fusealias.measurement import ArmMemory, MemoryComparison, NotMeasuredError, Timeline
from pytest_fusealias.run import execute, quiet

if TYPE_CHECKING:
    from pytest_fusealias.model import Spec

MOST_CALLS = 5  # measured ones, of which two in a row must agree


def measure_memory(factory: Callable[[], Program], spec: Spec, compiler: Compiler) -> MemoryComparison:
    """Returns the memory of both arms; each builds a program of its own and calls it several times.

    Raises NotMeasuredError with the reason where memory cannot be measured, or where calls do not agree.
    """
    device = device_of(build(factory, spec.seed), spec)
    meter = meter_for(device)
    with frozen_heap():
        if device == "cuda":  # workspaces that libraries keep for the process are not the first arm's
            _eager_arm(factory, spec, meter, device)
        eager = _eager_arm(factory, spec, meter, device)
        compiled = _compiled_arm(factory, spec, compiler, meter, device)
    return MemoryComparison(device, meter.unit, eager, compiled)


def device_of(program: Program, spec: Spec) -> str:
    """Returns the type of the device on which a program computes."""
    devices = [r.tensor.device.type for r in reach.walk(program.roots())]
    computing = [d for d in devices if d != "cpu"] or devices
    return computing[0] if computing else str(spec.device or "cpu").split(":")[0]


def _eager_arm(factory: Callable[[], Program], spec: Spec, meter: Meter, device: str) -> ArmMemory:
    with quiet(), profiled():
        program = build(factory, spec.seed)
    arm = _Arm(program, program.call, spec, "eager")
    with quiet(), _no_threads(device):
        return _measured(arm, meter, device, labels=True)


def _compiled_arm(
    factory: Callable[[], Program], spec: Spec, compiler: Compiler, meter: Meter, device: str
) -> ArmMemory:
    forget_compiled()
    with compile_session(compiler, eager_rng=spec.rng == "eager"):
        with quiet(), profiled():
            program = build(factory, spec.seed)
        compiled = Compiled(compiler, program.call, spec.dynamic)
        arm = _Arm(program, compiled.call, spec, "compiled")
        return _measured(arm, meter, device, labels=False)


@dataclass(frozen=True, slots=True)
class _Arm:
    program: Program
    call: Callable[..., Any]
    spec: Spec
    name: str

    def run(self) -> Any:
        """Runs one call with its backward; raises NotMeasuredError where the program raises."""
        seed_everything(self.spec.seed)
        result, error = execute(self.program, self.call, self.spec)
        if error is not None:
            raise NotMeasuredError(f"the {self.name} program raises {error.type_name} ({error.message})")
        return result


def _measured(arm: _Arm, meter: Meter, device: str, *, labels: bool) -> ArmMemory:
    kept = meter.call(arm.run).left_bytes  # compiles, and makes the state that first calls make
    kept += meter.call(arm.run).left_bytes  # the first profile does not see frees of what was made before it
    with _no_threads(device):
        seen, kept = _agreed(arm, meter, kept)
    return ArmMemory(
        peak_bytes=kept + seen.peak_bytes,
        retained_bytes=kept + seen.held_bytes,
        kept_bytes=kept,
        leak_bytes=seen.left_bytes,
        timeline=_timeline(arm, seen, meter, kept, labels=labels),
    )


def _agreed(arm: _Arm, meter: Meter, kept: int) -> tuple[Seen, int]:
    """Returns the second of two calls in a row that agree, and what was held before it."""
    last: Seen | None = None
    tried: list[tuple[int, int, int]] = []
    for _ in range(MOST_CALLS):
        seen = meter.call(arm.run)
        if last is not None and seen.numbers == last.numbers:
            return seen, kept
        last = seen
        kept += seen.left_bytes
        tried.append(seen.numbers)
    peaks = ", ".join(str(peak) for peak, _, _ in tried)
    raise NotMeasuredError(
        f"{len(tried)} {arm.name} calls after warm-up do not agree: peaks of {peaks} B above their start"
    )


def _timeline(arm: _Arm, seen: Seen, meter: Meter, kept: int, *, labels: bool) -> Timeline:
    """Returns the timeline of one more call, in which the user's lines are known; of the measured one where it differs."""
    try:
        with LineLabels() if labels else nullcontext():
            events = meter.events(arm.run)
    except NotMeasuredError:
        events = seen.events
    timeline = timeline_of(events, kept)
    differs = seen.events and timeline.peak_bytes != kept + seen.peak_bytes
    return timeline_of(seen.events, kept) if differs else timeline


@contextmanager
def _no_threads(device: str) -> Iterator[None]:
    """Raises NotMeasuredError if a Python thread is started in the block: a profiler on CPU does not see its memory."""
    if device == "cuda":
        yield
        return
    started: list[str] = []
    start = threading.Thread.start

    def noted(self: threading.Thread) -> None:
        started.append(self.name)
        start(self)

    threading.Thread.start = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
    if started:
        raise NotMeasuredError(f"the call starts Python threads ({started[0]}), whose memory is not seen")
