"""Time on a CUDA device: events, cold and warm caches, host time, and the same verdicts as on the CPU."""

import pytest
import torch

from pytest_fusealias.baseline.machine import machine_key
from pytest_fusealias.build import Program
from pytest_fusealias.check import check
from pytest_fusealias.compilers import resolve
from pytest_fusealias.devices import gate_of
from pytest_fusealias.measure.bench import measure_bench
from pytest_fusealias.measure.throttle import Throttle
from pytest_fusealias.model import Outcome, Spec
from pytest_fusealias.timing import Budget

pytestmark = pytest.mark.gpu


def make():
    return Program(
        lambda x, y: torch.exp(x + y) * x, tuple(torch.randn(2**24, device="cuda") for _ in range(2))
    )


def make_in_place():
    x, y = torch.randn(2**24, device="cuda"), torch.randn(2**24, device="cuda")

    def step():
        x.mul_(0.999).add_(y)

    return Program(step, state=[x, y])


def padded(graph, _inputs):
    waste = torch.ones(2**24, device="cuda")

    def run(*inputs):
        waste.exp()
        return graph(*inputs)

    return run


@pytest.mark.parametrize("factory", [make, make_in_place])
@pytest.mark.parametrize("backend", ["eager", "fusion_core"])
def test_correct_backend_passes(factory, backend):
    verdict = check(factory, Spec(backend=backend, max_time_ratio=1.3, max_recompiles=0))
    assert verdict["time"].outcome is Outcome.PASS, verdict["time"]
    time = verdict.bench.time
    assert (time.clock, time.device, time.cache) == ("cuda", "cuda", "warm")
    assert time.host_s[0] > 0
    assert time.host_s[1] > 0


@pytest.mark.parametrize("factory", [make, make_in_place])
def test_slower_backend_is_caught(factory):
    verdict = check(factory, Spec(backend=padded, max_time_ratio=1.1))
    assert [c.check for c in verdict.failures] == ["time"]


def test_fusion_is_measured_as_faster():
    spec = Spec(backend="fusion_core", max_time_ratio=0.9, min_regions=1)
    verdict = check(make, spec, gate=gate_of("cuda"))
    assert verdict.outcome is Outcome.PASS, verdict
    assert verdict.bench.facts.kernels == 1


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_state_of_the_cache_shows(cache):
    """4 MiB lie in the L2 cache, unless something else was written before each call."""

    def make_small():
        return Program(lambda x: x.add_(1), (torch.zeros(2**20, device="cuda"),))

    bench = measure_bench(
        make_small,
        Spec(backend="eager", max_time_ratio=9.0),
        resolve("eager"),
        Budget(cache=cache),
        timed=True,
    )
    assert bench.time.cache == cache
    assert bench.time.eager_s > 0


def test_machine_key_and_lock_name_the_device():
    name = torch.cuda.get_device_name()
    assert machine_key("cuda", "fusion_core").startswith(name) or name in machine_key("cuda", "fusion_core")
    assert "driver unknown" not in machine_key("cuda", "inductor")
    with gate_of("cuda").exclusive(), gate_of("cuda:0").shared():  # one process: its own lock never stops it
        pass


def test_throttling_is_watched_or_said_to_be_unknown():
    throttle = Throttle(torch.device("cuda"))
    assert throttle.known in ("watched", "not known")
    assert throttle.is_throttled() in (True, False)


def test_backward_and_optimizer_step():
    def make_training():
        module = torch.nn.Linear(1024, 1024, device="cuda")
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
        x = torch.randn(256, 1024, device="cuda")

        def step():
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()

        return Program(step, state=[module, optimizer])

    bench = measure_bench(
        make_training, Spec(backend="eager", max_time_ratio=9.0), resolve("eager"), Budget(), timed=True
    )
    assert bench.time is not None, bench.reason
