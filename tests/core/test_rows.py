"""Every lowering row: the program means what eager does, and nvFuser accepts its definition where it is installed."""

import importlib.util

import pytest
import torch
from samples import MOVES, X, calls, pointwise_targets

import fusion_core
from fusion_core import explain

TARGETS = {str(t): t for t in pointwise_targets()}


def compare(function, args, device="cpu", **options):
    """Runs `function` in eager and compiled on equal inputs; returns both results."""
    given = [a.to(device) if isinstance(a, torch.Tensor) else a for a in args]
    torch._dynamo.reset()
    expected = function(*given)
    found = fusion_core.compile(function, **options)(*given)
    assert_same(found, expected)
    return found


def assert_same(found, expected):
    for a, b in zip(flat(found), flat(expected), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
        assert strides(a) == strides(b)


def strides(tensor):
    """Strides where a step is possible."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def flat(value):
    return value if isinstance(value, tuple) else (value,)


def program_function(target, kwargs, positions):
    """A function of the tensor arguments alone, so that numbers are constants of the graph."""

    def call(*tensors):
        given = iter(tensors)
        return target(*[next(given) if p is None else p for p in positions], **kwargs)

    return call


def cases(target):
    for label, args, kwargs in calls(target):
        positions = [None if isinstance(a, torch.Tensor) else a for a in args]
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        yield label, program_function(target, kwargs, positions), tensors


@pytest.mark.parametrize("name", TARGETS)
def test_pointwise_row(name):
    seen = [
        label for label, function, tensors in cases(TARGETS[name]) if compare(function, tensors) is not None
    ]
    assert seen, "eager accepts no sample"


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("bookend", [False, True], ids=["inside", "bookend"])
def test_reductions_and_views(name, bookend):
    compare(MOVES[name], [X.clone()], bookend=bookend)


@pytest.mark.parametrize("name", MOVES)
def test_half_types(name):
    compare(MOVES[name], [X.bfloat16()])


@pytest.mark.skipif(
    importlib.util.find_spec("nvfuser_direct") is None, reason="nvfuser_direct is not installed"
)
@pytest.mark.parametrize("name", [*TARGETS, *MOVES])
def test_nvfuser_accepts_the_definition(name):
    from fusion_core.executors.definition import Definition
    from fusion_core.executors.nvfuser import load

    programs = 0
    samples = [(f, t) for _, f, t in cases(TARGETS[name])] if name in TARGETS else [(MOVES[name], [X])]
    for function, tensors in samples:
        for report in explain(function, *tensors).programs:
            Definition(load(), report.program).build()
            programs += 1
    assert programs
