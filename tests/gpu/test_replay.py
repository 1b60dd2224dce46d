"""Replay as CUDA graphs: what eager computes, once a call, in memory that no later call overwrites."""

import warnings
from contextlib import nullcontext

import pytest
import torch

import fusion_core
from fusion_core.replay import replay
from fusion_core.replay.recording import Recorder

pytestmark = pytest.mark.gpu


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def ramp(*shape, start=0.0):
    return torch.arange(start, start + torch.Size(shape).numel(), device="cuda").reshape(shape) / 7


def update(p, m, g):
    m.mul_(0.9).add_(g, alpha=0.1)
    p.sub_(m.sqrt() * 0.01)
    g.mul_(2)
    s = p.sum()
    m.add_(s)


def update_state(count=3, size=50):
    return [ramp(size, start=float(i + 1)) for i in range(count)]


def test_writes_are_replayed_once_a_call(replays):
    compiled = fusion_core.compile(update)
    ours, theirs = update_state(), update_state()
    for _ in range(6):
        compiled(*ours)
        update(*theirs)
        same(ours, theirs)
    assert len(replays) == 5


def test_off(replays):
    compiled = fusion_core.compile(update, graphs=False)
    ours = update_state()
    for _ in range(4):
        compiled(*ours)
    assert not replays


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.SGD])
@pytest.mark.parametrize("moving", [False, True], ids=["gradients_stay", "gradients_move"])
def test_optimizers(replays, kind, moving):
    keywords = {"momentum": 0.9} if kind is torch.optim.SGD else {"capturable": True}

    def build():
        torch.manual_seed(0)
        shapes = [(300, 70), (70,), (33, 5), (1,), (128, 128), (9,)]
        params = [torch.randn(s, device="cuda", requires_grad=True) for s in shapes]
        return params, kind(params, lr=1e-2, foreach=True, **keywords)

    (ours, optimizer), (theirs, reference) = build(), build()
    step = fusion_core.compile(optimizer.step)
    keep = []
    for number in range(12):
        for params in (ours, theirs):
            torch.manual_seed(number)
            for p in params:
                gradient = torch.randn_like(p)
                if moving or p.grad is None:
                    p.grad = gradient
                    keep.append(gradient)
                else:
                    p.grad.copy_(gradient)
        step()
        reference.step()
        same(ours, theirs)
    assert bool(replays) != moving


def test_outputs_stay_what_they_were(replays):
    def function(x, y):
        z = x * 2 + y
        y.add_(1)
        return z, z.view(-1), x.sum(), y

    compiled = fusion_core.compile(function, graphs=True)
    ours, theirs = ramp(4, 5), ramp(4, 5)
    held = []
    for number in range(8):
        x = ramp(4, 5, start=float(number))  # it moves
        held.append(x)
        found, expected = compiled(x, ours), function(x, theirs)
        same(found, expected)
        held.append((found, [t.clone() for t in expected]))
        assert found[1].data_ptr() == found[0].data_ptr()
        assert found[3].data_ptr() == ours.data_ptr()
        found[0].add_(1)
        same(found[1], expected[1] + 1)
        found[0].sub_(1)
    for entry in held[1::2]:
        same(list(entry[0][:3]), entry[1][:3])
    assert len(replays) >= 4


def test_outputs_that_show_inputs(replays):
    def function(x):
        y = x.sin()
        x.copy_(y.cos() + y.amax())
        return x[1:], x.t(), y[0]

    compiled = fusion_core.compile(function, graphs=True)
    ours, theirs = ramp(3, 4), ramp(3, 4)
    for _ in range(5):
        found, expected = compiled(ours), function(theirs)
        same(found, expected)
        assert found[0].data_ptr() == ours[1:].data_ptr()
    assert replays


def test_read_inputs_that_move_and_are_returned(replays):
    def function(x, acc):
        acc.add_(x.sin()).mul_(x.sum())
        return x.view(-1), acc.sum()

    compiled = fusion_core.compile(function, graphs=True)
    ours, theirs = ramp(3, 4), ramp(3, 4)
    held = []
    for number in range(7):
        x = ramp(3, 4, start=float(number))
        held.append(x)
        found, expected = compiled(x, ours), function(x, theirs)
        same(found, expected)
        assert found[0].data_ptr() == x.data_ptr()
    same(ours, theirs)
    assert replays


def test_shapes_that_alternate(replays):
    compiled = fusion_core.compile(update)
    small, large = (update_state(size=20), update_state(size=20)), (update_state(), update_state())
    for _ in range(5):
        for ours, theirs in (small, large):
            compiled(*ours)
            update(*theirs)
            same(ours, theirs)
    assert len(replays) >= 6


