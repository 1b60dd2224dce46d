"""Real programs that update tensors in place, compared with eager under fusion_core and inductor."""

import pytest
import torch
from programs import GPT2_SHAPES, CachedAttention, RMSNorm, parameters_with_gradients

BACKENDS = ["fusion_core", "inductor"]


@pytest.mark.parametrize("foreach", [False, True], ids=["loop", "foreach"])
@pytest.mark.fusion_equiv(backend="fusion_core")
def test_adam_over_gpt2(fusion_program, foreach):
    parameters = parameters_with_gradients(GPT2_SHAPES)
    optimizer = torch.optim.Adam(parameters, foreach=foreach)
    return fusion_program(optimizer.step, state=[parameters, optimizer])


@pytest.mark.fusion_equiv(backend=BACKENDS)
def test_adamw_three_steps(fusion_program):
    parameters = parameters_with_gradients([(8, 4), (4,), (4, 4)])
    optimizer = torch.optim.AdamW(parameters)

    def three(step):
        for _ in range(3):
            step()

    return fusion_program(optimizer.step, state=[parameters, optimizer], drive=three)


@pytest.mark.fusion_equiv(backend=BACKENDS)
def test_attention_with_cache(fusion_program):
    layer = CachedAttention(width=16, heads=2, length=8).requires_grad_(requires_grad=False)

    def decode(attend):
        return [attend(torch.ones(1, 1, 16) * n, torch.tensor([n])) for n in range(4)]

    return fusion_program(layer, drive=decode)


@pytest.mark.fusion_equiv(backend=BACKENDS, rtol=1e-4, atol=1e-4)
def test_batch_norm_training(fusion_program):
    layer = torch.nn.BatchNorm2d(4)
    images = torch.randn(8, 4, 6, 6, requires_grad=True)

    def two_steps(forward, x):
        return [forward(x).square().mean().backward() for _ in range(2)]

    return fusion_program(layer, images, drive=two_steps)


@pytest.mark.fusion_equiv(backend=BACKENDS)
def test_ema_of_weights(fusion_program):
    model, average = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)

    @torch.no_grad()
    def update():
        for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast, 0.01)

    return fusion_program(update, state=[model, average])


def gradients(device, dtype, seed):
    return [torch.randn(8, 4, device=device, dtype=dtype), torch.randn(4, device=device, dtype=dtype)], 1.0


@pytest.mark.fusion_equiv(inputs=gradients, backend=BACKENDS)
def test_clip_gradients(grads, max_norm):
    norm = torch.stack([g.norm() for g in grads]).norm()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(scale)
    return norm


def bookkeeping(device, dtype, seed):
    slots = torch.zeros(6, 3, device=device, dtype=dtype)
    free = torch.tensor([True, False, True, False, False, True], device=device)
    return slots, free, torch.tensor([1, 4], device=device), torch.randn(2, 3, device=device, dtype=dtype)


@pytest.mark.fusion_equiv(inputs=bookkeeping, backend=BACKENDS)
def test_slot_bookkeeping(slots, free, where, rows):
    slots.index_put_((where,), rows)
    slots.masked_fill_(free.unsqueeze(1), -1.0)
    free[where] = False
    return slots.sum(1)


@pytest.mark.fusion_equiv(backend=BACKENDS, rtol=1e-4, atol=1e-5)
def test_rms_norm_forward_backward(fusion_program):
    return fusion_program(RMSNorm(16), torch.randn(4, 16, requires_grad=True))


def test_cache_update_in_a_test_of_its_own(fusion_check):
    def update(cache, row, value):
        cache[row : row + 1] = value
        return cache.sum(0)

    for row in (0, 3):
        verdict = fusion_check(update, make=lambda r=row: (torch.zeros(4, 3), r, torch.ones(1, 3)))
        assert verdict["mutation"].outcome == "PASS"
