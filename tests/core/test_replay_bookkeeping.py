"""What a replay assumes of a call, with a recorder that needs no device.

A recording runs its plan again on the tensors that it was recorded with, and writes into the same results, as a CUDA graph does.
"""

from contextlib import nullcontext
from threading import Lock

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fusion_core.replay import replay as module
from fusion_core.replay.lending import Loan
from fusion_core.replay.recording import Recording, _sources
from fusion_core.replay.replay import Replay
from fusion_core.runtime.plan import build_plan


class Graph:
    """Runs the plan on what was given, and writes over what it returned before."""

    def __init__(self, plan, given):
        self.plan, self.given = plan, given
        clones = [g.clone() if isinstance(g, torch.Tensor) else g for g in given]
        self.values = plan.run(list(given))
        for argument, clone in zip(given, clones, strict=True):
            if isinstance(argument, torch.Tensor):
                argument.copy_(clone)  # recording runs nothing

    def replay(self):
        for value, new in zip(self.values, self.plan.run(list(self.given)), strict=True):
            if isinstance(value, torch.Tensor) and value.data_ptr() != new.data_ptr():
                value.copy_(new)


class FakeRecorder:
    def __init__(self, _device):
        self.lock = Lock()

    def record(self, plan, given, lent_from=None):
        graph = Graph(plan, given)
        sources, copied, lent = _sources(graph.values, given, lent_from)
        made.append(Recording(graph, self, sources, copied, Loan(lent)))
        return made[-1]


made = []


@pytest.fixture
def recordings(monkeypatch):
    made.clear()
    device = torch.device("cpu", 0)
    monkeypatch.setattr(module, "Recorder", FakeRecorder)
    monkeypatch.setattr(module, "run_watched", lambda plan, arguments, waits: plan.run(arguments))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nullcontext())
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _index: 7, raising=False)
    module._recorders.clear()
    return device


def replayed(device, function, *examples, written=(), lent_from=None, mode="fake"):
    graph = make_fx(lambda *given: function(*given), tracing_mode=mode)(*examples).graph
    steps = [n for n in graph.nodes if n.op == "call_function"]
    plan = build_plan(graph, steps, compile_program=None, attributes=None, guarded=False)
    return Replay(plan, frozenset(written), device, copies=True, lent_from=lent_from)


def test_an_input_that_keeps_moving_is_copied_to_where_it_is_expected(recordings):
    run = replayed(recordings, lambda x: (x * 2,), torch.zeros(3))
    held = []
    for number in range(8):
        x = torch.full((3,), float(number))
        (value,) = run.run([x])
        held.append((x, value))
        assert torch.equal(value, x * 2)
    assert len(made) == 1
    assert all(torch.equal(value, x * 2) for x, value in held)


def test_sizes_that_alternate_have_buffers_of_their_own(recordings):
    def function(size, x):
        return (torch.ops.aten.mul.Tensor(x, size),)

    run = replayed(recordings, function, 3, torch.zeros(3), mode="symbolic")
    for number in range(12):
        size = (3, 5)[number % 2]
        x = torch.full((size,), float(number))
        (value,) = run.run([size, x])
        assert torch.equal(value, x * size)
    assert len(made) == 2


def test_sizes_that_never_come_again_keep_no_memory(recordings):
    run = replayed(
        recordings, lambda n, x: (torch.ops.aten.mul.Tensor(x, n),), 3, torch.zeros(3), mode="symbolic"
    )
    for number in range(60):
        for size in (3, 100 + number):
            x = torch.full((size,), float(number))
            assert torch.equal(run.run([size, x])[0], x * size)
    assert not run.stopped
    assert len(run._seen) <= module.MOST_RECORDINGS
    assert len(made) == 1


def test_each_stream_has_buffers_of_its_own(recordings, monkeypatch):
    run = replayed(recordings, lambda x: (x * 2,), torch.zeros(3))
    for number in range(10):
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _index, n=number: n % 2)
        x = torch.full((3,), float(number))
        assert torch.equal(run.run([x])[0], x * 2)
    first, second = made
    assert first.recorder is not second.recorder
    assert first.graph.given[0].data_ptr() != second.graph.given[0].data_ptr()


def test_an_input_with_gaps_now_and_then_costs_no_recording(recordings):
    run = replayed(recordings, lambda x: (x * 2,), torch.zeros(3, 5))
    held = []
    for number in range(30):
        x = torch.full((3, 8), float(number))[:, :5] if number % 4 == 3 else torch.full((3, 5), float(number))
        held.append(x)
        assert torch.equal(run.run([x])[0], x * 2)
    assert len(made) == 1


def test_what_backward_gets_stays_while_it_is_held(recordings):
    weight = torch.tensor([2.0, 3.0])
    run = replayed(recordings, lambda x, w: ((x * w).sum(), x * 5), torch.zeros(2), weight, lent_from=1)
    x = torch.tensor([1.0, 1.0])
    for number in range(4):
        x.fill_(float(number))
        loss, saved = run.run([x, weight])
        assert torch.equal(saved, x * 5)
        del saved
    assert [s.kind for s in made[0].outputs] == ["clone", "lent"]
    x.fill_(1)
    loss, saved = run.run([x, weight])
    x.fill_(2)
    other = run.run([x, weight])  # a recording would write over what is held
    assert saved.tolist() == [5.0, 5.0]
    assert other[1].tolist() == [10.0, 10.0]
    assert loss == 5
    assert len(made) == 1


def test_few_recordings_lend(recordings):
    run = replayed(recordings, lambda x: (x.sum(), x * 5), torch.zeros(2), lent_from=1)
    inputs = [torch.full((2,), float(n)) for n in range(4)]
    run._copies = False
    for _ in range(3):
        for x in inputs:
            _, saved = run.run([x])
            assert torch.equal(saved, x * 5)
            del saved
    assert [bool(r.loan) for r in made] == [True] * module.MOST_LENDERS + [False] * 2


def test_writes_happen_once_a_call(recordings):
    run = replayed(
        recordings,
        lambda x, acc: (torch.ops.aten.copy_.default(acc, acc + x),),
        torch.zeros(2),
        torch.zeros(2),
        written=(1,),
    )
    x, acc = torch.ones(2), torch.zeros(2)
    for number in range(1, 6):
        (value,) = run.run([x, acc])
        assert acc.tolist() == [float(number)] * 2
        assert value.data_ptr() == acc.data_ptr()
    assert len(made) == 1
