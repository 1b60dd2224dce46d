"""Compile a program until it is steady, note what that took and gave, and time it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator

import torch

from pytest_fusealias.build import Program, build
from pytest_fusealias.compilers import Compiled, Compiler, compile_session
from pytest_fusealias.decision import median
from pytest_fusealias.dynamo import DynamoNotes, cold_caches, loud_limit
from pytest_fusealias.measure.memory import device_of
from pytest_fusealias.measure.time import Runner, threads, time_program
from pytest_fusealias.measurement import NotMeasuredError
from pytest_fusealias.model import Spec
from pytest_fusealias.run import quiet
from pytest_fusealias.timing import Benchmark, Budget, CompileFacts

# No more than Dynamo's own limit of recompilations, after which it runs eager without a word.
_MOST_WARM_CALLS = 8
_STEADY_CALLS = 2
_COMPILATIONS = 3  # a bound on compile seconds fails where each of so many exceeds it
_WARM_EAGER_CALLS = 2


def measure_bench(
    factory: Callable[[], Program], spec: Spec, compiler: Compiler, budget: Budget, *, timed: bool
) -> Benchmark:
    """Returns the compile facts of a program, and its times where `timed`.

    Raises NotMeasuredError where a call raises or the device is unknown to us.
    """
    device = torch.device(device_of(build(factory, spec.seed), spec))
    attempts: list[float] = []
    with quiet(), threads(budget.threads) if device.type == "cpu" else contextlib.nullcontext():
        while True:
            with _session(compiler, spec, budget):
                program = build(factory, spec.seed)
                compiled, facts = _compile(program, spec, compiler, budget)
                attempts.append(facts.seconds)
                if _is_too_slow(facts, spec) and len(attempts) < _COMPILATIONS:
                    continue
                facts = dataclasses.replace(facts, seconds=min(attempts), attempts=tuple(attempts))
                return _timed(program, compiled, facts, spec, budget) if timed else Benchmark(facts)


def _timed(program: Program, compiled: Runner, facts: CompileFacts, spec: Spec, budget: Budget) -> Benchmark:
    if not facts.is_steady:
        return Benchmark(facts, None, f"every one of {_MOST_WARM_CALLS} calls compiled something")
    eager = Runner(program, program.call, spec)
    try:
        with _named("eager"):
            for _ in range(_WARM_EAGER_CALLS):
                eager()
        device = torch.device(device_of(program, spec))
        return Benchmark(facts, time_program(program, (eager, compiled), device, budget, spec.max_time_ratio))
    except NotMeasuredError as reason:
        return Benchmark(facts, None, str(reason))


@contextlib.contextmanager
def _session(compiler: Compiler, spec: Spec, budget: Budget) -> Iterator[None]:
    """A fresh compiler, with empty disk caches where compile seconds matter. It draws random numbers in its own way."""
    cold = budget.cold_compile or spec.max_compile_s is not None
    with (
        compile_session(compiler, eager_rng=False),
        cold_caches() if cold else contextlib.nullcontext(),
        loud_limit(),
    ):
        yield


def _compile(program: Program, spec: Spec, compiler: Compiler, budget: Budget) -> tuple[Runner, CompileFacts]:
    """Calls the compiled program until calls compile nothing more."""
    notes = DynamoNotes()
    with _named("compiled"):
        compiled = Compiled(compiler, program.call, spec.dynamic, counts_executions=False)
        run = Runner(program, compiled.call, spec)
        compiling: list[float] = []
        steady: list[float] = []
        seen = -1
        while len(steady) < _STEADY_CALLS and len(compiling) + len(steady) < _MOST_WARM_CALLS:
            seconds = _elapsed(run)
            done = notes.compilations + (compiled.compilation().graphs or 0)
            if done != seen:
                compiling.append(seconds)
                steady.clear()
            else:
                steady.append(seconds)
            seen = done
    knows = not compiler.takes_function or notes.compilations > 0
    regions, kernels = compiled.fused()
    cost = sum(compiling) - len(compiling) * (median(steady) if steady else 0.0)
    return run, CompileFacts(
        seconds=max(cost, 0.0),
        graphs=compiled.compilation().graphs,
        graph_breaks=notes.graph_breaks if knows else None,
        recompile_reasons=notes.recompile_reasons if knows else None,
        regions=regions,
        kernels=kernels,
        is_steady=len(steady) == _STEADY_CALLS,
        is_cold=budget.cold_compile or spec.max_compile_s is not None,
    )


def _elapsed(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _is_too_slow(facts: CompileFacts, spec: Spec) -> bool:
    return spec.max_compile_s is not None and facts.seconds > spec.max_compile_s


@contextlib.contextmanager
def _named(arm: str) -> Iterator[None]:
    try:
        yield
    except NotMeasuredError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a program raises, it cannot be measured
        raise NotMeasuredError(f"the {arm} program raises {type(error).__name__} ({error})") from None
