"""Plans as straight-line code, and chains of views made in one step: what runs step by step gives the same."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

import fusion_core
from fusion_core.errors import KernelError
from fusion_core.program.ir import FusionProgram
from fusion_core.runtime.failures import GuardedKernel
from fusion_core.runtime.packed import PackedLaunch
from fusion_core.runtime.plan import Plan, build_plan
from fusion_core.runtime.steps import (
    CopyBack,
    Free,
    Inputs,
    InputSpec,
    Launch,
    OutputSpec,
    RunEager,
    SlotRef,
    flat_view,
    lifted_view,
    row_major_view,
)
from fusion_core.runtime.straight import straight_line
from fusion_core.runtime.views import View


def plan_of(function, *examples):
    """Returns the plan of a function whose every operator is a step of its own."""
    graph = make_fx(lambda *given: listed(function(*given)), tracing_mode="fake")(*examples).graph
    steps = [n for n in graph.nodes if n.op == "call_function"]
    return build_plan(graph, steps, compile_program=None, attributes=None, guarded=False)


def listed(values):
    """Returns results as a tuple, also where there is one."""
    return values if isinstance(values, tuple) else (values,)


def both(plan, *arguments):
    """Returns what the plan's steps give one by one, and what its code gives."""
    return plan.run(list(arguments)), straight_line(plan)(list(arguments))


def same_memory(a, b):
    """True if two tensors are the same view."""
    return (a.data_ptr(), a.shape, a.stride()) == (b.data_ptr(), b.shape, b.stride())


MOVES = {
    "transpose": lambda x, i: x.transpose(0, i % x.dim()),
    "reversed": lambda x, i: x.permute(*reversed(range(x.dim()))),
    "lifted": lambda x, i: x.unsqueeze(i % (x.dim() + 1)),
    "squeezed": lambda x, i: x.squeeze(),
    "expanded": lambda x, i: x.unsqueeze(0).expand(2, *x.shape),
    "sliced": lambda x, i: x.narrow(i % x.dim(), x.shape[i % x.dim()] // 2, (x.shape[i % x.dim()] + 1) // 2),
    "stepped": lambda x, i: x[::2],
    "split": lambda x, i: x.split((x.shape[-1] + 1) // 2, -1)[-1],
    "unbound": lambda x, i: x.unbind(0)[-1],
    "selected": lambda x, i: x.select(i % x.dim(), -1),
    "diagonal": lambda x, i: x.diagonal() if x.dim() > 1 else x,
    "unfolded": lambda x, i: x.unfold(i % x.dim(), 1, 1),
    "viewed": lambda x, i: x.view(*x.shape[:-1], 1, x.shape[-1]),
    "strided": lambda x, i: x.as_strided((2,), (1,), x.storage_offset()),
}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4),
    st.booleans(),
    st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from(sorted(MOVES)), st.integers(0, 5)), min_size=1, max_size=5),
)
def test_a_chain_is_the_view_that_eager_makes(sizes, turned, offset, moves):
    room = torch.arange(3.0 + offset + 4 ** len(sizes))
    base = room[offset:].as_strided(sizes, torch.empty(sizes).stride(), offset)
    base = base.transpose(0, 1) if turned else base

    def program(x):
        for name, number in moves:
            x = MOVES[name](x, number) if x.dim() and x.numel() else x.unsqueeze(0)
        return x * 1, x

    plan = plan_of(program, base)
    expected = program(base)
    for values in both(plan, base):
        assert torch.equal(values[0], expected[0])
        assert same_memory(values[1], expected[1])


def test_one_step_stands_for_a_chain_of_views():
    plan = plan_of(lambda x: x.view(2, 3, 4).transpose(0, 1)[1:].mul(2), torch.randn(6, 4))
    assert [type(s) for s in plan.steps if isinstance(s, (View, RunEager))] == [View, RunEager]
    assert plan.steps[0].geometry.distance == 4


