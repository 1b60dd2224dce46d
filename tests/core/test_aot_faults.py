"""Kinds of programs that AOTAutograd compiles to something else without a word, each over many shapes of the same thing."""

import torch
from equal import assert_equal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MANY = settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
WRITES = {
    "mul": lambda t: t.mul_(3),
    "add": lambda t: t.add_(1),
    "fill": lambda t: t.fill_(7.0),
    "neg": lambda t: torch.neg(t, out=t),
    "zero": lambda t: t.zero_(),
    "set": lambda t: t.__setitem__(..., 2.0),
}
writes = st.sampled_from(sorted(WRITES))


def ramp(count):
    return torch.arange(float(count)) + 1


@MANY
@given(write=writes, size=st.integers(1, 4), step=st.integers(1, 5), offset=st.integers(0, 2))
def test_write_through_windows_with_gaps(write, size, step, offset):
    """`unfold` with a step beyond its size leaves gaps, below it windows overlap; eager refuses only some of these."""

    def program(x):
        WRITES[write](x[offset:].unfold(0, size, step))
        return x.sum()

    overlaps = size > step
    assert_equal(program, lambda: (ramp(13),), raises=None if not overlaps else _raised_in_eager(program))


def _raised_in_eager(program):
    try:
        program(ramp(13))
    except RuntimeError:
        return RuntimeError
    return None


@MANY
@given(
    write=st.sampled_from(("fill", "zero")),
    copies=st.integers(1, 4),
    offset=st.integers(0, 3),
    length=st.integers(1, 5),
)
def test_write_through_a_broadcast(write, copies, offset, length):
    def program(x):
        WRITES[write](x[offset : offset + length].expand(copies, -1))
        return x * 2

    assert_equal(program, lambda: (ramp(9),))


@MANY
@given(
    write=writes,
    size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 5), st.integers(1, 3)),
    offset=st.integers(0, 3),
)
def test_write_through_any_strides(write, size, stride, offset):
    def program(x):
        WRITES[write](x.as_strided(size, stride, offset))
        return x + 1

    base = ramp(24)
    error = None
    try:
        program(base)
    except RuntimeError:
        error = RuntimeError
    assert_equal(program, lambda: (ramp(24),), raises=error)


@MANY
@given(
    write=writes,
    offset=st.integers(0, 3),
    gap=st.integers(1, 3),
    functional=st.booleans(),
    training=st.booleans(),
)
def test_write_through_dropout_that_drops_nothing(write, offset, gap, functional, training):
    def program(x):
        if functional:
            same = torch.nn.functional.dropout(x, 0.0 if training else 0.4, training)
        else:
            same = torch.dropout(x, 0.0 if training else 0.4, training)
        WRITES[write](same)
        return same, x.sum()

    assert_equal(program, lambda: (ramp(12)[offset::gap],))


def test_dropout_that_drops_nothing_and_something():
    for p in (0.0, 0.5):
        assert_equal(lambda x, p=p: (torch.nn.functional.dropout(x, p=p), x), lambda: (ramp(6),))


@MANY
@given(write=writes, grad=st.booleans(), offset=st.integers(0, 3), later=st.booleans())
def test_write_through_data(write, grad, offset, later):
    """Beside another written input that is returned; and with a view of the tensor as one more input."""

    def program(x, y, view):
        if later:
            WRITES[write](y.data[offset:])
        x.add_(1)
        if not later:
            WRITES[write](y.data[offset:])
        return x, view

    def make():
        y = ramp(8).requires_grad_(grad)
        return ramp(8), y, y[2:]

    assert_equal(program, make)


@MANY
@given(write=writes, returned=st.booleans())
def test_write_through_detach_beside_a_returned_input(write, returned):
    def program(x, y):
        x.mul_(2)
        WRITES[write](y.detach())
        return x if returned else x + 1

    assert_equal(program, lambda: (ramp(5), ramp(5).requires_grad_()))


@MANY
@given(first=st.integers(0, 3), second=st.integers(0, 3), same=st.booleans(), inputs=st.booleans())
def test_one_operator_that_writes_overlapping_tensors(first, second, same, inputs):
    """Whether they come as views made inside or as inputs."""

    def program(x, a, b):
        if not inputs:
            a, b = x[first : first + 3], x[second : second + 3]
        torch._foreach_add_([a, a] if same else [a, b], 1)
        torch._foreach_mul_([a, b], 2)
        return x.sum()

    def make():
        base = ramp(8)
        return base, base[first : first + 3], base[second : second + 3]

    assert_equal(program, make)


@MANY
@given(
    first=st.tuples(st.integers(0, 4), st.integers(1, 3)),
    later=st.tuples(st.integers(0, 4), st.integers(1, 3)),
    write=writes,
)
def test_overlap_that_appears_on_a_later_call(first, later, write):
    """The plan for inputs that overlap in one way must not serve inputs that overlap in another."""

    def program(x, y):
        WRITES[write](x)
        return y * 2

    def calls(function, base, other):
        outputs = [function(other, other.clone())]
        outputs += [function(base[o : o + 4 * s : s], base[2:6]) for o, s in (first, later)]
        return outputs

    assert_equal(program, lambda: (ramp(20), ramp(4)), drive=calls)


