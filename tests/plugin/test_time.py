"""Bounds on time, compilation and fusion: injected regressions are caught, correct programs pass, doubt is no pass."""

import time

import pytest
import torch

from pytest_fusealias.build import Program
from pytest_fusealias.check import check
from pytest_fusealias.compilers import resolve
from pytest_fusealias.locks import DeviceGate
from pytest_fusealias.measure import bench as bench_module
from pytest_fusealias.measure import clocks
from pytest_fusealias.measure import time as time_module
from pytest_fusealias.measure.bench import measure_bench
from pytest_fusealias.measure.time import time_program
from pytest_fusealias.measurement import NotMeasuredError
from pytest_fusealias.model import Outcome, Spec
from pytest_fusealias.timing import Budget


def work(x, y):
    for _ in range(100):
        x = x + y
    return x


def make():
    return Program(work, (torch.randn(64), torch.randn(64)))


def make_long():
    return Program(lambda x: x.tanh().exp().sum(), (torch.randn(400_000),))


def padded(graph, _inputs):
    """Does much more than the graph asks for, and nothing that shows in results."""
    waste = torch.ones(400_000)

    def run(*inputs):
        waste.exp()
        return graph(*inputs)

    return run


def sleepy(graph, _inputs):
    """Takes no CPU time, only time."""

    def run(*inputs):
        time.sleep(2e-3)
        return graph(*inputs)

    return run


def slow_to_compile(graph, _inputs):
    time.sleep(0.6)
    return graph


# -- max_time_ratio ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_correct_backend_passes(backend):
    verdict = check(make_long, Spec(backend=backend, max_time_ratio=1.5))
    assert verdict["time"].outcome is Outcome.PASS, verdict["time"]
    assert verdict.bench.time.clock == "cpu"
    assert verdict.bench.time.spent_s < 6


def test_slower_backend_is_caught():
    verdict = check(make_long, Spec(backend=padded, max_time_ratio=1.2))
    assert [c.check for c in verdict.failures] == ["time"]
    (finding,) = verdict["time"].findings
    assert finding.path == "ratio"
    assert "max_time_ratio=1.2" in finding.text


def test_waiting_is_time_too():
    verdict = check(make_long, Spec(backend=sleepy, max_time_ratio=1.2))
    assert verdict.bench.time.clock == "wall"
    assert verdict["time"].outcome is Outcome.FAIL


def test_expected_failure():
    spec = Spec(backend=padded, max_time_ratio=1.2, xfail_checks={"time": "known"})
    verdict = check(make_long, spec)
    assert verdict.outcome is Outcome.PASS
    assert [c.check for c in verdict.expected] == ["time"]


def test_same_function_is_as_fast_as_itself():
    """Two names for one function: the strictest limit that the floor allows."""
    program = make_long()
    arm = lambda: program.call(*program.args)  # noqa: E731
    found = time_program(program, (arm, arm), torch.device("cpu"), Budget(), 1.0)
    assert found.interval.low < 1.02
    assert found.threshold(1.0) == pytest.approx(1.02, abs=0.01)


def test_state_is_put_back_before_each_call():
    """A counter that would overflow its table at the eleventh call."""
    seen = []

    def make_cache():
        cache, position = torch.zeros(10, 4), torch.zeros((), dtype=torch.long)

        def step(x):
            seen.append(int(position))
            cache[position] = x
            position.add_(1)

        return Program(step, (torch.ones(4),), state=[cache, position])

    bench = measure_bench(
        make_cache,
        Spec(backend=lambda f: f, max_time_ratio=9.0),
        resolve(lambda f: f),
        Budget(seconds=2.0),
        timed=True,
    )
    assert bench.time is not None
    assert max(seen) < 10
    assert len(seen) > 100


def test_backward_is_timed():
    def make_training():
        module = torch.nn.Linear(64, 64)
        return Program(lambda x: module(x).tanh(), (torch.randn(32, 64),), state=module)

    forward = measure(make_training, "eager", train=False)
    both = measure(make_training, "eager")
    assert both.time.eager_s > 1.3 * forward.time.eager_s


def measure(factory, backend, **arguments):
    spec = Spec(backend=backend, max_time_ratio=5.0, **arguments)
    return measure_bench(factory, spec, resolve(backend), Budget(seconds=1.0), timed=True)


def test_threads_are_as_before():
    before = torch.get_num_threads()
    measure(make, "eager")
    assert torch.get_num_threads() == before


