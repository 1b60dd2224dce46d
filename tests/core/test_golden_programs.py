"""The programs of well-known functions as text: a change of the lowering shows here, line by line."""

import pytest
import torch
import torch.nn.functional as F
from equal import ramp

from fusion_core import explain
from fusion_core.program.text import text


def adam_step():
    parameters = [torch.nn.Parameter(ramp(*shape)) for shape in ((3, 2), (4,), (2, 3, 2))]
    for p in parameters:
        p.grad = torch.ones_like(p)
    return torch.optim.Adam(parameters, foreach=True).step, ()


def layer_norm_forward_and_backward():
    def step(x, w, b):
        F.layer_norm(x, (8,), w, b).square().sum().backward()

    return step, (ramp(4, 8).requires_grad_(), ramp(8).requires_grad_(), ramp(8).requires_grad_())


def batch_norm_training():
    def step(x, mean, variance):
        return F.batch_norm(x, mean, variance, training=True)

    return step, (ramp(4, 3, 5), torch.zeros(3), torch.ones(3))


def softmax():
    return (lambda x: torch.softmax(x * 2, -1)), (ramp(4, 8),)


def cache_update():
    def step(cache, token):
        cache[:, 3:4] = token * 2
        return cache.sum(-1)

    return step, (ramp(2, 8, 4), ramp(2, 1, 4))


def moving_average():
    def step(average, x):
        average.lerp_(x, 0.01)

    return step, (ramp(3, 4), ramp(3, 4).bfloat16().float())


PROGRAMS = [
    adam_step,
    layer_norm_forward_and_backward,
    batch_norm_training,
    softmax,
    cache_update,
    moving_average,
]


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
def test_programs(make, golden):
    function, args = make()
    e = explain(function, *args)
    lines = [f"{report.components} x {text(report.program)}" for report in e.programs]
    lines += [f"eager {step.operator}: {step.reason}" for step in e.eager_steps]
    lines += [f"set {note.target}: {note.reason}" for note in e.sets]
    lines += [f"no alias {note.target}: {note.reason}" for note in e.refused_aliases]
    golden(f"program_{make.__name__}", "\n".join(lines))
