"""Reductions that keep dimensions of size 1, between operands that are broadcast into their result.

nvFuser 0.2.36 writes the first row only of `m * (t[:, None, None] * e.sum((1, 3), keepdim=True) * e)` with `e` of shape
[33, 5, 1, 2] where it is asked for exactly that.
"""

import random

import pytest
import torch
from equal import assert_equal

pytestmark = pytest.mark.gpu

REDUCTIONS = [torch.sum, torch.amax, torch.mean, torch.var]


def shapes(seed):
    """Returns the sizes of a tensor, the dimensions reduced, and the sizes of two others that are broadcast into it.

    One dimension of size 1 is kept beside another one, along which the second of the two is broadcast; the first is broadcast
    along those that are reduced.
    """
    chosen = random.Random(seed)
    rank = chosen.choice([3, 4, 4, 5])
    sizes = [chosen.choice([1, 2, 5, 33]) for _ in range(rank)]
    reduced = sorted(chosen.sample(range(rank), chosen.randint(1, rank - 2)))
    kept = [d for d in range(rank) if d not in reduced]
    long, single = chosen.sample(kept, 2)
    sizes[long], sizes[single], sizes[chosen.choice(reduced)] = 33, 1, 5
    first = [n for d, n in enumerate(sizes) if d in kept and n > 1]
    second = [1 if d == long or (d in kept and chosen.random() < 0.7) else n for d, n in enumerate(sizes)]
    while second[0] == 1:
        second.pop(0)
    return sizes, reduced, first, second


def program(seed):
    """Returns a function of three tensors, and what makes them."""
    sizes, reduced, first, second = shapes(seed)
    reduction = REDUCTIONS[seed % len(REDUCTIONS)]
    with_ones = [n if d not in reduced else 1 for d, n in enumerate(sizes)]
    keepdim = bool(seed // 4 % 2)

    def function(t, e, m):
        scale = reduction(e, reduced, keepdim=keepdim)
        scale = scale if keepdim else scale.reshape(with_ones)
        return m * (t.reshape(with_ones) * scale * e), scale

    def make():
        torch.manual_seed(seed)
        # positive numbers, whose sums do not cancel
        return tuple(torch.rand(shape, device="cuda") for shape in (first, sizes, second))

    return function, make


@pytest.mark.parametrize("seed", range(24))
def test_broadcast_into_the_result(seed):
    assert_equal(*program(seed))


def test_a_norm_of_one_batch_scaled_by_token():
    def norm(scale, x, w):
        return scale[:, None] * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)) * w

    def make():
        torch.manual_seed(0)
        return tuple(torch.randn(shape, device="cuda") for shape in ((40,), (1, 40, 96), (96,)))

    assert_equal(norm, make)
