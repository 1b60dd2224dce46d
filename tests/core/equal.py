"""Compare one function in eager and under fusion_core, several calls on inputs built twice."""

import torch

from pytest_fusealias.build import Program
from pytest_fusealias.check import check
from pytest_fusealias.model import Outcome, Spec


def assert_equal(function, make, drive=None, **spec):
    """Asserts that nothing observable differs; `make()` returns the positional arguments."""
    verdict = check(lambda: Program(function, make(), drive=drive), Spec(backend="fusion_core", **spec))
    assert verdict.outcome is Outcome.PASS, verdict.failures or verdict.not_measured
    return verdict


def ramp(*shape, start=0.0):
    count = 1
    for size in shape:
        count *= size
    return (torch.arange(count, dtype=torch.float32) + start).reshape(shape)
