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


def scatter_then_views(x):
    x.scatter_(2, torch.zeros(2, 3, 1, dtype=torch.int64), 0.5)
    return x[:, :, ::2].reshape(-1) + 1


def column_and_lower_rank(x, y):
    x[:, 0:1] += y


def read_after_partial_write(x, w):
    x.add_(1)
    q = w @ w
    o = x * q + x.sum(0)
    x[0] = 5
    return o


def masked_scalar(x, s):
    x.masked_fill_(s > 0, 0.25)


def old_value_beside_reduction(x, y):
    old = x.clone()
    x.add_(y.sum(0))
    return old


PROGRAMS = {
    "scatter_then_views": (scatter_then_views, lambda: (ramp(4, 3, 2).transpose(0, 2),)),
    "column_and_lower_rank": (column_and_lower_rank, lambda: (ramp(4, 1), ramp(1))),
    "read_after_partial_write": (read_after_partial_write, lambda: (ramp(3, 3), ramp(3, 3))),
    "masked_scalar": (masked_scalar, lambda: (torch.tensor(3.0), torch.tensor(1.0))),
    "old_value_beside_reduction": (old_value_beside_reduction, lambda: (ramp(3), ramp(2, 3))),
    "every_second_times_scalar": (lambda x, s: x * s, lambda: (ramp(3, 8)[:, ::2], torch.tensor(2.0))),
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


def test_tensor_that_shrinks_between_calls():
    """The same tensor object at the same address, with fewer elements: nothing beyond them may be written."""

    def drive(f, x):
        f(x)
        x.resize_(2, 4)
        f(x)

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.mul_(2), backend="fusion_core", dynamic=True)
    x = torch.ones(2, 8)
    drive(compiled, x)
    whole = torch.empty(0).set_(x.untyped_storage(), 0, (16,), (1,))
    assert whole.tolist() == [4.0] * 8 + [2.0] * 8
