"""Which plans are recorded as CUDA graphs, and which of their steps may run at the same time; nothing here needs a device."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import fusion_core
from fusion_core import explain
from fusion_core.replay.concurrency import Grouping
from fusion_core.replay.lending import Loan
from fusion_core.replay.obstacle import obstacle
from fusion_core.replay.recording import _sources
from fusion_core.runtime.packed import PackedLaunch
from fusion_core.runtime.steps import Free, Inputs, InputSpec, Launch, RunEager


def graph_of(function, *arguments, device="cuda"):
    """The aten graph of `function`, as if on a CUDA device."""
    graph = make_fx(function, tracing_mode="fake")(*arguments).graph
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            with value.fake_mode:
                node.meta["val"] = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device=device
                )
    return graph


def reason(function, *arguments, kind="inference", steps=20, asked=False, rebuilt=(), **device):
    graph = graph_of(function, *arguments, **device)
    return obstacle(graph, kind, steps=steps, asked=asked, rebuilt=frozenset(rebuilt))


X = torch.ones(4)


def writes(x, y):
    x.add_(y)
    return (x,)


def test_a_plan_that_only_writes_needs_no_asking():
    assert reason(writes, X, X, rebuilt=[0]) == ""


@pytest.mark.parametrize("asked", [False, True])
def test_nothing_on_the_host_is_recorded(asked):
    assert reason(writes, X, X, device="cpu", asked=asked) == "the input x_1 is on cpu"


@pytest.mark.parametrize("asked", [False, True])
def test_results_that_decide_sizes_are_not_recorded(asked):
    graph = graph_of(writes, X, X)
    with graph.inserting_before(graph.output_node()):
        graph.call_function(torch.ops.aten.nonzero.default, (next(iter(graph.nodes)),))
    found = obstacle(graph, "inference", steps=20, asked=asked)
    assert found == "the host needs the result of aten.nonzero.default"


@pytest.mark.parametrize(("index", "found"), [([2, 0], ""), ([True, False, True, True], "the host needs")])
def test_only_masks_decide_sizes(index, found):
    assert reason(lambda x, i: (x[i],), X, torch.tensor(index), asked=True).startswith(found)


def test_new_results_are_replayed_only_if_asked_for():
    def function(x):
        x.add_(1)
        return (x * 2,)

    assert reason(function, X) == "it returns new tensors; it is replayed with graphs=True only"
    assert reason(function, X, asked=True) == ""


def test_training_is_replayed_only_if_asked_for():
    assert "graphs=True only" in reason(writes, X, X, kind="forward")
    assert reason(writes, X, X, kind="forward", asked=True) == ""


def test_few_steps_are_not_worth_it():
    assert reason(writes, X, X, steps=1, rebuilt=[0]) == "it has 1 step(s), which a replay would not speed up"


def test_explain_tells_the_reason():
    told = explain(lambda x: x.add_(1), torch.ones(3))
    assert told.not_replayed == ("the input arg0_1 is on cpu",)
    assert "not replayed x1: the input arg0_1 is on cpu" in str(told)
    assert explain(lambda x: x.add_(1), torch.ones(3), options={"graphs": False}).not_replayed == (
        "graphs=False",
    )


# Steps


def launch(*reads, written=(), result=None, reduces=False):
    """A step that reads slots and writes some of them; `result` is a slot that it fills with a written one."""
    specs = tuple(InputSpec(slot, (1,), None, None) for slot in reads)
    forwarded = () if result is None else ((result, written[0]),)
    return Launch(None, Inputs(specs), reads, (), (), forwarded, (), (), tuple(written), reduces)


def groups(steps, slots):
    grouping, found = Grouping(), []
    for step in steps:
        done = grouping.add(step, slots)
        found += [done] if done else []
    rest = grouping.rest()
    return [list(g.steps) for g in (*found, *([rest] if rest else []))]


BASE = torch.arange(20.0)
SLOTS = [torch.ones(3), torch.ones(5), torch.ones(7), BASE[:10], BASE[5:15], BASE[10:], None]


def test_steps_on_other_memory_run_together():
    a, b, c = launch(0, written=[0]), launch(1, written=[1]), launch(2, written=[2])
    assert groups([a, b, c], SLOTS) == [[a, b, c]]


def test_readers_of_the_same_run_together():
    a, b = launch(0, 1, written=[0]), launch(1, 2, written=[2])
    assert groups([a, b], SLOTS) == [[a, b]]


@pytest.mark.parametrize(
    ("first", "second"), [((0, [0]), (0, [])), ((0, []), (0, [0])), ((0, [0]), (0, [0]))]
)
def test_a_write_keeps_its_place_among_readers_and_writers(first, second):
    a, b = launch(first[0], written=first[1]), launch(second[0], written=second[1])
    assert groups([a, b], SLOTS) == [[a], [b]]


def test_views_of_one_memory_are_seen():
    a, overlapping, beside = launch(3, written=[3]), launch(4), launch(5)
    assert groups([a, overlapping], SLOTS) == [[a], [overlapping]]
    assert groups([a, beside], SLOTS) == [[a, beside]]


def test_a_reader_of_a_result_waits():
    a, b = launch(0, written=[0], result=6), launch(6)
    assert groups([a, b], SLOTS) == [[a], [b]]


def test_reductions_and_eager_steps_stay_alone():
    a, b, c = launch(0), launch(1, reduces=True), launch(2)
    eager = RunEager(torch.neg, (), {}, (), 6)
    assert groups([a, b, c], SLOTS) == [[a], [b], [c]]
    assert groups([a, eager, c], SLOTS) == [[a], [eager], [c]]


def test_frees_wait_for_the_whole_group():
    a, b = launch(0), launch(1)
    grouping = Grouping()
    for step in (a, Free((0,)), b, Free((1,))):
        assert grouping.add(step, SLOTS) is None
    group = grouping.rest()
    assert group.steps == (a, b)
    assert [f.slots for f in group.frees] == [(0,), (1,)]
    assert group.largest_first() == [b, a]


def test_a_chain_of_small_kernels_does_not_wait_for_large_ones():
    """It takes as long as its kernels take one after the other, so it would end after all others if it began last."""
    specs = tuple(InputSpec(slot, (1,), None, None) for slot in (0, 1))
    chain = PackedLaunch(None, (Inputs(specs),), frozenset(), frozenset(), (0,), [3, 5], (0, 1), (), ())
    a, b = launch(3, written=[3]), launch(2, written=[2])
    grouping = Grouping()
    for step in (a, chain, b):
        assert grouping.add(step, SLOTS) is None
    group = grouping.rest()
    assert group.chains() == [chain]
    assert group.largest_first() == [a, b]


def test_the_steps_of_a_plan_tell_what_they_write():
    """On which the grouping relies."""
    from fusion_core.runtime import bind

    seen = []
    original = bind.bind_launch

    def spied(lowered, slot, kernel, trusted):
        step = original(lowered, slot, kernel, trusted)
        seen.append((step, {name for name, i in ((n.name, i) for n, i in slot.items()) if i in step.written}))
        return step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fusion_core.runtime.plan.bind_launch", spied)

        def update(p, m, g):
            m.mul_(0.9).add_(g)
            p.sub_(m.sum())

        torch._dynamo.reset()
        fusion_core.compile(update)(torch.ones(3), torch.ones(3), torch.ones(3))
    assert len(set().union(*(names for _, names in seen))) == 2
    assert any(step.reduces for step, _ in seen)


def test_what_a_recording_returns_is_copied_as_it_shows_memory():
    x, y = torch.arange(12.0).reshape(3, 4), torch.arange(6.0)
    alone, part, both = (x + 1).t(), (x + 2)[1:], x + 3
    values = alone, part, both, both.view(-1), x[1:], y, 7
    sources, storages, lent = _sources(values, [x, y])
    assert not lent
    assert [s.kind for s in sources] == ["clone", "copy", "copy", "copy", "view", "argument", "plain"]
    copies = [s.clone() for s in storages]
    made = [s.make([x, y], copies) for s in sources]
    for found, expected in zip(made[:-1], values[:-1], strict=True):
        assert torch.equal(found, expected)
        assert (found.stride(), found.storage_offset()) == (expected.stride(), expected.storage_offset())
    starts = [t.untyped_storage().data_ptr() for t in made[:-1]]
    assert starts[2] == starts[3]
    assert starts[4:] == [x.data_ptr(), y.data_ptr()]
    assert not set(starts[:4]) & {t.untyped_storage().data_ptr() for t in values[:-1]}


def test_what_backward_alone_gets_is_lent():
    x = torch.arange(12.0).reshape(3, 4)
    shown, own = x + 1, x + 2
    values = shown, shown.t(), own, own[1:], x.t(), 7
    sources, copied, lent = _sources(values, [x], lent_from=1)
    assert [s.kind for s in sources] == ["copy", "copy", "lent", "lent", "view", "plain"]
    assert [s.data_ptr() for s in lent] == [own.untyped_storage().data_ptr()]
    made = [s.make([x], [c.clone() for c in copied]) for s in sources[2:4]]
    assert [(m.data_ptr(), m.shape, m.stride()) for m in made] == [
        (v.data_ptr(), v.shape, v.stride()) for v in values[2:4]
    ]
    assert not any(m is v or m._is_view() for m, v in zip(made, values[2:4], strict=True))


class Saving(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, make):
        ctx.save_for_backward(make())
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None


def test_a_loan_is_out_while_anybody_holds_the_memory():
    value = torch.ones(3)
    loan = Loan([value.untyped_storage()])
    assert loan.may_be_overwritten()
    result = Saving.apply(
        torch.ones(3, requires_grad=True), value.detach
    )  # autograd holds it, and no name does
    assert not loan.may_be_overwritten()
    result.sum().backward(retain_graph=True)
    assert not loan.may_be_overwritten()
    result.sum().backward()
    assert loan.may_be_overwritten()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert not loan.may_be_overwritten()
    assert Loan([]).may_be_overwritten()
    view = value.detach()[1:]
    assert not loan.may_be_overwritten()
    del view
    assert loan.may_be_overwritten()