def test_a_base_with_other_strides_or_another_beginning_takes_the_chain():
    program = lambda x: x.t()[1:] + 0  # noqa: E731 - the program of the test
    plan = plan_of(program, torch.randn(3, 4))
    for base in (torch.randn(4, 3).t(), torch.randn(20)[8:].view(3, 4), torch.randn(3, 8)[:, ::2]):
        for (value,) in both(plan, base):
            assert torch.equal(value, program(base))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.detach(),
        lambda x: x.view(torch.int32) + 1,
        lambda x: torch.view_as_real(x.to(torch.complex64).t()).sum(),
        lambda x: x.to(torch.complex64).conj().imag + 0,
    ],
    ids=["returned detach", "another dtype", "complex", "negative"],
)
def test_views_that_no_stride_tells_stay_calls(program):
    x = torch.randn(4, 6)
    plan = plan_of(program, x)
    assert not any(isinstance(step, View) for step in plan.steps)
    for (value,) in both(plan, x):
        assert torch.equal(value, program(x))


def test_detached_values_that_nobody_gets_are_views():
    plan = plan_of(
        lambda x: torch.ops.aten._unsafe_view.default(x.t().detach(), [12]) + 1, torch.randn(4, 3).t()
    )
    assert [len(step.chain) for step in plan.steps if isinstance(step, View)] == [3]


def compiled_and_eager(function, *inputs):
    """Returns the results of both; the compiled one gets inputs of its own."""
    own = [i.detach().clone().requires_grad_(i.requires_grad) for i in inputs]
    return fusion_core.compile(function)(*own), function(*inputs)


@pytest.mark.parametrize(
    "shown",
    [lambda y: y.detach().t(), lambda y: y.data.view(-1)[2:], lambda y: y.detach().t().t().unbind(0)[1]],
    ids=["turned", "data", "unbound"],
)
def test_a_returned_view_of_a_detached_value_is_a_view_to_nobody(shown):
    def function(x):
        y = x @ x
        return y, shown(y)

    (_, found), (_, expected) = compiled_and_eager(function, torch.randn(3, 3, requires_grad=True))
    assert not found.requires_grad
    assert found._is_view() == expected._is_view()
    assert torch.allclose(found.add_(1), expected.add_(1))


def test_a_view_of_memory_that_was_freed_is_made_where_eager_makes_it():
    compiled = fusion_core.compile(lambda p, x: (p.view(-1), x + 1))
    p, x = torch.randn(3, 4), torch.randn(3)
    compiled(p, x)
    p.untyped_storage().resize_(0)
    view, _ = compiled(p, x)
    assert view.shape == (12,)
    assert not view.untyped_storage().nbytes()


def test_code_keeps_nothing_alive_after_it():
    x = torch.randn(3)
    plan = Plan((), 2, 1, ((1, x),), (SlotRef(1),))
    run = straight_line(plan)
    assert run([None])[0] is x
    seen = weakref.ref(x)
    gc.disable()
    try:
        del plan, run, x
        assert seen() is None
    finally:
        gc.enable()


def test_where_memory_is_resized_views_are_made_as_they_stand():
    graph = make_fx(lambda x: (x.t() * 2,), tracing_mode="fake")(torch.randn(3, 4)).graph
    first = next(n for n in graph.nodes if n.op == "call_function")
    with graph.inserting_before(first):
        resize = graph.call_function(torch.ops.aten.resize_.default, (first.all_input_nodes[0], [3, 4]))
    resize.meta["val"] = first.all_input_nodes[0].meta["val"]
    steps = [n for n in graph.nodes if n.op == "call_function"]
    plan = build_plan(graph, steps, compile_program=None, attributes=None, guarded=False)
    assert not any(isinstance(step, View) for step in plan.steps)


