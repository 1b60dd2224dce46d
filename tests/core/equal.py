"""Compare one function in eager and under fusion_core, several calls on inputs built twice."""

import torch

import fusion_core.backend
from pytest_fusealias.build import Program
from pytest_fusealias.check import check
from pytest_fusealias.model import Outcome, Spec


def assert_equal(function, make, drive=None, options=None, **spec):
    """Asserts that nothing observable differs; `make()` returns the positional arguments."""
    backend = "fusion_core" if options is None else with_options(options)
    verdict = check(lambda: Program(function, make(), drive=drive), Spec(backend=backend, **spec))
    assert verdict.outcome is Outcome.PASS, verdict.failures or verdict.not_measured
    return verdict


def with_options(options):
    """The backend as a callable that has its options."""

    def configured(module, example_inputs):
        return fusion_core.backend.fusion_core(module, example_inputs, options=options)

    return configured


def ramp(*shape, start=0.0):
    count = 1
    for size in shape:
        count *= size
    return (torch.arange(count, dtype=torch.float32) + start).reshape(shape)