def test_two_plans_share_a_pool(replays):
    def other(p, q, r):
        p.add_(q.softmax(0))
        q.mul_(p.sum()).div_(100)
        r.copy_(q + p.mean())

    a, b = fusion_core.compile(update), fusion_core.compile(other)
    ours, theirs = update_state(), update_state()
    for _ in range(6):
        torch._foreach_copy_(
            theirs, ours
        )  # what comes before is rounded otherwise, and each call magnifies it
        a(*ours), b(*ours)
        update(*theirs), other(*theirs)
        same(ours, theirs)
    assert len(replays) == 10


def test_memory_that_was_freed_and_came_back(replays):
    compiled = fusion_core.compile(update)
    theirs = update_state()
    for _ in range(6):
        ours = update_state()
        compiled(*ours)
        compiled(*ours)
        fresh = update_state()
        update(*fresh), update(*fresh)
        same(ours, fresh)
        del ours
    assert replays
    assert theirs[0].is_cuda


def test_inside_of_the_callers_own_recording(replays):
    compiled = fusion_core.compile(update)
    ours, theirs = update_state(), update_state()
    for _ in range(3):
        compiled(*ours)
        update(*theirs)
    before = len(replays)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compiled(*ours)
    assert len(replays) == before
    for _ in range(3):
        graph.replay()
        update(*theirs)
    same(ours, theirs)


def test_streams_of_the_caller(replays):
    compiled = fusion_core.compile(update)
    pairs = [(update_state(), update_state()) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in pairs]
    torch.cuda.synchronize()
    for _ in range(6):
        for stream, (ours, _) in zip(streams, pairs, strict=True):
            with torch.cuda.stream(stream):
                compiled(*ours)
    torch.cuda.synchronize()
    for ours, theirs in pairs:
        for _ in range(6):
            update(*theirs)
        same(ours, theirs)
    assert len({id(r) for r in replays}) == 2


def test_random_numbers(replays):
    def function(x, acc):
        acc.add_(torch.nn.functional.dropout(x, 0.5))
        acc.mul_(1 + torch.rand_like(x).amax())
        return acc.sum()

    compiled = fusion_core.compile(function, graphs=True)
    x, ours, theirs = ramp(64), ramp(64), ramp(64)
    torch.manual_seed(3)
    expected = [function(x, theirs).clone() for _ in range(6)]
    after = torch.rand(3, device="cuda")
    torch.manual_seed(3)
    found = [compiled(x, ours) for _ in range(6)]
    same(found, expected)
    same(torch.rand(3, device="cuda"), after)
    assert len(replays) >= 4


def test_training_step(replays):
    def build():
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
        )
        return model.cuda()

    ours, theirs = build(), build()
    compiled = fusion_core.compile(lambda x: ours(x).square().mean(), graphs=True)
    for number in range(6):
        x = ramp(8, 16, start=float(number))
        found, expected = compiled(x), theirs(x).square().mean()
        found.backward()
        expected.backward()
        torch.testing.assert_close(found, expected)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    assert replays


def twins():
    """Returns a compiled model and its copy for eager."""
    torch.manual_seed(2)
    models = [
        torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).cuda()
        for _ in range(2)
    ]
    models[1].load_state_dict(models[0].state_dict())
    return models, fusion_core.compile(lambda x: models[0](x).tanh().square().sum(), graphs=True)


