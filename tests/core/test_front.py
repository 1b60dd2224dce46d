"""Options, compile, explain."""

import json

import pytest
import torch
from equal import ramp

import fusion_core
from fusion_core import OptionError, Options, explain
from fusion_core.errors import FallbackError
from fusion_core.options import parse_options


def ema(average, x):
    average.lerp_(x, 0.1)
    return average


def test_unknown_option_names_the_nearest():
    with pytest.raises(
        OptionError, match=r"unknown option 'exeutor'; did you mean 'executor'\? Known: executor, "
    ):
        fusion_core.compile(ema, exeutor="reference")


def test_wrong_value():
    with pytest.raises(OptionError, match="fallback='sometimes': expected one of 'allow', 'error'"):
        parse_options({"fallback": "sometimes"})
    assert parse_options({"verify": False}) == Options(verify=False)
    assert parse_options({}, mode="reduce-overhead") == Options(graphs=True)
    assert parse_options({"graphs": False}, mode="reduce-overhead") == Options(graphs=False)


def test_unknown_mode_is_refused():
    with pytest.raises(Exception, match="mode='max-autotune': fusion_core has no such mode"):
        torch.compile(ema, backend="fusion_core", mode="max-autotune")(ramp(3), ramp(3))


def test_compile_does_not_recompile_per_wrapper():
    torch._dynamo.utils.counters.clear()
    for _ in range(3):
        fusion_core.compile(ema, verify=True)(ramp(3), ramp(3))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_fallback_error_names_operator_and_line():
    with pytest.raises(
        Exception, match=r"aten.mm.default \(test_front.py:\d+\) would run eager: no lowering rule"
    ):
        fusion_core.compile(lambda x: x @ x + 1, fallback="error")(ramp(3, 3))
    assert FallbackError.__mro__[1] is fusion_core.FusionError


def test_explain_reports_eager_steps_and_graph_breaks():
    def program(x):
        y = (x @ x).sin()
        torch._dynamo.graph_break()
        return y.cumsum(0)

    e = explain(program, ramp(3, 3))
    assert [s.operator for s in e.eager_steps] == ["aten.mm.default", "aten.cumsum.default"]
    assert all(s.line.startswith("test_front.py:") for s in e.eager_steps)
    assert len(e.graph_breaks) == 1
    assert (e.graphs, e.regions) == (2, 1)
    said = str(e)
    assert "eager aten.mm.default (test_front.py:" in said
    assert "graph break: " in said
    assert json.loads(json.dumps(e.to_dict()))["kernels"] == 1


def test_explain_leaves_everything_as_it_was():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    before = [p.detach().clone() for p in model.parameters()]
    versions = [p._version for p in model.parameters()]
    state = torch.get_rng_state()
    e = explain(optimizer.step)
    assert e.alias_outputs
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert versions == [p._version for p in model.parameters()]
    assert not optimizer.state
    assert torch.equal(state, torch.get_rng_state())


def test_explain_restores_known_optimizer_state_and_sizes():
    p = torch.nn.Parameter(ramp(3))
    p.grad = torch.ones(3)
    optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9)
    optimizer.state[p] = {}
    explain(optimizer.step)
    assert optimizer.state[p] == {}
    x = torch.zeros(4)
    explain(lambda t: t.resize_(8).fill_(1), x)
    assert x.tolist() == [0, 0, 0, 0]


def test_explain_without_running():
    calls = []

    def program(x):
        x.mul_(2)
        torch._dynamo.graph_break()
        calls.append(1)
        return x + 1

    x = ramp(3)
    e = explain(program, x, run=False)
    assert e.graphs == 1
    assert not calls
    assert x.tolist() == [0, 1, 2]


def test_whole_graph_left_to_eager_is_told():
    e = explain(lambda x: x.unfold(0, 2, 3).mul_(10).sum(), ramp(6))
    assert [s.operator for s in e.eager_steps] == ["the whole graph"]
    assert "unfold" in e.eager_steps[0].reason


def test_training_reports_forward_and_backward():
    w = ramp(3).requires_grad_()
    e = explain(lambda x, w: (x * w).sin().sum(), ramp(3), w)
    assert e.graphs >= 1
    assert w.grad is None


def test_compiled_code_keeps_no_memory_of_its_inputs():
    """Kernels get views that are kept between calls, but not beyond the tensors that they show."""
    import gc
    import weakref

    compiled = fusion_core.compile(lambda x, y: x.add_(y * 2))
    x, y = ramp(3, 4), ramp(3, 4)
    for _ in range(3):
        compiled(x, y)
    gone = weakref.ref(y), weakref.ref(y.untyped_storage())
    del y
    gc.collect()
    assert [r() for r in gone] == [None, None]
    other = ramp(3, 4)
    before = x.clone()
    compiled(x, other)
    assert torch.equal(x, before + other * 2)
    x.data = torch.zeros(3, 4)  # the same object over other memory
    compiled(x, other)
    assert torch.equal(x, other * 2)
