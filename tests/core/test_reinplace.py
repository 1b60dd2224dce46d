"""Partial updates of inputs are done in place, where the order of readers allows it, and touch no more than they must."""

import sys

import pytest
import torch
from equal import assert_equal, ramp
from partial_updates import (
    PROGRAMS,
    cast_into_slice,
    custom,
    custom_on_view,
    diagonal,
    in_place_then_set,
    index_copy,
    index_put,
    make,
    nested_views,
    row_write,
    slice_write,
)
from torch._library.custom_ops import CustomOpDef
from torch.utils._python_dispatch import TorchDispatchMode

import fusion_core
from fusion_core import explain
from pytest_fusealias.build import Program
from pytest_fusealias.check import check
from pytest_fusealias.model import Outcome, Spec


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


def test_operators_of_the_tests_are_defined_once():
    """A second definition would leave the first one's operator to freed memory, see `partial_updates`."""
    values = [value for module in list(sys.modules.values()) for value in vars(module).values()]
    operators = {id(value): value._qualname for value in values if type(value) is CustomOpDef}
    assert sorted(operators.values()) == sorted(set(operators.values()))
