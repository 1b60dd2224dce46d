"""The same programs on a CUDA device: what only a device can show of layouts, streams and mixed CPU scalars."""

import pytest
import torch
import torch.nn.functional as F
from equal import assert_equal, ramp
from test_aliases import PAIRS, scale_then_read
from test_copy_rule import PROGRAMS

from pytest_fusealias.build import Program
from pytest_fusealias.check import check
from pytest_fusealias.model import Outcome, Spec

pytestmark = pytest.mark.gpu


def on_cuda(make):
    return lambda: tuple(t.cuda() for t in make())


@pytest.mark.parametrize("name", PROGRAMS)
def test_copy_rule(name):
    function, make = PROGRAMS[name]
    assert_equal(function, on_cuda(make))


VIEWS = {
    "rows": lambda b: (b[0:5], b[5:10]),
    "shifted": lambda b: (b[0:5], b[2:7]),
    "even_odd": lambda b: (b[0:10:2], b[1:10:2]),
    "same": lambda b: (b, b),
    "separate": lambda b: (b[:5].clone(), b[:5].clone()),
}


@pytest.mark.parametrize("later", VIEWS)
def test_overlap_that_appears_later(later):
    assert "shifted" in PAIRS

    def make():
        base = ramp(10).cuda()
        return ([VIEWS["separate"](base), VIEWS[later](base)],)

    assert_equal(scale_then_read, make, drive=lambda f, calls: [f(*call) for call in calls])


@pytest.mark.parametrize("capturable", [False, True], ids=["cpu_steps", "capturable"])
@pytest.mark.parametrize("foreach", [False, True], ids=["loop", "foreach"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_adam(kind, foreach, capturable):
    def build():
        parameters = [
            torch.nn.Parameter(torch.randn(s, device="cuda")) for s in ((30, 20), (7,), (2, 3, 4), (1,))
        ]
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimizer = kind(parameters, foreach=foreach, capturable=capturable)

        def three_steps(step):
            for _ in range(3):
                step()

        return Program(optimizer.step, state=[parameters, optimizer], drive=three_steps)

    moved = (
        {} if capturable else {"layout": "Dynamo moves CPU step counters to the device, whatever the backend"}
    )
    verdict = check(build, Spec(backend="fusion_core", device="cuda", xfail_checks=moved))
    assert verdict.outcome is Outcome.PASS, verdict.failures or verdict.not_measured


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training_of_a_block(dtype):
    def build():
        model = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32), torch.nn.LayerNorm(32)
        )
        return Program(model.cuda().to(dtype), (torch.randn(8, 32, device="cuda", dtype=dtype),))

    verdict = check(build, Spec(backend="fusion_core"))
    assert verdict.outcome is Outcome.PASS, verdict.failures


def test_batch_norm_dropout_and_cache():
    assert_equal(
        lambda x: F.dropout(x, 0.5) * 2, lambda: (torch.randn(64, device="cuda", requires_grad=True),)
    )

    def write(cache, position, token):
        cache.index_copy_(1, position, token)
        return cache.sum(1)

    assert_equal(
        write,
        lambda: (
            torch.zeros(2, 8, 4, device="cuda"),
            torch.tensor([3], device="cuda"),
            torch.randn(2, 1, 4, device="cuda"),
        ),
    )

    def norm(x, mean, var):
        return F.batch_norm(x, mean, var, training=True)

    assert_equal(
        norm,
        lambda: (
            torch.randn(4, 3, 5, device="cuda"),
            torch.zeros(3, device="cuda"),
            torch.ones(3, device="cuda"),
        ),
    )


def test_cpu_scalar_operand():
    assert_equal(lambda x, s: x.mul_(s).add_(1), lambda: (ramp(5).cuda(), torch.tensor(3.0)))