@MANY
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    gap=st.integers(1, 2),
    turned=st.booleans(),
    write=writes,
)
def test_strided_input_that_is_written(shape, gap, turned, write):
    def program(x):
        kept = x.exp()
        WRITES[write](x)
        return kept, x

    def make():
        base = ramp(shape[0] * shape[1] * gap * 2)
        view = base.as_strided(shape, (shape[1] * gap, gap), 1)
        return (view.t() if turned else view,)

    assert_equal(program, make)


@MANY
@given(
    grad=st.booleans(),
    own=st.booleans(),
    by_data=st.booleans(),
    cut=st.sampled_from((slice(0, 1), slice(1, None), slice(None, None, 2))),
    write=writes,
)
def test_tensor_that_is_given_other_memory(grad, own, by_data, cut, write):
    """By an assignment to `.data` or by `set_`; the memory is another tensor's or a part of its own."""

    def program(x, y):
        memory = (x if own else y)[cut].detach()
        if by_data:
            x.data = memory
        else:
            x.detach().set_(memory)
        WRITES[write](y)
        return x * 2

    def make():
        return ramp(12).reshape(4, 3).requires_grad_(grad), ramp(15).reshape(5, 3)

    assert_equal(program, make)


SHAPE_CHANGES = {
    "transpose": lambda t: t.transpose_(0, -1),
    "squeeze": lambda t: t.squeeze_(),
    "unsqueeze": lambda t: t.unsqueeze_(0),
    "swapdims": lambda t: t.swapdims_(0, 1),
}


@MANY
@given(
    change=st.sampled_from(sorted(SHAPE_CHANGES)),
    write=writes,
    first=st.booleans(),
    shape=st.sampled_from(((2, 3), (1, 4), (2, 1, 3), (2, 3, 4))),
    inside=st.booleans(),
)
def test_shape_changed_in_place_beside_a_write(change, write, first, shape, inside):
    """On an input, and on a tensor made inside."""

    def program(x):
        y = x + 1 if inside else x
        if first:
            WRITES[write](y)
        SHAPE_CHANGES[change](y)
        if not first:
            WRITES[write](y)
        return y * 2, y

    count = 1
    for size in shape:
        count *= size
    assert_equal(program, lambda: (ramp(count).reshape(shape),))


@MANY
@given(
    rest=st.sampled_from(("masked_fill", "scatter", "index_fill", "clamp")),
    order=st.permutations(range(3)),
    returned=st.booleans(),
)
def test_layout_after_a_write_to_a_turned_tensor(rest, order, returned):
    """What is computed from a written tensor has that tensor's layout, not that of the operator without a write."""
    change = {
        "masked_fill": lambda t: t.masked_fill_(t > 4, 0),
        "scatter": lambda t: t.scatter_(0, torch.zeros_like(t, dtype=torch.int64), 4),
        "index_fill": lambda t: t.index_fill_(0, torch.tensor([0]), 5),
        "clamp": lambda t: t.clamp_(min=3),
    }[rest]

    def program(x):
        change(x)
        return (x + x, x) if returned else x + x

    assert_equal(program, lambda: (ramp(24).reshape(2, 3, 4).permute(order),))


@MANY
@given(write=st.sampled_from(("add", "mul", "copy")), offset=st.integers(0, 3), returned=st.booleans())
def test_detached_view_written_with_what_requires_grad(write, offset, returned):
    def program(x):
        kept = x.detach()[offset:]
        getattr(kept, f"{write}_")(x[offset:] if write == "copy" else x[offset:] * 2)
        return (kept, x * 3) if returned else x * 3

    assert_equal(program, lambda: (ramp(6).requires_grad_(),))


SAME = {
    "float": lambda t: t.float(),
    "to": lambda t: t.to(torch.float32),
    "contiguous": lambda t: t.contiguous(),
    "type_as": lambda t: t.type_as(t),
    "other": lambda t: t.double(),
}


@MANY
@given(
    first=st.sampled_from(sorted(SAME)),
    second=st.sampled_from(sorted(SAME)),
    view=st.booleans(),
    grad=st.booleans(),
)
def test_conversions_that_convert_nothing(first, second, view, grad):
    """They return their argument, so several results are one tensor."""

    def program(x):
        y = x[1:] if view else x * 2
        a = SAME[first](y)
        return y, a, SAME[second](a)

    assert_equal(program, lambda: (ramp(6).requires_grad_(grad),))


@MANY
@given(shape=st.sampled_from(((1,), (4,), (2, 3), (2, 3, 4))), write=writes, grad=st.booleans())
def test_result_written_after_a_graph_break(shape, write, grad):
    def program(x):
        y = x + x
        torch._dynamo.graph_break()
        WRITES[write](y)
        return y, x

    count = 1
    for size in shape:
        count *= size
    assert_equal(
        program,
        lambda: (ramp(count).reshape(shape).requires_grad_(grad),),
        raises=_raised(program, shape, grad),
    )


def _raised(program, shape, grad):
    try:
        program(torch.ones(shape).requires_grad_(grad))
    except RuntimeError:
        return RuntimeError
    return None