def test_several_threads_are_timed_by_the_wall():
    spec = Spec(backend="eager", max_time_ratio=9.0)
    bench = measure_bench(make, spec, resolve("eager"), Budget(seconds=0.5, threads=2), timed=True)
    assert (bench.time.clock, bench.time.threads) == ("wall", 2)


def test_recompilation_while_timed_fails():
    calls = [0]

    def make_growing():
        def step(x):
            calls[0] += 1
            return x * (2 if calls[0] < 40 else 3)

        return Program(step, (torch.randn(8),))

    def counting(graph, _inputs):
        return graph

    # the global counter is a guarded value that changes at each call: Dynamo compiles again and again
    verdict = check(make_growing, Spec(backend=counting, max_time_ratio=100.0, checks=("compiled",)))
    assert verdict["time"].outcome is Outcome.FAIL
    assert verdict["time"].findings[0].path == "recompile"


def test_program_that_compiles_at_every_call_has_no_steady_time():
    """Dynamo gives up after some recompilations and runs eager: that would be as fast as eager, and prove nothing."""

    def make_naming():
        state = {"name": "n"}

        def step(x):
            return x * len(state["name"])

        def drive(call, x):
            state["name"] += "n"
            return call(x)

        return Program(step, (torch.ones(3),), state=state, drive=drive)

    verdict = check(
        make_naming, Spec(backend="eager", max_time_ratio=50.0, max_recompiles=2, checks=("compiled",))
    )
    assert verdict["time"].outcome is Outcome.FAIL, verdict["time"]
    assert verdict["time"].findings[0].path == "recompile"
    assert verdict["recompiles"].outcome is Outcome.FAIL


# -- what cannot be decided ----------------------------------------------------------------------------------------


def test_program_that_is_too_long_for_the_budget():
    def make_sleeping():
        return Program(lambda x: (time.sleep(0.05), x + 1)[1], (torch.ones(1),))

    bench = measure_bench(
        make_sleeping,
        Spec(backend=lambda f: f, max_time_ratio=1.1),
        resolve(lambda f: f),
        Budget(seconds=0.1),
        timed=True,
    )
    assert bench.time is None
    assert "raise --fusion-bench-max-time to" in bench.reason


def test_noise_is_not_measured(monkeypatch):
    """A clock that reports random times: nothing can be told from it."""
    torch.manual_seed(0)
    monkeypatch.setattr(
        clocks.HostClock,
        "time",
        lambda self, calls, before: [float(t) for t in torch.rand(len(calls)).exp() * 1e-3],
    )
    verdict = check(make, Spec(backend="eager", max_time_ratio=1.0), Budget(seconds=0.3))
    assert verdict["time"].outcome is Outcome.NOT_MEASURED
    assert "too noisy to tell" in verdict["time"].reason


def test_clock_that_goes_backwards():
    readings = iter(range(10_000_000, 0, -7))
    clock = clocks.HostClock("wall", lambda: next(readings))
    with pytest.raises(NotMeasuredError, match="went backwards"):
        clock.time([lambda: None], lambda: None)


@pytest.mark.parametrize("moment", ["second call"])
def test_program_that_raises_when_called_again(moment):
    def make_once():
        used = []

        def once(x):
            if used:
                raise RuntimeError("only once")
            used.append(1)
            return x + 1

        return Program(once, (torch.ones(2),))

    verdict = check(make_once, Spec(backend=lambda f: f, max_time_ratio=1.1, allow_fallback=True))
    assert verdict["time"].outcome is Outcome.NOT_MEASURED, moment
    assert "raises RuntimeError (only once)" in verdict["time"].reason


def test_resized_memory_is_not_measured():
    def make_resizing():
        x = torch.zeros(2)

        def grow():
            x.resize_(x.numel() + 1)

        return Program(grow, state=[x])

    verdict = check(
        make_resizing, Spec(backend=lambda f: f, max_time_ratio=1.1, allow_fallback=True, checks=("raises",))
    )
    assert verdict["time"].outcome is Outcome.NOT_MEASURED
    assert "resizes the memory" in verdict["time"].reason


def test_no_lock_no_time(tmp_path):
    (tmp_path / "file").write_text("")
    gate = DeviceGate("cpu", tmp_path / "file" / "locks")
    verdict = check(make, Spec(backend="eager", max_time_ratio=9.0, min_regions=None), Budget(), gate)
    assert verdict["time"].outcome is Outcome.NOT_MEASURED
    assert "no lock: cannot open the lock" in verdict["time"].reason


