"""Programs that random search found: each was wrong or refused once."""

import pytest
import torch
from equal import assert_equal, ramp


def number_copied(x):
    x.copy_(2)


def whole_then_part_read_between(x):
    x.add_(1)
    kept = x.sigmoid()
    x.scatter_(0, torch.zeros_like(x, dtype=torch.int64), 0.5)
    return kept


def scalar_of_higher_rank(x):
    x += x.sum().unsqueeze(0)


def write_through_chunk(x):
    x[0] = 1
    x.chunk(2)[0].mul_(2)


def reduced_beside_write(x, y):
    x.add_(y.amax(0))
    kept = x.sigmoid()
    x.scatter_(0, torch.zeros_like(x, dtype=torch.int64), 0.5)
    kept[torch.tensor([0, 0])] += y.amax(0)
    return kept


def softmax_of_one(x):
    soft = x.softmax(0)
    x[0:1] = soft
    x.select(0, 0).add_(x[0])
    return (soft,)


def largest_of_one(x, y):
    x.sub_(-1)
    return (x.amax(1, keepdim=True),)


def saved_and_overwritten(x, y, z):
    y[:] = x
    x.view(-1).fill_(2)
    x.div_(3)


def foretold_layout_before_copy(x, w):
    """The layout of `logsigmoid` is not the one that torch foretells, so the region after it runs eager."""
    y = torch.nn.functional.logsigmoid(x.t())
    d = (w @ w)[1:]
    d.copy_(y[1:] * 2)
    return d + 1


def scalar_through_detach(x, y):
    x.detach().sub_(torch.where(y > 0, y, 1))


def positions_added(x):
    x.add_(torch.arange(4))


def transposed_scalar(x):
    y = x - x
    y.sub_(y.transpose(0, -1).contiguous())
    return y


PROGRAMS = {
    "scalar_through_detach": (scalar_through_detach, lambda: (ramp(3, 4), torch.tensor(1.0))),
    "positions_added": (positions_added, lambda: (ramp(3, 4),)),
    "transposed_scalar": (transposed_scalar, lambda: (torch.tensor(2.0),)),
    "foretold_layout": (foretold_layout_before_copy, lambda: (ramp(4, 4), ramp(4, 4).double())),
    "saved_and_overwritten": (saved_and_overwritten, lambda: (ramp(12), ramp(12), ramp(12).requires_grad_())),
    "softmax_of_one": (softmax_of_one, lambda: (ramp(1),)),
    "largest_of_one": (largest_of_one, lambda: (ramp(4, 1), ramp(4))),
    "number_copied": (number_copied, lambda: (ramp(3),)),
    "whole_then_part": (whole_then_part_read_between, lambda: (ramp(3),)),
    "scalar_of_higher_rank": (scalar_of_higher_rank, lambda: (ramp(4, 1),)),
    "chunk": (write_through_chunk, lambda: (ramp(12) - 5,)),
    "reduced_beside_write": (reduced_beside_write, lambda: (ramp(1) + 6, ramp(1))),
}


@pytest.mark.parametrize("bookend", [False, True], ids=["inside", "bookend"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager(name, bookend):
    function, make = PROGRAMS[name]
    assert_equal(function, make, options={"bookend": bookend})


def test_layout_of_a_copy_with_symbolic_sizes():
    def function(x):
        turned = x.transpose(0, 1).contiguous()
        return turned + turned

    assert_equal(function, lambda: (ramp(4, 3),), dynamic=True)