def test_arguments_of_every_form_reach_the_operator():
    def program(x, y, at):
        a = torch.ops.aten.cat.default([x, y, x], 1)
        b = torch.ops.aten.index.Tensor(a, [None, at])
        c = torch.ops.aten.add.Tensor(b, 1.5, alpha=2)
        d = torch.ops.aten.uniform.default(c, **{"from": 2.0, "to": 2.0})  # a keyword of Python's, too
        return c, d, torch.ops.aten.split.Tensor(c, 2, 1)[1].clone()

    arguments = torch.randn(2, 3), torch.randn(2, 4), torch.tensor([0, 3, 9])
    plan = plan_of(program, *arguments)
    for values in both(plan, *arguments):
        for value, expected in zip(values, program(*arguments), strict=True):
            assert torch.equal(value, expected)


def test_the_list_of_arguments_is_emptied_and_values_die_after_their_last_use():
    made = []

    def begin(x):
        made.append(weakref.ref(y := x.exp()))
        return y

    def use(y):
        assert made[-1]() is not None
        return y + 1

    def end(z):
        assert made[-1]() is None
        return z * 2

    calls = [RunEager(f, (SlotRef(i),), {}, (i,), i + 1) for i, f in enumerate((begin, use, end))]
    plan = Plan((*calls[:2], Free((1,)), calls[2], Free((2,))), 4, 1, (), (SlotRef(3), None, SlotRef(3)))
    for run in (plan.run, straight_line(plan)):
        arguments = [torch.zeros(3)]
        value, nothing, again = run(arguments)
        assert not arguments
        assert nothing is None
        assert value is again
        assert value.tolist() == [4.0] * 3
    assert len(made) == 2


PROGRAM = FusionProgram((), (), (), ())


def refuse():
    raise KernelError("refused", PROGRAM)


class Doubling:
    """A kernel that doubles what it is given, and returns it plus one, flat as nvFuser gets and gives it."""

    consumes = False

    def __init__(self, fails):
        self.fails, self.calls = fails, 0

    def __call__(self, inputs):
        self.calls += 1
        if self.fails:
            refuse()
        inputs[0].mul_(2)
        return [inputs[0] + 1]


EAGER = (
    RunEager(torch.ops.aten.mul.Tensor, (SlotRef(0), 2), {}, (0,), 2),
    RunEager(torch.ops.aten.add.Tensor, (SlotRef(2), 1), {}, (2,), 1),
    CopyBack(0, 2),
)


def launching(kernel, *, trusted):
    """Returns a plan of one launch: slot 0 is doubled, read as slot 2 from then on, and plus one is slot 1.

    Slot 3 is the new value too, and nobody reads it there.
    """
    launch = Launch(
        kernel,
        Inputs((InputSpec(0, (1, 3), None, flat_view, trusted=trusted, fixed=True),)),
        reads=(0,),
        eager=EAGER,
        outputs=(OutputSpec(1, 2, (3, 2), (1, 3), (1, 0), flat=True),),
        forwarded=((2, 0), (3, 0)),
        written=(0,),
    )
    return Plan((launch, Free((3,))), 4, 1, (), (SlotRef(0), SlotRef(1), SlotRef(2)))


@pytest.mark.parametrize("fails", [False, True], ids=["runs", "fails"])
@pytest.mark.parametrize("trusted", [False, True], ids=["checked", "trusted"])
def test_a_launch_that_is_written_out_does_what_its_step_does(trusted, fails):
    kernel = Doubling(fails)
    plan = launching(kernel, trusted=trusted)
    assert "results" in straight_line(plan).__code__.co_varnames
    for run in (plan.run, straight_line(plan)):
        for _ in range(2):
            x = torch.arange(6.0).reshape(2, 3).t()
            written, plus_one, read = run([x])
            assert written is x
            assert read is x
            assert torch.equal(x, torch.arange(6.0).reshape(2, 3).t() * 2)
            assert torch.equal(plus_one, x + 1)
            assert plus_one.stride() == (1, 3)
            assert plus_one._base is None
    assert kernel.calls == 4


