"""Partial updates of inputs are done in place, where the order of readers allows it, and touch no more than they must."""

import pytest
import torch
from equal import assert_equal, ramp
from torch.utils._python_dispatch import TorchDispatchMode

import fusion_core
from fusion_core import explain
from pytest_fusealias.build import Program
from pytest_fusealias.check import check
from pytest_fusealias.model import Outcome, Spec


@torch.library.custom_op("fusealias_tests::write_at", mutates_args={"cache"})
def write_at(cache: torch.Tensor, token: torch.Tensor, position: int) -> None:
    cache[:, position : position + 1].copy_(token)


@torch.library.custom_op("fusealias_tests::write_two", mutates_args={"a", "b"})
def write_two(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.add_(1)
    b.mul_(2)
    return a + b


@write_two.register_fake
def _(a, b):
    return torch.empty(torch.broadcast_shapes(a.shape, b.shape))


def slice_write(c, t):
    c[:, 3:4] = t
    return c[0].sum()


def row_write(c, t):
    c[1] = t[0]


def nested_views(c, t):
    c[2, 3:5].mul_(2)
    c[1][4:6].copy_(t[1].expand(2, 8))


def in_place_then_set(c, t):
    c[0, 1:3] += 1


def every_second(c, t):
    c[:, ::2].zero_()


def index_copy(c, t):
    c.index_copy_(1, torch.tensor([3], device=c.device), t)
    return c[:, :4].sum(1)


def index_put(c, t):
    c[:, torch.tensor([5], device=c.device)] = t


def index_put_accumulate(c, t):
    where = torch.tensor([5, 5], device=c.device)
    c.index_put_((torch.arange(2, device=c.device), where), t[:2, 0], accumulate=True)


def scatter_add(c, t):
    c.scatter_add_(1, torch.zeros(4, 1, 8, dtype=torch.int64, device=c.device), t)


def diagonal(c, t):
    c[0].diagonal().fill_(7.0)


def cast_into_slice(c, t):
    c[:, 3:4] = t.double() * 2


def whole_then_part(c, t):
    c.mul_(2)
    c[0, 1:3] += 1
    return c * 2


def old_value_read_first(c, t):
    before = c[:, 3].clone()
    c[:, 3:4] = t
    return before


def old_value_needed_after(c, t):
    old = c.sum()
    c[:, 3:4] = t
    return c.sum() - old


def overlapping_source(c, t):
    c[0:2] = c[1:3].clone()


def custom(c, t):
    write_at(c, t, 3)
    return c[0].sum()


def custom_on_view(c, t):
    write_at(c[1:3], t[1:3], 3)


def custom_two(c, t):
    return write_two(c, t)


PROGRAMS = [
    slice_write, row_write, nested_views, in_place_then_set, every_second, index_copy, index_put, index_put_accumulate,
    scatter_add, diagonal, cast_into_slice, whole_then_part, old_value_read_first, old_value_needed_after,
    overlapping_source, custom, custom_on_view, custom_two,
]  # fmt: skip


def make():
    return ramp(4, 16, 8), ramp(4, 1, 8, start=100.0)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_equals_eager(program):
    assert_equal(program, make)


class BytesTouched(TorchDispatchMode):
    """Adds up the bytes of tensors that operators other than views read and write."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if not function.is_view:
            tensors = [a for a in (*args, result) if isinstance(a, torch.Tensor)]
            self.total += sum(t.numel() * t.element_size() for t in tensors)
        return result


SMALL = [slice_write, nested_views, in_place_then_set, diagonal, cast_into_slice, custom]


@pytest.mark.parametrize(
    "program", [*SMALL, row_write, index_copy, index_put, custom_on_view], ids=lambda p: p.__name__
)
def test_bytes_do_not_grow_with_the_cache(program):
    """The cache is 400 times the token; an update that copied it once would count 800 tokens."""

    def touched(length):
        cache, token = torch.zeros(4, length, 8), torch.ones(4, 1, 8)
        torch._dynamo.reset()
        compiled = fusion_core.compile(program, dynamic=False)
        compiled(cache, token)
        with BytesTouched() as touched:
            compiled(cache, token)
        return touched.total

    token_bytes = 4 * 8 * 4
    indexed = (
        program not in SMALL
    )  # their operator names more than it touches, or a row that grows with the cache
    reads = program in (slice_write, custom)  # they return the sum of a quarter of the cache
    if not indexed and not reads:
        assert touched(400) == touched(50)
        assert touched(400) < 20 * token_bytes
    compiled = explain(program, torch.zeros(4, 400, 8), torch.ones(4, 1, 8))
    whole = [s for s in compiled.eager_steps if "scatter" in s.operator or "clone" in s.operator]
    assert whole == []


def test_kv_cache_step_writes_the_token_alone():
    def step(keys, values, k, v):
        keys[:, :, 7:8] = k
        values[:, :, 7:8] = v
        return torch.softmax(k @ keys.transpose(-1, -2), -1) @ values

    def inputs():
        return ramp(2, 3, 16, 8), ramp(2, 3, 16, 8), ramp(2, 3, 1, 8) / 50, ramp(2, 3, 1, 8)

    assert_equal(step, inputs)
    e = explain(step, *inputs())
    assert not [s for s in e.eager_steps if "scatter" in s.operator or "clone" in s.operator]


def test_saved_for_backward_keeps_its_own_value():
    def update(c, t, w):
        with torch.no_grad():
            c[:, 3:4] = t
        return (c * w).sum()

    assert_equal(update, lambda: (*make(), torch.ones(8, requires_grad=True)))


def test_views_of_one_storage_write_through_their_base():
    def write(parts):
        a, b = parts
        a.mul_(2)
        b.add_(1)
        return a + b

    def inputs():
        base = ramp(10)
        return ([base[0:5], base[2:7]],)

    assert_equal(write, inputs)


def flat_rows(cache, index, rows):
    cache.view(-1)[index] = rows
    return cache


def flat_then_sum(cache, index, rows):
    before = cache.sum()
    cache.view(-1).index_add_(0, index, rows)
    return before, cache.sum()


def through_unsqueeze(cache, index, rows):
    del index, rows
    cache.unsqueeze(0)[0, :, 1] = 7
    return cache.t() + 1


@pytest.mark.parametrize("update", [flat_rows, flat_then_sum, through_unsqueeze])
def test_update_through_a_view_of_the_whole(update):
    """An update of a flattened cache costs what it writes, not the cache."""

    def make():
        torch.manual_seed(0)
        return Program(update, (torch.randn(64, 64), torch.tensor([1, 70]), torch.randn(2)))

    assert check(make, Spec(backend="fusion_core")).outcome is Outcome.PASS
    arguments = make().args
    estimate = fusion_core.estimate_memory(update, *arguments)
    bound = arguments[0].nbytes + 64 if update is through_unsqueeze else 64
    assert estimate.peak_bytes <= bound, str(estimate)


def test_flat_update_of_a_value_that_is_returned_before_it():
    def step(cache, index, rows):
        old = cache * 1
        cache.view(-1)[index] = rows
        return old

    def make():
        torch.manual_seed(0)
        return Program(step, (torch.randn(8, 8), torch.tensor([1, 7]), torch.randn(2)))

    assert check(make, Spec(backend="fusion_core")).outcome is Outcome.PASS