def same_gradients(models):
    for a, b in zip(*(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_what_forward_saves_is_neither_copied_out_nor_in(replays):
    models, compiled = twins()
    x = ramp(8, 16)
    for _ in range(6):
        found, expected = compiled(x), models[1](x).tanh().square().sum()
        found.backward()
        expected.backward()
        same_gradients(models)
    forward = next(r for r in replays if any(s.kind == "lent" for s in r.outputs))
    backward = [r for r in replays if r is not forward]
    assert backward
    lent = {s.value.data_ptr() for s in forward.outputs if s.kind == "lent"}
    assert len(lent) >= 3
    assert forward.loan.may_be_overwritten()


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_several_forwards_before_their_backwards(replays, ahead):
    models, compiled = twins()
    waiting = []
    for number in range(8 + ahead):
        x = ramp(8, 16, start=float(number))
        waiting.append((compiled(x), models[1](x).tanh().square().sum()))
        if len(waiting) >= ahead:
            found, expected = waiting.pop(number % len(waiting))
            torch.testing.assert_close(found, expected)
            found.backward()
            expected.backward()
            same_gradients(models)
    assert replays


def test_a_backward_that_is_called_again_after_the_next_forward(replays):
    models, compiled = twins()
    kept = []
    for number in range(7):
        x = ramp(8, 16, start=float(number))
        pair = compiled(x), models[1](x).tanh().square().sum()
        for loss in pair:
            loss.backward(retain_graph=True)
        if kept:
            for loss in kept:
                loss.backward()
        kept = pair if number % 2 else []
        same_gradients(models)
    assert replays


def test_forwards_without_backward_and_other_shapes_between(replays):
    models, compiled = twins()
    for number in range(9):
        for rows in (8, 5):
            x = ramp(rows, 16, start=float(number))
            found, expected = compiled(x), models[1](x).tanh().square().sum()
            torch.testing.assert_close(found, expected)
            if number % 3 != 2:
                found.backward()
                expected.backward()
                same_gradients(models)
    assert replays


def test_values_that_a_hook_takes_away_or_autograd_does_not_let_go_of(replays):
    class Keeping(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.y = x @ w
            ctx.save_for_backward(w)
            return ctx.y.sin()

        @staticmethod
        def backward(ctx, gradient):
            return (gradient * ctx.y.cos()) @ ctx.saved_tensors[0].t(), None

    weight = ramp(16, 16) / 50
    compiled = fusion_core.compile(lambda x: Keeping.apply(x, weight).square().sum(), graphs=True)
    pack, unpack = lambda t: t.cpu(), lambda t: t.cuda()
    for number in range(8):
        ours, theirs = (ramp(8, 16, start=float(number)).requires_grad_() for _ in range(2))
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack) if number % 2 else nullcontext():
            found = compiled(ours)
        expected = Keeping.apply(theirs, weight).square().sum()
        found.backward()
        expected.backward()
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("graphs", ["auto", True])
def test_where_the_host_takes_part(replays, graphs):
    def scalar(p, m, lr):
        p.sub_(m * lr)
        m.mul_(lr)
        p.add_(p.sum())

    def picks(p, m, _lr):
        m.add_(p[p > 1].sum())
        p.mul_(2).add_(m.amax())
        m.mul_(0.5)

    for function in (scalar, picks):
        compiled = fusion_core.compile(function, graphs=graphs)
        ours, theirs = update_state(2), update_state(2)
        for number in range(5):
            compiled(*ours, torch.tensor(0.1 * number))
            function(*theirs, torch.tensor(0.1 * number))
            same(ours, theirs)
        if function is scalar:
            assert not replays  # of the other one, the parts between its graph breaks may be


@torch.library.custom_op("fusealias_test::sync", mutates_args=())
def sync(x: torch.Tensor) -> torch.Tensor:
    return x * float(x.sum().item() > 0)


@sync.register_fake
def _(x):
    return torch.empty_like(x)


def synchronizing(p, m, r):
    m.mul_(0.5)
    p.add_(sync(m))
    m.sub_(p.mean())
    r.copy_(p * m)


@pytest.mark.filterwarnings("ignore:graphs=True. a plan is no longer replayed:RuntimeWarning")
@pytest.mark.parametrize("graphs", ["auto", True])
def test_a_recording_that_fails(replays, graphs):
    compiled = fusion_core.compile(synchronizing, graphs=graphs)
    ours, theirs = update_state(), update_state()
    for _ in range(5):
        compiled(*ours)
        synchronizing(*theirs)
        same(ours, theirs)
    assert not replays
    other = fusion_core.compile(update)
    for _ in range(4):
        other(*ours)
        update(*theirs)
        same(ours, theirs)
    assert replays  # the device records as before


def test_out_of_memory_while_recording(replays, monkeypatch):
    def no_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Recorder, "record", no_memory)
    compiled = fusion_core.compile(update, graphs=True)
    ours, theirs = update_state(), update_state()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(4):
            compiled(*ours)
            update(*theirs)
            same(ours, theirs)
    assert (
        sum("no longer replayed: the recording failed: CUDA out of memory." in str(w.message) for w in told)
        == 1
    )
    assert not replays


def test_addresses_that_never_come_again(replays, monkeypatch):
    monkeypatch.setattr(replay, "MOST_MISSES", 5)
    compiled = fusion_core.compile(update)
    held = []
    for _ in range(12):
        ours, theirs = update_state(), update_state()
        held.append(ours)
        compiled(*ours)
        update(*theirs)
        same(ours, theirs)
    assert not replays


def test_overlap_that_appears_later(replays):
    def function(a, b, c):
        a.mul_(2)
        c.add_(b.sum())
        b.add_(1)

    compiled = fusion_core.compile(function)
    base, twin = ramp(40), ramp(40)
    for low in (20, 20, 20, 5, 5, 5, 20):
        compiled(base[:10], base[low : low + 10], base[30:])
        function(twin[:10], twin[low : low + 10], twin[30:])
        same(base, twin)
    assert replays
