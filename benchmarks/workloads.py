"""Small whole models as users write them: a GPT, a block with a cache, a residual network, a mixer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GptBlock(nn.Module):
    """Layer norm, causal attention, layer norm, MLP with GELU, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.norm_1(x)).split(width, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    """Token and position embeddings, blocks, a head; the loss of the next token."""

    def __init__(self, layers: int, width: int, heads: int, words: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


class LlamaBlock(nn.Module):
    """RMS norm, rotary embedding, attention over a cache that is written in place, gated MLP."""

    def __init__(self, width: int, heads: int, batch: int, room: int) -> None:
        super().__init__()
        self.heads, size = heads, width // heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)
        angles = torch.outer(torch.arange(room), 10000.0 ** -(torch.arange(0, size, 2) / size))
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))
        self.register_buffer("keys", torch.zeros(batch, heads, room, size))
        self.register_buffer("values", torch.zeros(batch, heads, room, size))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.norm_1(x)
        q, k, v = (m(y).view(batch, length, self.heads, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        cos, sin = self.cos[at], self.sin[at]
        self.keys.index_copy_(2, at, _turned(k, cos, sin))
        self.values.index_copy_(2, at, v)
        seen = torch.arange(self.keys.shape[2], device=x.device)[None] <= at[:, None]
        y = F.scaled_dot_product_attention(_turned(q, cos, sin), self.keys, self.values, attn_mask=seen)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, width))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Residual(nn.Module):
    """Two convolutions with batch norm, added to what came in."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv_2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm_1, self.norm_2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        plain = before == after and stride == 1
        self.skip = (
            nn.Identity()
            if plain
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm_1(self.conv_1(x)), inplace=True)
        return F.relu(self.norm_2(self.conv_2(y)) + self.skip(x), inplace=True)


class ResNet18(nn.Module):
    """18 layers; the loss against class numbers."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        sizes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        sizes += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks = nn.Sequential(*(Residual(*s) for s in sizes))
        self.head = nn.Linear(512, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(self.stem(images)).mean((2, 3))).float(), labels)


class Mixer(nn.Module):
    """An MLP-mixer over patches; the loss against class numbers."""

    def __init__(self, layers: int, width: int, patches: int, classes: int) -> None:
        super().__init__()
        self.inner = nn.ModuleList(
            nn.ModuleList(
                (
                    nn.LayerNorm(width),
                    nn.Linear(patches, 2 * patches),
                    nn.Linear(2 * patches, patches),
                    nn.LayerNorm(width),
                    nn.Linear(width, 4 * width),
                    nn.Linear(4 * width, width),
                )
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        for norm_1, up_1, down_1, norm_2, up_2, down_2 in self.inner:
            x = x + down_1(F.gelu(up_1(norm_1(x).transpose(1, 2)))).transpose(1, 2)
            x = x + down_2(F.gelu(up_2(norm_2(x))))
        return F.cross_entropy(self.head(x.mean(1)).float(), labels)


Compile = Callable[[Callable[..., object]], Callable[..., object]]
Step = Callable[[], Tensor]


@dataclass(frozen=True)
class Workload:
    """`build(compile, device, small)` returns a step, which returns a loss or a result that can be compared."""

    name: str
    build: Callable[[Compile, str, bool], Step]


def _training(model: nn.Module, *inputs: Tensor, compile: Compile) -> Step:  # noqa: A002 - what it does
    """zero_grad, forward, backward, clipping, and a step of AdamW, each compiled where it is compiled by users."""
    forward = compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=inputs[0].is_cuda, foreach=True)
    update = compile(optimizer.step)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(*inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        update()
        return loss.detach()

    return step


def gpt_block(compile: Compile, device: str, small: bool) -> Step:  # noqa: A002
    batch, length, width, heads = (2, 16, 64, 4) if small else (8, 1024, 768, 12)
    block = GptBlock(width, heads).to(device, _dtype(device))
    x = torch.randn(batch, length, width, device=device, dtype=_dtype(device), requires_grad=True)
    forward = compile(block)

    def step() -> Tensor:
        block.zero_grad(set_to_none=True)
        x.grad = None
        y = forward(x)
        y.backward(torch.ones_like(y))
        return x.grad.float().abs().mean()

    return step


def gpt(compile: Compile, device: str, small: bool) -> Step:  # noqa: A002
    layers, width, heads, words, length, batch = (
        (2, 64, 4, 100, 16, 2) if small else (4, 768, 12, 50304, 1024, 4)
    )
    model = Gpt(layers, width, heads, words, length).to(device, _dtype(device))
    return _training(model, torch.randint(0, words, (batch, length), device=device), compile=compile)


def llama_decode(compile: Compile, device: str, small: bool) -> Step:  # noqa: A002
    """The prompt once, then each step is one token; after 64 tokens the cache is written from the prompt's end again."""
    width, heads, batch, prompt, room = (64, 4, 2, 8, 96) if small else (2048, 16, 4, 512, 640)
    block = LlamaBlock(width, heads, batch, room).to(device, _dtype(device)).eval()
    forward = compile(block)
    given = torch.randn(batch, prompt, width, device=device, dtype=_dtype(device))
    token = torch.randn(batch, 1, width, device=device, dtype=_dtype(device))
    places = [torch.tensor([prompt + n], device=device) for n in range(64)]
    with torch.no_grad():
        forward(given, torch.arange(prompt, device=device))
    count = 0

    def step() -> Tensor:
        nonlocal count
        with torch.no_grad():
            y = forward(token, places[count % 64])
        count += 1
        return y.float().abs().mean()

    return step


def resnet18(compile: Compile, device: str, small: bool) -> Step:  # noqa: A002
    batch, size = (4, 64) if small else (32, 224)
    model = ResNet18(1000).to(device)
    images = torch.randn(batch, 3, size, size, device=device)
    return _training(model, images, torch.randint(0, 1000, (batch,), device=device), compile=compile)


def mixer(compile: Compile, device: str, small: bool) -> Step:  # noqa: A002
    layers, width, patches, batch = (2, 32, 16, 2) if small else (8, 512, 196, 32)
    model = Mixer(layers, width, patches, 1000).to(device, _dtype(device))
    x = torch.randn(batch, patches, width, device=device, dtype=_dtype(device))
    return _training(model, x, torch.randint(0, 1000, (batch,), device=device), compile=compile)


def einsum(compile: Compile, device: str, small: bool) -> Step:  # noqa: A002
    """Bilinear form, attention by hand, and a batched contraction, forward and backward."""
    n, d = (8, 8) if small else (256, 128)
    made = [torch.randn(16, n, d, device=device, dtype=_dtype(device), requires_grad=True) for _ in range(3)]
    weight = torch.randn(d, d, device=device, dtype=_dtype(device), requires_grad=True)

    def function(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        bilinear = torch.einsum("bnd,de,bme->bnm", q, w, k)
        attention = torch.einsum("bnm,bmd->bnd", bilinear.softmax(-1), v)
        contraction = torch.einsum("bnd,bne->bde", attention.tanh(), v)
        return torch.einsum("bde,de->b", contraction, w).sigmoid()

    forward = compile(function)

    def step() -> Tensor:
        y = forward(*made, weight)
        grads = torch.autograd.grad(y.sum(), [*made, weight])
        return sum(g.float().abs().mean() for g in grads)

    return step


def _dtype(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float32


WORKLOADS = {
    w.__name__: Workload(w.__name__, w) for w in (gpt_block, gpt, llama_decode, resnet18, mixer, einsum)
}