def test_skipped_bounds_are_not_measured():
    verdict = check(make, Spec(backend="eager", max_time_ratio=9.0, max_recompiles=0), Budget(skipped=True))
    assert {c.check for c in verdict.not_measured} == {"time", "recompiles"}


# -- compilation ---------------------------------------------------------------------------------------------------


def test_compile_seconds(monkeypatch):
    verdict = check(make, Spec(backend=slow_to_compile, max_compile_s=0.5))
    assert [c.check for c in verdict.failures] == ["compile_time"]
    assert len(verdict.bench.facts.attempts) == 3
    assert check(make, Spec(backend="eager", max_compile_s=20.0)).outcome is Outcome.PASS


def test_one_slow_compilation_is_no_regression(monkeypatch):
    """The least of three compilations counts: the first may meet a busy machine."""
    delays = iter([0.7, 0.0, 0.0])

    def once_slow(graph, _inputs):
        time.sleep(next(delays, 0.0))
        return graph

    monkeypatch.setattr(bench_module, "cold_caches", bench_module.contextlib.nullcontext)
    bench = measure_bench(
        make, Spec(backend=once_slow, max_compile_s=0.6), resolve(once_slow), Budget(), timed=False
    )
    assert len(bench.facts.attempts) == 2
    assert bench.facts.seconds < 0.6


def make_breaking():
    def broken(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    return Program(broken, (torch.ones(3),))


def make_state_that_appears():
    module = torch.nn.Linear(4, 4)
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    scale = {}

    def step(x):
        scale.setdefault("k", 0)
        scale["k"] = 1
        return x * scale["k"]

    return Program(step, (torch.ones(4),), state=scale)


def make_changing_shape():
    sizes = iter([3, 4, 5] + [5] * 10_000)

    def drive(call, x):
        return call(x[: next(sizes)])

    return Program(lambda x: x * 2, (torch.ones(8),), drive=drive)


@pytest.mark.parametrize(
    ("factory", "bounds", "check_name", "outcome"),
    [
        (make_breaking, {"max_graph_breaks": 0}, "graph_breaks", Outcome.FAIL),
        (make_breaking, {"max_graph_breaks": 1}, "graph_breaks", Outcome.PASS),
        (make, {"max_graph_breaks": 0}, "graph_breaks", Outcome.PASS),
        (make_changing_shape, {"max_recompiles": 0}, "recompiles", Outcome.FAIL),
        (make_changing_shape, {"max_recompiles": 2}, "recompiles", Outcome.PASS),
        (make, {"max_recompiles": 0}, "recompiles", Outcome.PASS),
    ],
)
def test_counts_of_dynamo(factory, bounds, check_name, outcome):
    verdict = check(factory, Spec(backend="eager", checks=("compiled",), **bounds))
    assert verdict[check_name].outcome is outcome, verdict[check_name]


def test_reason_of_recompilation_is_told():
    verdict = check(make_changing_shape, Spec(backend="eager", checks=("compiled",), max_recompiles=0))
    assert "size mismatch" in verdict["recompiles"].findings[0].text


@pytest.mark.parametrize(
    ("backend", "least", "outcome"),
    [
        ("fusion_core", 1, Outcome.PASS),
        ("fusion_core", 50, Outcome.FAIL),
        ("aot_eager", 1, Outcome.NOT_MEASURED),
    ],
)
def test_regions(backend, least, outcome):
    verdict = check(make, Spec(backend=backend, min_regions=least))
    assert verdict["regions"].outcome is outcome


def test_compiler_without_dynamo_knows_no_counts():
    verdict = check(
        make, Spec(backend=lambda f: f, max_recompiles=0, max_graph_breaks=0, allow_fallback=True)
    )
    assert {c.check for c in verdict.not_measured} == {"recompiles", "graph_breaks"}
    assert "does not use Dynamo" in verdict["recompiles"].reason


def test_throttled_quads_are_dropped_and_made_again(monkeypatch):
    class Hot:
        known = "watched"
        asked = 0

        def __init__(self, _device):
            pass

        def is_throttled(self):
            Hot.asked += 1
            return Hot.asked in (1, 4)  # before the first quad and the third

    monkeypatch.setattr(time_module, "Throttle", Hot)
    program = make_long()
    arm = lambda: program.call(*program.args)  # noqa: E731
    found = time_program(program, (arm, arm), torch.device("cpu"), Budget(), None)
    assert (found.dropped, len(found.log_ratios), found.throttling) == (2, 10, "watched")
