"""The copy rule: golden programs, and equality with eager for each."""

import pytest
import torch
from equal import assert_equal, ramp

from fusion_core import explain
from fusion_core.program.text import text


def ema(average, x):
    average.lerp_(x, 0.1)
    return average


def fresh_and_write(x, y):
    z = x + y
    x.copy_(z)
    return z


def two_targets(a, b, x):
    v = x.sin()
    a.copy_(v)
    b.copy_(v)


def last_write_wins(x, a, b):
    x.copy_(a + 1)
    x.copy_(b + 1)


def chain(a):
    a.tanh_()
    return a * a * a * a


def input_to_input(x, y):
    x.copy_(y)


def old_value_returned(x):
    old = x.clone()
    x.mul_(2)
    return old


def broadcast_reader(a, b):
    r = a.relu()
    c = a + b
    a.copy_(r)
    return c


def cast_back(x, y):
    x.add_(y)  # f16 += f32


def constant(x):
    x.add_(0.1).mul_(1 - 1e-17)


def swap(x, y):
    t = x.clone()
    x.copy_(y)
    y.copy_(t)


def forwarded(x, w):
    x.add_(1)
    return x @ w


def intermediate_only(x, y):
    z = x + y
    z.add_(1)
    return z


PROGRAMS = {
    "ema": (ema, lambda: (ramp(3, 4), ramp(3, 4, start=1))),
    "fresh_and_write": (fresh_and_write, lambda: (ramp(4), ramp(4, start=1))),
    "two_targets": (two_targets, lambda: (ramp(4), ramp(4, start=1), ramp(4, start=2))),
    "last_write_wins": (last_write_wins, lambda: (ramp(4), ramp(4, start=1), ramp(4, start=2))),
    "chain": (chain, lambda: (ramp(4) / 4,)),
    "input_to_input": (input_to_input, lambda: (ramp(4), ramp(4, start=1))),
    "old_value_returned": (old_value_returned, lambda: (ramp(4),)),
    "broadcast_reader": (broadcast_reader, lambda: (ramp(4, 3) - 5, ramp(2, 4, 3))),
    "cast_back": (cast_back, lambda: (ramp(4).half(), ramp(4))),
    "constant": (constant, lambda: (ramp(4),)),
    "swap": (swap, lambda: (ramp(4), ramp(4, start=1))),
    "forwarded": (forwarded, lambda: (ramp(3, 3), ramp(3, 3))),
    "intermediate_only": (intermediate_only, lambda: (ramp(4), ramp(4, start=1))),
}


def told(e):
    lines = [text(p.program) for p in e.programs]
    lines += [f"set {n.target}: {n.reason}" for n in e.sets]
    lines += [f"refused {n.target}: {n.reason}" for n in e.refused_aliases]
    lines += [f"eager {s.operator}: {s.reason}" for s in e.eager_steps]
    return "\n".join(lines)


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden(name, golden):
    function, make = PROGRAMS[name]
    golden(f"copy_rule_{name}", told(explain(function, *make())))


@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager(name):
    function, make = PROGRAMS[name]
    assert_equal(function, make)


@pytest.mark.parametrize(
    ("name", "sets", "written", "fresh"),
    [
        ("ema", 0, 1, 0),
        ("fresh_and_write", 1, 1, 1),
        ("two_targets", 1, 2, 0),
        ("last_write_wins", 0, 1, 0),
        ("chain", 0, 1, 1),
        ("forwarded", 0, 1, 0),
    ],
)
def test_counts(name, sets, written, fresh):
    function, make = PROGRAMS[name]
    e = explain(function, *make())
    assert (len(e.sets), len(e.alias_outputs), e.fresh_outputs) == (sets, written, fresh)


def test_reasons_name_the_source_line():
    e = explain(fresh_and_write, ramp(4), ramp(4))
    assert e.sets[0].reason.startswith("(b)")
    assert e.sets[0].line.startswith("test_copy_rule.py:")
    refused = explain(broadcast_reader, ramp(4, 3), ramp(2, 4, 3)).refused_aliases
    assert "reads the old value at other indices" in refused[0].reason


def test_constants_are_exact():
    """0.1 and its neighbour print alike in decimals; the programs must differ."""
    one = explain(lambda x: x.mul_(0.1), ramp(3)).programs[0].program
    two = explain(lambda x: x.mul_(0.1 + 2**-56), ramp(3)).programs[0].program
    assert one != two
    assert text(one) != text(two)


def test_order_edges_hold_with_rematerialization():
    def program(a, w):
        t = a.sin()
        u = t * 2
        a.zero_()
        m = w @ w
        return m + u

    assert_equal(program, lambda: (ramp(3, 3), ramp(3, 3)))
    assert_equal(program, lambda: (ramp(3, 3), ramp(3, 3).requires_grad_()))


def test_cuts_scalar_that_is_written_and_broadcast():
    """The step counter is written; its broadcast reader goes to a later program, which reads the written input."""

    def step(p, count):
        count.add_(1)
        p.mul_(1 / count)

    e = explain(step, ramp(3, 2), torch.tensor(1.0))
    assert len(e.programs) == 2
    assert (e.fresh_outputs, len(e.sets), len(e.refused_aliases)) == (0, 0, 0)
    assert_equal(step, lambda: (ramp(3, 2), torch.tensor(1.0)))


def test_transposed_operand_does_not_collapse():
    """One operand in another layout: flattening both would add the wrong elements."""

    def add(p, g):
        p.add_(g)

    make = lambda: (ramp(3, 4), ramp(4, 3).t())  # noqa: E731
    assert "s0, s1" in text(explain(add, *make()).programs[0].program)
    assert_equal(add, make)


@pytest.mark.parametrize(
    "make",
    [
        lambda: (ramp(4, 8)[:, :5], ramp(4, 5)),
        lambda: (ramp(8)[::2], ramp(4)),
        lambda: (ramp(3, 4).t(), ramp(4, 3)),
        lambda: (ramp(1), ramp(1)),
        lambda: (ramp(0), ramp(0)),
        lambda: (torch.tensor(1.0), torch.tensor(2.0)),
        lambda: (ramp(1, 4), ramp(4)),
        lambda: (ramp(4, 1), ramp(1)),
        lambda: (ramp(2, 3, 4, 5).to(memory_format=torch.channels_last), ramp(2, 3, 4, 5)),
    ],
    ids=["padded", "strided", "transposed", "one", "empty", "scalar", "broadcast", "size1", "channels_last"],
)
def test_layouts(make):
    def update(x, y):
        x.add_(y).mul_(2)
        return x + y

    assert_equal(update, make)


def test_written_scalar_that_others_recompute():
    """A 0-d value is written and also read by tensors: its write must stay with the program that owns the value."""

    def program(z, s):
        z.add_(z.sin())
        t = z.sum()
        s.copy_(t * 2)
        z.copy_(t * 3)
        return z * s

    assert_equal(program, lambda: (ramp(2, 3), torch.tensor(1.0)))

    def scalar_from_scalar(s, r, z):
        s.copy_(r * 2)
        return z * s

    assert_equal(scalar_from_scalar, lambda: (torch.tensor(1.0), torch.tensor(3.0), ramp(4)))
