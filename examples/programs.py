"""Builders that several examples share; sizes are small, so that a laptop runs everything in a minute."""

import torch
import torch.nn.functional as F

WIDTH = 8
BLOCK = [(WIDTH,), (WIDTH,), (WIDTH, 3 * WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,)]
BLOCK += [(WIDTH,), (WIDTH,), (WIDTH, 4 * WIDTH), (4 * WIDTH,), (4 * WIDTH, WIDTH), (WIDTH,)]
# The 148 parameters of GPT-2 small by structure, narrowed.
GPT2_SHAPES = [(32, WIDTH), (16, WIDTH), *BLOCK * 12, (WIDTH,), (WIDTH,)]


def parameters_with_gradients(shapes):
    """Returns parameters whose gradients are set."""
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    for p in parameters:
        p.grad = torch.randn_like(p)
    return parameters


class CachedAttention(torch.nn.Module):
    """Self-attention over a cache of keys and values that it writes in place."""

    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.project = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        shape = (1, heads, length, width // heads)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(self, token, position):
        """Attends from one token, (1, 1, width), to all cached ones; writes row `position`, a (1,) tensor."""
        q, k, v = (t.view(1, 1, self.heads, -1).transpose(1, 2) for t in self.project(token).chunk(3, -1))
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        seen = (torch.arange(self.keys.shape[2]) <= position)[None]
        mixed = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)
        return self.out(mixed.transpose(1, 2).flatten(2))


class RMSNorm(torch.nn.Module):
    """Root-mean-square normalization over the last dimension."""

    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        """Returns `x` scaled to unit mean square, times the weight."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight
