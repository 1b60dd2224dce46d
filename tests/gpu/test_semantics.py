"""Copies, fresh outputs, partial updates, views and changing sizes on nvFuser, by all checks of the plugin."""

import re

import pytest
import torch
import torch.nn.functional as F
from equal import assert_equal, with_options
from partial_updates import PROGRAMS
from test_bookend import GOLDENS
from test_copy_semantics import COPIES, FRESH, then_write

import fusion_core
from fusion_core.executors.nvfuser import NvFuserExecutor

pytestmark = pytest.mark.gpu


def moved(make):
    """Inputs on the device, with the gaps that they had."""

    def on_device():
        tensors = []
        for t in make():
            base = t if t._base is None else t._base
            tensors.append(base.cuda().as_strided(t.shape, t.stride(), t.storage_offset()))
        return tuple(tensors)

    return on_device


@pytest.mark.parametrize("name", COPIES)
def test_copies(name):
    function, make = COPIES[name]
    assert_equal(function, moved(make))


def test_copy_between_host_and_device():
    """By hand, since the plugin wants all inputs of a program on one device."""

    def across(x, y):
        x.copy_(y)
        y.copy_(x * 2)
        return x + 1

    def run(function):
        x, y = torch.ones(5, device="cuda"), torch.arange(5.0)
        return function(x, y), x, y

    torch._dynamo.reset()
    for found, expected in zip(run(fusion_core.compile(across)), run(across), strict=True):
        assert found.device == expected.device
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", FRESH)
def test_outputs_have_memory_of_their_own(name):
    function, make = FRESH[name]
    assert_equal(function, moved(make))


@pytest.mark.parametrize("name", FRESH)
def test_outputs_keep_their_value_when_the_input_is_written_too(name):
    function, make = FRESH[name]
    assert_equal(then_write(function), moved(make))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_partial_updates(program):
    def make():
        return torch.randn(4, 16, 8, device="cuda"), torch.randn(4, 1, 8, device="cuda")

    assert_equal(program, make)


@pytest.mark.parametrize("bookend", [False, True], ids=["inside", "bookend"])
@pytest.mark.parametrize("function", GOLDENS, ids=lambda f: f.__name__)
def test_transpositions(function, bookend):
    assert_equal(function, lambda: (torch.randn(2, 3, 5, device="cuda"),), options={"bookend": bookend})


def test_one_kernel_serves_new_sizes():
    def norm(x, w):
        return F.layer_norm(x, (x.shape[-1],), w, w)

    def make():
        return (
            [(torch.randn(n, 256, device="cuda"), torch.randn(256, device="cuda")) for n in (4, 64, 1000)],
        )

    assert_equal(norm, make, drive=lambda f, calls: [f(*call) for call in calls], dynamic=True)
    report = fusion_core.explain(norm, *make()[0][0], dynamic=True)
    (program,) = report.programs
    kernel = NvFuserExecutor().compile(program.program)
    variants, sizes = set(), (64, 96, 128, 192, 256, 384, 512)
    for rows in (*sizes, *sizes):
        given = [torch.randn(rows, 256, device="cuda"), torch.randn(256, device="cuda")]
        kernel(given)
        variants.update(re.findall(r"nvfuser_\w+_f\d+_c\d+_r\d+_g\d+", kernel.sources(given)))
    assert 1 <= len(variants) < len(sizes), (
        "nvFuser adds a variant where its heuristics change, not for every size"
    )


def test_out_of_memory_is_torchs_error_and_leaves_the_inputs():
    free, _ = torch.cuda.mem_get_info()
    x = torch.full((int(free * 0.6) // 4,), 2.0, device="cuda")

    def double(x):
        y = x * 2
        x.add_(1)
        return y

    compiled = fusion_core.compile(double)
    with pytest.raises(torch.OutOfMemoryError):
        compiled(x)
    assert x[0].item() == 2.0
    assert x[-1].item() == 2.0


def test_cross_entropy_and_its_gradient_run_no_library_call():
    def step(x, target):
        return F.cross_entropy(x, target)

    def make():
        return torch.randn(64, 1000, device="cuda", requires_grad=True), torch.randint(
            0, 1000, (64,), device="cuda"
        )

    assert_equal(step, make)
    assert fusion_core.explain(lambda x, t: step(x, t).backward(), *make()).eager_steps == ()


def test_random_numbers_inside_kernels_follow_the_seed():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: F.dropout(x, 0.25), backend=with_options({"rng": "fused"}))
    x = torch.ones(1 << 16, device="cuda", requires_grad=True)
    torch.manual_seed(1)
    first = compiled(x)
    torch.manual_seed(1)
    assert torch.equal(compiled(x), first)
    assert not torch.equal(compiled(x), first)
    assert abs((first != 0).float().mean().item() - 0.75) < 0.01
    (gradient,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(gradient, first.detach())


@pytest.mark.parametrize("shapes", [((30, 20), (7,), (1,)), ((64,),) * 12], ids=["single", "packed"])
def test_optimizer_steps_over_small_and_large_tensors(shapes):
    from pytest_fusealias.build import Program
    from pytest_fusealias.check import check
    from pytest_fusealias.model import Outcome, Spec

    def build():
        parameters = [torch.nn.Parameter(torch.randn(s, device="cuda")) for s in (*shapes, (300, 300))]
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimizer = torch.optim.AdamW(parameters, capturable=True, foreach=True)
        return Program(
            optimizer.step,
            state=[parameters, optimizer],
            drive=lambda step: [step() for _ in range(3)] and None,
        )

    verdict = check(build, Spec(backend="fusion_core", device="cuda"))
    assert verdict.outcome is Outcome.PASS, verdict.failures or verdict.not_measured