def test_an_input_that_lies_otherwise_than_foretold_runs_eager():
    kernel = Doubling(fails=False)
    plan = launching(kernel, trusted=False)
    for run in (plan.run, straight_line(plan)):
        x = torch.arange(6.0).reshape(3, 2)
        _, plus_one, _ = run([x])
        assert torch.equal(x, torch.arange(6.0).reshape(3, 2) * 2)
        assert torch.equal(plus_one, x + 1)
    assert kernel.calls == 0


def test_a_launch_that_is_written_out_holds_nothing_after_its_call():
    plan = launching(Doubling(fails=False), trusted=True)
    run = straight_line(plan)
    x = torch.arange(6.0).reshape(2, 3).t()
    values = run([x])
    gone = [weakref.ref(v) for v in (x, values[1])]
    del x, values
    assert [g() for g in gone] == [None, None]


@pytest.mark.parametrize("trusted", [False, True], ids=["checked", "trusted"])
def test_a_kernel_that_failed_holds_nothing_of_its_calls(trusted):
    with pytest.warns(RuntimeWarning, match="failed to compile"):
        kernel = GuardedKernel(PROGRAM, refuse, strict=False)
    plan = launching(kernel, trusted=trusted)
    for run in (plan.run, straight_line(plan)):
        for _ in range(2):
            x = torch.arange(6.0).reshape(2, 3).t()
            values = run([x])
            assert torch.equal(x, torch.arange(6.0).reshape(2, 3).t() * 2)
            gone = [weakref.ref(v) for v in (x, values[1])]
            del x, values
            assert [g() for g in gone] == [None, None]


def adding(kernel, count):
    """Returns a plan of one packed launch: matrices in the first `count` slots get the numbers in the next ones added."""
    first = tuple(InputSpec(i, (3, 1), None, row_major_view, trusted=True, fixed=True) for i in range(count))
    second = tuple(
        InputSpec(count + i, (), None, lifted_view(1), trusted=True, fixed=True) for i in range(count)
    )
    sums = [
        RunEager(torch.ops.aten.add.Tensor, (SlotRef(i), SlotRef(count + i)), {}, (i, count + i), 2 * count)
        for i in range(count)
    ]
    launch = PackedLaunch(
        kernel,
        (Inputs(first), Inputs(second)),
        shared=frozenset(),
        wide=frozenset({0}),
        targets=(0,),
        sizes=[3 * (i + 1) for i in range(count)],
        reads=tuple(range(2 * count)),
        eager=tuple(step for i, s in enumerate(sums) for step in (s, CopyBack(i, 2 * count))),
        forwarded=((2 * count, 0), (2 * count + 1, 1)),
    )
    return Plan((launch,), 2 * count + 2, 2 * count, (), (SlotRef(2 * count),))


class Adding:
    """A kernel that adds its second input to its first one."""

    consumes = False

    def __init__(self, fails):
        self.fails = fails

    def __call__(self, inputs):
        if self.fails:
            refuse()
        inputs[0].add_(inputs[1])
        return []


@pytest.mark.parametrize("fails", [False, True], ids=["runs", "fails"])
def test_a_packed_launch_that_is_written_out_does_what_its_step_does(fails):
    count = 4
    plan = adding(Adding(fails), count)
    for run in (plan.run, straight_line(plan)):
        matrices = [torch.zeros(i + 1, 3) for i in range(count)]
        numbers = [torch.tensor(float(i + 1)) for i in range(count)]
        for call in (1, 2):
            (read,) = run([*matrices, *numbers])
            assert read is matrices[0]
            for i, m in enumerate(matrices):
                assert m.tolist() == [[call * (i + 1.0)] * 3] * (i + 1)
        assert [n.item() for n in numbers] == [1, 2, 3, 4]
