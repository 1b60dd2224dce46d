"""`copy_` means what it means in eager, and outputs that could collapse to an input have memory of their own."""

import pytest
import torch
from equal import assert_equal, ramp


def copy_into(x, y):
    x.copy_(y)
    return x * 2


def copy_computed(x, y):
    x.copy_(y * 2 + 1)


def copy_and_keep_source(x, y):
    new = y + 1
    x.copy_(new)
    return new


def copy_to_two(x, y):
    new = y.to(x.dtype) * 2
    x.copy_(new)
    y.copy_(new)
    return new - 1


def self_copy(x, y):
    x.copy_(x)
    return x + y


def last_write_wins(x, y):
    x.copy_(y)
    x.copy_(y * 3)


def shifted_within(x, y):
    x[1:].copy_(x[:-1].clone())


def real_part_into(x, y):
    x.copy_(torch.complex(y, y).real)


def conjugate_into(x, y):
    x.copy_(y.conj())


def negative_view_into(x, y):
    x.copy_(y.conj().imag)


# name: (function, inputs)
COPIES = {
    "same_type": (copy_into, lambda: (ramp(4, 3), ramp(4, 3, start=5))),
    "broadcast": (copy_into, lambda: (ramp(4, 3), ramp(3, start=5))),
    "broadcast_scalar": (copy_into, lambda: (ramp(4, 3), torch.tensor(7.0))),
    "broadcast_computed": (copy_computed, lambda: (ramp(4, 3), ramp(4, 1))),
    "down_cast": (copy_computed, lambda: (ramp(4, 3).bfloat16(), ramp(4, 3))),
    "up_cast": (copy_computed, lambda: (ramp(4, 3).double(), ramp(4, 3).half())),
    "to_int": (copy_computed, lambda: (torch.arange(6), ramp(6) + 0.7)),
    "to_bool": (copy_into, lambda: (torch.zeros(6, dtype=torch.bool), ramp(6))),
    "to_uint8": (copy_computed, lambda: (torch.zeros(6, dtype=torch.uint8), ramp(6))),
    "cast_and_broadcast": (copy_computed, lambda: (ramp(4, 3).double(), ramp(3).half())),
    "transposed_target": (copy_computed, lambda: (ramp(3, 4).t(), ramp(4, 3))),
    "transposed_source": (copy_computed, lambda: (ramp(4, 3), ramp(3, 4).t())),
    "padded_target": (copy_computed, lambda: (ramp(4, 8)[:, :3], ramp(4, 3))),
    "source_kept": (copy_and_keep_source, lambda: (ramp(6), ramp(6, start=2))),
    "two_targets": (copy_to_two, lambda: (ramp(6), ramp(6, start=2))),
    "self": (self_copy, lambda: (ramp(6), ramp(6, start=2))),
    "last_wins": (last_write_wins, lambda: (ramp(6), ramp(6, start=2))),
    "shifted": (shifted_within, lambda: (ramp(6, 2), ramp(6))),
    "real_part": (real_part_into, lambda: (ramp(6), ramp(6, start=2))),
    "conjugate": (
        conjugate_into,
        lambda: (torch.complex(ramp(4), ramp(4)), torch.complex(ramp(4), ramp(4) + 1)),
    ),
    "imaginary_of_conjugate": (negative_view_into, lambda: (ramp(4), torch.complex(ramp(4), ramp(4) + 1))),
    "complex_into_complex": (copy_computed, lambda: (torch.complex(ramp(4), ramp(4)), ramp(4))),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies(name):
    function, make = COPIES[name]
    assert_equal(function, make)


ILLEGAL = {
    "shape": lambda: (ramp(4), ramp(3)),
    "more_dimensions": lambda: (ramp(3), ramp(2, 3)),
    "expanded_target": lambda: (ramp(1).expand(3), ramp(3)),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_eager_rejects_raises_the_same(name):
    assert_equal(copy_into, ILLEGAL[name], raises=RuntimeError)


HALF = torch.bfloat16
# Outputs that an executor could return as the input itself.
FRESH = {
    "clone": (lambda x: x.clone(), lambda: (ramp(5),)),
    "cast_there_and_back": (lambda x: x.float().to(HALF), lambda: (ramp(5).to(HALF),)),
    "int_there_and_back": (lambda x: x.int().long(), lambda: (torch.arange(5),)),
    "sum_of_one": (lambda x: x.sum(1), lambda: (ramp(5, 1),)),
    "largest_of_one": (lambda x: x.amax(0, keepdim=True), lambda: (ramp(1, 5),)),
    "mean_of_one": (lambda x: x.mean(1), lambda: (ramp(5, 1),)),
    "first_power": (lambda x: x.pow(1.0), lambda: (ramp(5),)),
    "times_one": (lambda x: x * 1, lambda: (ramp(5),)),
    "plus_zero": (lambda x: x + 0, lambda: (ramp(5),)),
    "floor_of_int": (lambda x: x.floor(), lambda: (torch.arange(5),)),
    "positive_part": (lambda x: torch.where(x > -1, x, x), lambda: (ramp(5),)),
    "twice": (lambda x: (x * 2, (x * 2).clone()), lambda: (ramp(5),)),
    "clone_of_result": (lambda x: (y := x * 2, y.clone()), lambda: (ramp(5),)),
    "reshaped_result_and_clone": (lambda x: (y := x * 2, y.reshape(2, 3).clone()), lambda: (ramp(6),)),
    "clone_of_transposed": (lambda x: x.t().clone(), lambda: (ramp(3, 4),)),
    "contiguous_of_transposed": (lambda x: x.t().contiguous(), lambda: (ramp(3, 4),)),
    "clone_of_expanded": (lambda x: x.expand(3, 5).clone(), lambda: (ramp(5),)),
}


@pytest.mark.parametrize("name", FRESH)
def test_outputs_have_memory_of_their_own(name):
    function, make = FRESH[name]
    assert_equal(function, make)


def then_write(function):
    """`function`, and then a write into its argument."""

    def both(x):
        result = function(x)
        x.add_(1)
        return result

    return both


@pytest.mark.parametrize("name", FRESH)
def test_outputs_keep_their_value_when_the_input_is_written_too(name):
    function, make = FRESH[name]
    assert_equal(then_write(function), make)
