"""The estimate of a plan equals what the allocator shows, to the byte."""

import memory_programs
import pytest
import torch

import fusion_core
from fusion_core import estimate_memory
from fusion_core.memory.events import ProfilerUnavailableError, recorded


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's own, raised while Dynamo traces optimizers
@pytest.mark.parametrize("bookend", [False, True], ids=["no bookend", "bookend"])
@pytest.mark.parametrize("case", memory_programs.CASES, ids=lambda c: c.name)
def test_estimate_equals_measurement(case, bookend):
    options = {"bookend": bookend}
    measured = memory_programs.measured(case, "cpu", lambda f: fusion_core.compile(f, **options))
    function, arguments = case.make("cpu")
    estimate = estimate_memory(function, *arguments, options=options)
    assert estimate.exact, estimate.doubts
    forward = estimate.forward
    assert (forward.peak.bytes, forward.left.bytes) == measured.forward
    if case.trains:
        assert (estimate.backward.peak.bytes, estimate.backward.left.bytes) == measured.backward


def test_bookend_changes_the_estimate():
    function, arguments = memory_programs.inputs(memory_programs.views, (64, 48))("cpu")
    inside, outside = (
        estimate_memory(function, *arguments, options={"bookend": bookend}) for bookend in (False, True)
    )
    assert [s.label for s in inside.forward.steps] != [s.label for s in outside.forward.steps]
    assert inside.exact
    assert outside.exact


def test_views_and_alias_outputs_cost_nothing():
    def step(x):
        x.mul_(2)
        return x.t(), x.view(-1)[3:]

    estimate = estimate_memory(step, torch.randn(32, 32))
    assert estimate.input_bytes == 4096
    assert estimate.retained_bytes == 0
    assert all(delta == 0 for delta in estimate.forward.deltas.values())


def test_cache_update_needs_no_memory_of_the_caches_size():
    def step(cache, new):
        cache[:, 3] = new

    estimate = estimate_memory(step, torch.zeros(64, 4096), torch.randn(64))
    assert estimate.peak_bytes <= 64 * 4 * 2


def scale(x, by):
    x.mul_(by)


def test_custom_operator_that_writes_in_place():
    with torch.library._scoped_library("fusealias_memory", "FRAGMENT") as library:
        library.define("scale_(Tensor(a!) x, float by) -> ()")
        library.impl("scale_", scale, "CPU")
        library.impl("scale_", lambda x, by: None, "Meta")

        def step(x):
            torch.ops.fusealias_memory.scale_(x, 2.0)
            return x.sum()

        estimate = estimate_memory(step, torch.randn(1000))
    assert estimate.exact, estimate.doubts
    assert estimate.retained_bytes == 4


def test_what_lives_at_the_peak_is_named_by_line():
    def step(x, w):
        hidden = x @ w
        return (hidden.sin() @ w).sum()

    estimate = estimate_memory(step, torch.randn(64, 64), torch.randn(64, 64))
    assert estimate.forward.at_peak
    assert {held.line.split(":")[0] for held in estimate.forward.at_peak} == {"test_memory.py"}
    text = str(estimate)
    assert "at the peak: 16384 B" in text
    assert f"peak {estimate.peak_bytes} B" in text


def test_dict_form_is_plain_and_keyed_by_step():
    import json

    estimate = estimate_memory(lambda x: (x @ x).relu().sum(), torch.randn(16, 16))
    plain = json.loads(json.dumps(estimate.to_dict()))
    (graph,) = plain["graphs"]
    assert plain["peak_bytes"] == estimate.peak_bytes
    assert sum(graph["deltas"].values()) == plain["retained_bytes"] == 4
    assert min(graph["deltas"].values()) < 0


def test_without_running_the_estimate_is_a_lower_bound_and_says_so():
    def step(a, b):
        a.copy_(a.sin() * b.cos())

    static = estimate_memory(step, torch.randn(256), torch.randn(256), run=False)
    assert not static.exact
    assert static.peak_bytes == 0 < estimate_memory(step, torch.randn(256), torch.randn(256)).peak_bytes
    assert "lower bounds" in str(static)


def test_graphs_between_which_python_runs_are_not_exact():
    def step(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    estimate = estimate_memory(step, torch.randn(8))
    assert not estimate.exact
    assert "2 graphs run" in estimate.doubts[0]


def test_refused_graph_is_named():
    def step(x):
        x.expand(4, 3).add_(1)
        return x

    with pytest.raises(RuntimeError, match="single memory location"):
        estimate_memory(step, torch.randn(3))


def test_function_and_state_are_left_as_they_were():
    module = torch.nn.BatchNorm1d(4)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    estimate_memory(lambda x: module(x).sum(), torch.randn(8, 4))
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())


def test_active_profiler_is_refused_before_anything_is_observed():
    with recorded(), pytest.raises(ProfilerUnavailableError, match="active already"):
        estimate_memory(torch.sin, torch.randn(3))


def test_explain_tells_what_the_plan_needs():
    explanation = fusion_core.explain(lambda x: (x @ x).sum(0), torch.randn(16, 16))
    assert explanation.memory.retained_bytes == 64
    assert "memory: at least" in str(explanation)
    assert explanation.to_dict()["memory"]["retained_bytes"] == 64


def test_buffers_are_freed_at_their_last_use_and_a_view_keeps_its_base():
    def step(x):
        a = x @ x
        b = a @ x  # last use of `a` by an operator; its view lives on
        view = a[0]
        c = b @ x
        return c.sum() + view.sum()

    graph = estimate_memory(step, torch.randn(32, 32)).forward
    deltas = graph.deltas
    early = next(label for label in deltas if label.endswith("free mm"))
    assert deltas[early] == 0  # its view is read later
    assert graph.left.bytes == 4


def test_saved_activations_are_freed_during_backward():
    def step(x, w):
        for _ in range(3):
            x = (x @ w).sin()
        return x.sum()

    estimate = estimate_memory(step, torch.randn(64, 64), torch.randn(64, 64, requires_grad=True))
    assert estimate.exact, estimate.doubts
    freed = [d for d in estimate.backward.deltas.values() if d < 0]
    assert -sum(freed) >= 3 * 64 * 64 * 4
    assert estimate.backward.left.bytes < 0  # more is given back than the gradient takes
