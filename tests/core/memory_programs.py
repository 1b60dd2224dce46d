"""Programs whose memory is estimated and measured, and how a backend's forward and backward are measured apart."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F

from pytest_fusealias.measure.sessions import meter_for, profiled


@dataclass(frozen=True)
class Case:
    """`make(device)` returns a function and its arguments; `trains` tells that a backward follows.

    `only_compiled_on` names the device on which eager refuses the program.
    """

    name: str
    make: Callable
    trains: bool = False
    only_compiled_on: str = ""


@dataclass(frozen=True)
class Phases:
    """Peak and what is left, in bytes above the start of each phase; backward is None where there is none."""

    forward: tuple[int, int]
    backward: tuple[int, int] | None
    allocated: tuple[int, int] = field(
        default=(0, 0), compare=False
    )  # the peaks as the allocator rounds them


def foo(a, b):
    return a.unsqueeze(0) + b.unsqueeze(0)


def bar(a, b):
    wide_a, wide_b = a.unsqueeze(0).expand(2, 3, 4), b.view(1, 4).unsqueeze(0).expand(2, 3, 4)
    return wide_a + wide_b, b.view(4) + a


def bar1(a, b, c):
    return b + a.unsqueeze(0).expand(1, 4, 4), c + a.unsqueeze(0).unsqueeze(0).expand(4, 1, 4)


def bar2(a, b):
    first, second, third = torch.split(a, 2)
    return first + b, second * b, second.unsqueeze(0), third


def views(a):
    transposed = a.t().reshape(-1)
    return transposed.view(4, -1) * 2, a.permute(1, 0)[1:].sum(0)


class Block(torch.nn.Module):
    """A block of nanoGPT without dropout."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, width = x.shape
        q, k, v = (
            p.view(n, t, self.heads, width // self.heads).transpose(1, 2)
            for p in self.qkv(self.ln_1(x)).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(n, t, width))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


def inputs(function, *shapes, grad=True):
    def make(device):
        return function, tuple(torch.randn(*s, device=device, requires_grad=grad) for s in shapes)

    return make


def module(build, *shape):
    def make(device):
        return build().to(device), (torch.randn(*shape, device=device),)

    return make


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 64))


def norm():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())


def optimizer(kind, **options):
    def make(device):
        parameters = [
            torch.nn.Parameter(torch.randn(s, device=device)) for s in [(300, 200), (200,), (50, 20)]
        ]
        for p in parameters:
            p.grad = torch.randn_like(p)
        return kind(parameters, **options).step, ()

    return make


def kv_step(device):
    cache = torch.zeros(2, 1, 4, 256, 32, device=device)

    def step(cache, k, v, q, position):
        cache[0].index_copy_(2, position, k)
        cache[1].index_copy_(2, position, v)
        scores = q @ cache[0].transpose(-1, -2)
        return scores.softmax(-1) @ cache[1]

    new = [torch.randn(1, 4, 1, 32, device=device) for _ in range(3)]
    return step, (cache, *new, torch.tensor([17], device=device))


def in_place(device):
    def step(a, b):
        a.add_(b)

    return step, (torch.randn(256, device=device), torch.randn(256, device=device))


CASES = [
    Case("foo", inputs(foo, (4,), (4,)), trains=True),
    Case("bar", inputs(bar, (4,), (2, 2)), trains=True),
    Case("bar1", inputs(bar1, (4,), (1, 4, 4), (4, 1, 4)), trains=True),
    Case("bar2", inputs(bar2, (5, 2), (2, 2)), trains=True),
    Case("views", inputs(views, (8, 6)), trains=True),
    Case("views without grad", inputs(views, (8, 6), grad=False)),
    Case("a.add_(b), 1 KiB", in_place),
    Case("MLP", module(mlp, 32, 256), trains=True),
    Case("convolution, BatchNorm, ReLU", module(norm, 4, 3, 16, 16), trains=True),
    Case("GPT block, 2 x 1024 x 768", module(lambda: Block(768, 12), 2, 1024, 768), trains=True),
    Case("KV-cache step", kv_step),
    Case("Adam", optimizer(torch.optim.Adam)),
    Case(
        "Adam, capturable foreach",
        optimizer(torch.optim.Adam, foreach=True, capturable=True),
        only_compiled_on="cpu",
    ),
    Case("AdamW", optimizer(torch.optim.AdamW)),
    Case("SGD with momentum", optimizer(torch.optim.SGD, lr=0.1, momentum=0.9)),
]


def measured(case, device, compiler=None):
    """Returns the Phases of a case in eager, or compiled by `compiler`, after three calls."""
    meter = meter_for(device)
    torch._dynamo.reset()
    with profiled():
        torch.manual_seed(0)
        function, arguments = case.make(device)
    call = function if compiler is None else compiler(function)
    holder = [function, *arguments]
    gc.collect()
    gc.freeze()  # spares what lives already from the many collections to come
    try:
        return _agreed(lambda: _phases(meter, call, arguments, holder, trains=case.trains))
    finally:
        gc.unfreeze()


def _agreed(measure):
    """Returns what two measurements in a row say after two to warm up: autograd's threads may let go of memory late."""
    found = [measure() for _ in range(3)]
    while len(found) < 9:
        found.append(measure())
        if found[-1] == found[-2]:
            return found[-1]
    raise AssertionError(f"no two measurements in a row agree: {found}")


def _phases(meter, call, arguments, holder, *, trains):
    results = []

    def forward():
        results.append(call(*arguments))

    leaves = [leaf for leaf in _leaves(holder) if leaf.requires_grad]
    seen = meter.call(forward)
    if not trains:
        outcome = Phases((seen.peak_bytes, seen.left_bytes), None, (seen.peak_allocated_bytes, 0))
    else:
        roots = [t for t in _tensors(results[0]) if t.requires_grad]
        with profiled():
            cotangents = [torch.ones_like(t) for t in roots]
        # gradients are returned, since storing them may copy them, which is no part of the compiled graph
        back = meter.call(lambda: torch.autograd.grad(roots, leaves, cotangents, allow_unused=True))
        outcome = Phases(
            (seen.peak_bytes, seen.left_bytes),
            (back.peak_bytes, back.held_bytes),
            (seen.peak_allocated_bytes, back.peak_allocated_bytes),
        )
        with profiled():
            del roots, cotangents
    with profiled():
        results.clear()
        gc.collect()
    return outcome


def _leaves(holder):
    found = [list(o.parameters()) if isinstance(o, torch.nn.Module) else [o] for o in holder]
    return [leaf for leaves in found for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _tensors(result):
    return [
        t for t in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(t, torch.Tensor)
    ]
