"""Bad input gets one clear message each, serial and under xdist."""

import textwrap

import pytest

PRELUDE = """
import pytest
import torch

def make(device, dtype, seed):
    return torch.randn(4, device=device), torch.randn(4, device=device)

SHARED = torch.zeros(4)
"""

# (name, test source, where it must be said, text of the message, exit code)
CASES = [
    (
        "unknown_argument",
        """
        @pytest.mark.fusion_equiv(inputs=make, backends="eager")
        def test_it(x, y):
            return x + y
        """,
        "unknown argument 'backends'; did you mean 'backend'?",
    ),
    (
        "unknown_backend",
        """
        @pytest.mark.fusion_equiv(inputs=make, backend="fusion_cor")
        def test_it(x, y):
            return x + y
        """,
        "unknown backend 'fusion_cor'; did you mean 'fusion_core'?",
    ),
    (
        "positional_argument",
        """
        @pytest.mark.fusion_equiv("eager", 3)
        def test_it(x, y):
            return x + y
        """,
        "takes keyword arguments only",
    ),
    (
        "wrong_value",
        """
        @pytest.mark.fusion_equiv(inputs=make, alias="sometimes")
        def test_it(x, y):
            return x + y
        """,
        "alias='sometimes': expected 'eager', 'no-new' or 'none'",
    ),
    (
        "nothing_to_compare",
        """
        @pytest.mark.fusion_equiv(backend="eager")
        def test_it():
            return 1
        """,
        "nothing to compare: give inputs=",
    ),
    (
        "shared_through_fixture",
        """
        @pytest.fixture
        def weight():
            return torch.ones(4)

        @pytest.mark.fusion_equiv(inputs=make, backend="eager")
        def test_it(x, y, weight):
            return x + weight
        """,
        "tensor fixture weight is shared by the eager and the control build",
    ),
    (
        "shared_through_self",
        """
        class TestIt:
            weight = torch.ones(4)

            def setup_method(self):
                self.weight = torch.ones(4)

            @pytest.mark.fusion_equiv(inputs=make, backend="eager")
            def test_it(self, x, y):
                return x + self.weight
        """,
        "tensor program.__self__.weight is shared",
    ),
    (
        "shared_through_global",
        """
        @pytest.mark.fusion_equiv(inputs=make, backend="eager")
        def test_it(x, y):
            SHARED.add_(1)
            return x + SHARED
        """,
        "tensor global SHARED is shared",
    ),
    (
        "shadowed_parameter",
        """
        @pytest.fixture
        def y():
            return 2

        @pytest.mark.fusion_equiv(inputs=make, backend="eager")
        def test_it(x, y):
            return x + y
        """,
        "inputs returned 2 values for the 1 program parameters (x); y come from fixtures",
    ),
    (
        "unittest",
        """
        import unittest

        class TestIt(unittest.TestCase):
            @pytest.mark.fusion_equiv(inputs=make, backend="eager")
            def test_it(self):
                return 1
        """,
        "unittest methods take no arguments",
    ),
    (
        "async_test",
        """
        @pytest.mark.fusion_equiv(inputs=make, backend="eager")
        async def test_it(x, y):
            return x + y
        """,
        "async tests are not supported",
    ),
    (
        "star_arguments",
        """
        @pytest.mark.fusion_equiv(inputs=make, backend="eager")
        def test_it(*xs):
            return xs[0]
        """,
        "*args, **kwargs and positional-only parameters cannot be filled",
    ),
    (
        "uninitialised_memory",
        """
        @pytest.mark.fusion_equiv(inputs=make, backend="eager")
        def test_it(x, y):
            return x + torch.empty(4)
        """,
        "the program reads uninitialised memory (torch.empty) or is not deterministic",
    ),
    (
        "factory_not_deterministic",
        """
        import itertools
        counter = itertools.count()

        def drifting(device, dtype, seed):
            return (torch.full((3,), float(next(counter))),)

        @pytest.mark.fusion_equiv(inputs=drifting, backend="eager")
        def test_it(x):
            return x + 1
        """,
        "two builds with the same seed differ at argument x",
    ),
    (
        "declared_raise_missing",
        """
        @pytest.mark.fusion_equiv(inputs=make, backend="eager", raises=ValueError)
        def test_it(x, y):
            return x + y
        """,
        "raises=ValueError is declared, but eager runs through",
    ),
    (
        "returns_no_program",
        """
        @pytest.mark.fusion_equiv(backend="eager")
        def test_it(fusion_program):
            return torch.ones(3)
        """,
        "the test returned Tensor; expected it to `return fusion_program(function, *args)`",
    ),
    (
        "inputs_no_tuple",
        """
        @pytest.mark.fusion_equiv(inputs=lambda device, dtype, seed: torch.ones(3), backend="eager")
        def test_it(x):
            return x
        """,
        "inputs returned Tensor; expected a tuple of positional arguments",
    ),
    (
        "mixed_devices",
        """
        def mixed(device, dtype, seed):
            return torch.ones(3), torch.ones(3, device="meta")

        @pytest.mark.fusion_equiv(inputs=mixed, backend="eager")
        def test_it(x, y):
            return x
        """,
        "the inputs lie on several devices (argument x on cpu, argument y on meta)",
    ),
    (
        "backend_raises",
        """
        def refuses(graph, example_inputs):
            raise NotImplementedError("no such thing")

        @pytest.mark.fusion_equiv(inputs=make, backend=refuses)
        def test_it(x, y):
            return x + y
        """,
        "the backend refuses what eager runs (backend refuses",
    ),
    (
        "other_pytree",
        """
        def compile_badly(function):
            compiled = torch.compile(function, backend="eager")
            return lambda **kw: {"result": compiled(**kw)}

        @pytest.mark.fusion_equiv(inputs=make, backend=compile_badly)
        def test_it(x, y):
            return x + y
        """,
        "values: output: the outputs have another structure: eager (output: tensor), the backend (output['result']: tensor)",
    ),
    (
        "backend_of_no_form",
        """
        @pytest.mark.fusion_equiv(inputs=make, backend=lambda: None)
        def test_it(x, y):
            return x + y
        """,
        "takes 0 required arguments",
    ),
    (
        "unexpected_pass",
        """
        @pytest.mark.fusion_equiv(inputs=make, backend="eager", xfail_checks={"alias": "somewhere#1"})
        def test_it(x, y):
            return x + y
        """,
        "alias: program: passes, but xfail_checks expects it to fail (somewhere#1)",
    ),
]


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "n2"])
def test_messages(pytester, workers):
    """One session holds all cases: each file fails with its own message, and nothing else is said for it."""
    for name, source, _ in CASES:
        pytester.makepyfile(**{f"test_{name}": PRELUDE + textwrap.dedent(source)})
    result = pytester.runpytest_subprocess("--continue-on-collection-errors", *workers)
    said = result.stdout.str()
    missing = [f"{name}: {text}" for name, _, text in CASES if text not in said]
    assert not missing, missing
    outcomes = result.parseoutcomes()
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) == len(CASES), outcomes
    assert "INTERNALERROR" not in said
    assert "passed" not in outcomes


def test_eager_that_raises_is_not_measured(pytester):
    """Nobody declared that the program raises, so its equal failure under the backend proves nothing about values."""
    pytester.makepyfile(
        PRELUDE
        + textwrap.dedent(
            """
            @pytest.mark.fusion_equiv(inputs=make, backend="eager")
            def test_it(x, y):
                return torch.linalg.cholesky(x)
            """
        )
    )
    result = pytester.runpytest_subprocess()
    result.stdout.fnmatch_lines(["NOT-MEASURED*test_it*values: eager raises *declare raises=*"])
    assert result.ret == 0
    strict = pytester.runpytest_subprocess("--fusion-strict")
    assert strict.ret == 1


def test_graph_break_is_no_error(pytester):
    pytester.makepyfile(
        PRELUDE
        + textwrap.dedent(
            """
            @pytest.mark.fusion_equiv(inputs=make, backend=["eager", "aot_eager", "fusion_core"])
            def test_it(x, y):
                x.add_(y)
                torch._dynamo.graph_break()
                return x * 2
            """
        )
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=3)
