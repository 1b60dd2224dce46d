"""A pytest suite over a corpus of reported compiler bugs; run it through `benchmarks/corpus.py`.

The corpus is a Python module with a list `CASES`; each case has `id`, `fn`, `make_inputs(device)`, `drive(f, args)`,
`raises`, `dynamic`, `atol` and `budget`.
"""

import importlib.util
import sys

import pytest


def load(path):
    """Returns the corpus module at `path`."""
    if "fusealias_corpus" not in sys.modules:
        spec = importlib.util.spec_from_file_location("fusealias_corpus", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules["fusealias_corpus"] = module
        spec.loader.exec_module(module)
    return sys.modules["fusealias_corpus"]


def pytest_generate_tests(metafunc):
    """One test a case."""
    if "case" in metafunc.fixturenames:
        cases = load(metafunc.config.getoption("--corpus")).CASES
        metafunc.parametrize("case", cases, ids=[c.id for c in cases])


# Dynamo leaves these frames to Python whatever the backend (`Tensor.retain_grad` on an input), so nothing is compiled.
LEFT_TO_EAGER = {"grad_retain_grad_inside"}
BOUNDS = {"peak_ratio": "max_peak_ratio", "peak_extra": "max_peak_delta", "recompiles": "max_recompiles"}


@pytest.mark.fusion_equiv
def test_case(case, fusion_check, fusion_device):
    """Compares eager and compiled over the case's own driver."""
    bounds = {BOUNDS[name]: value for name, value in (case.budget or {}).items()}
    tolerance = {"rtol": case.atol, "atol": case.atol} if case.atol else {}
    fusion_check(
        case.fn,
        make=lambda: (case.make_inputs(str(fusion_device)),),
        drive=lambda f, arguments: case.drive(f, arguments),
        raises=Exception if case.raises else None,
        dynamic=case.dynamic,
        allow_fallback=case.id in LEFT_TO_EAGER,
        **tolerance,
        **bounds,
    )
