"""Programs that update parts of their inputs, for tests with and without a device.

They lie outside of the test files because two of their operators are defined here: a test file that another one
imports exists twice, the second definition of an operator destroys the first, and torch (2.13) then calls freed memory
(pytorch/pytorch#197025).
"""

import torch
from equal import ramp


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
