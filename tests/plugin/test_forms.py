"""The three forms, parametrization, options, reports; each serial, with -n0 and with -n2."""

import json
import subprocess
import sys
import textwrap

import pytest

SUITE = """
import pytest
import torch

def make(device, dtype, seed):
    return torch.randn(4, device=device, dtype=dtype), torch.randn(4, device=device, dtype=dtype)

@pytest.mark.fusion_equiv(inputs=make, backend=["aot_eager", "fusion_core"])
def test_body(average, x):
    average.lerp_(x, 0.1)
    return average

@pytest.mark.fusion_equiv(backend="fusion_core")
def test_builder(fusion_program):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    return fusion_program(optimizer.step, state=[model, optimizer])

def test_imperative(fusion_check):
    def update(cache, token):
        cache[1:2] = token
        return cache.sum(0)
    verdict = fusion_check(update, make=lambda: (torch.zeros(4, 3), torch.ones(1, 3)), backend="aot_eager")
    assert verdict["mutation"].outcome == "PASS"

class TestGroup:
    @pytest.mark.parametrize("factor", [2, 3])
    @pytest.mark.fusion_equiv(inputs=make)
    def test_method(self, x, y, factor):
        return x * factor + y

def broken(graph, example_inputs):
    return lambda *inputs: graph(*[i.clone() for i in inputs])

@pytest.mark.fusion_equiv(inputs=make, backend=broken)
def test_lost(x, y):
    x.add_(y)

@pytest.mark.fusion_equiv(inputs=make, backend=broken, xfail_checks={"mutation": "known#7"})
def test_known(x, y):
    x.add_(y)

@pytest.mark.fusion_equiv(inputs=make, backend="eager", canary=True)
def test_bound(x, y):
    return x + y

def test_plain():
    assert True
"""

WORKERS = pytest.mark.parametrize("workers", [(), ("-n0",), ("-n2",)], ids=["plain", "n0", "n2"])


@WORKERS
def test_forms(pytester, workers):
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("--junitxml=out.xml", *workers)
    result.assert_outcomes(passed=9, failed=1)
    result.stdout.fnmatch_lines(
        [
            "fusealias: torch *, backend fusion_core, cpu, default dtype, seed 0",
            "  mutation: argument x: the mutation is lost: 4 of 4 storage elements; first at 0: before *, eager *, the backend *",
            "  again: pytest *test_lost* --fusion-seed=0 --fusion-device=cpu",
            "9 checked: 7 passed, 1 failed (0 refused by the backend), 0 errors, 1 not measured; 1 expected failures, 2 weak*",
        ]
    )
    said = result.stdout.str()
    assert "NOT-MEASURED" in said
    assert "canary is not measured by this version" in said
    assert "EXPECTED test_forms.py::test_known [broken] mutation: known#7" in said
    junit = (pytester.path / "out.xml").read_text()
    assert 'name="fusealias.mutation" value="FAIL"' in junit
    assert 'name="fusealias.backend" value="aot_eager"' in junit
    assert 'failures="1"' in junit


@WORKERS
def test_strict_fails_what_was_not_measured(pytester, workers):
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("--fusion-strict", "-k", "bound", *workers)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["  canary: NOT-MEASURED: canary is not measured by this version"])


@WORKERS
def test_ids_and_backend_option(pytester, workers):
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("-v", "-k", "body", *workers)
    said = result.stdout.str()
    assert "test_body[aot_eager]" in said
    assert "test_body[fusion_core]" in said
    result = pytester.runpytest_subprocess("-v", "-k", "body", "--fusion-backend=eager", *workers)
    assert "test_body " in result.stdout.str().replace("\n", " ")
    result.stdout.fnmatch_lines(["test_body * eager * 1 * PASS*"])


def test_ini_twins(pytester):
    pytester.makepyfile(SUITE)
    pytester.makeini(
        "[pytest]\nfusion_backend = aot_eager\nfusion_dtype = float64\nfusion_seed = 3\nfusion_strict = true\n"
    )
    result = pytester.runpytest_subprocess("-k", "method or bound")
    result.stdout.fnmatch_lines(["fusealias: torch *, backend aot_eager, cpu, float64, seed 3, strict"])
    result.assert_outcomes(passed=2, failed=1)
    over = pytester.runpytest_subprocess(
        "-k", "method", "--fusion-seed=5", "--fusion-dtype=float32", "--fusion-backend=eager"
    )
    over.stdout.fnmatch_lines(["fusealias: torch *, backend eager, cpu, float32, seed 5, strict"])


def test_bad_seed_and_dtype_are_usage_errors(pytester):
    pytester.makepyfile(SUITE)
    pytester.makeini("[pytest]\nfusion_seed = many\n")
    result = pytester.runpytest_subprocess()
    result.stderr.fnmatch_lines(["*fusion_seed: expected an integer, found 'many'*"])
    other = pytester.runpytest_subprocess("--fusion-dtype=float31", "-o", "fusion_seed=1", "-k", "method")
    other.stdout.fnmatch_lines(["*dtype='float31': expected the name of a torch dtype*"])


def test_registered_backend(pytester):
    pytester.makeconftest(
        """
        def mine(graph, example_inputs):
            return graph

        def pytest_fusealias_register_backends(config):
            return {"mine": mine}
        """
    )
    pytester.makepyfile(SUITE)
    pytester.runpytest_subprocess("--fusion-backend=mine", "-k", "method").assert_outcomes(passed=2)


def test_fixture_for_plain_aliases(pytester):
    pytester.makepyfile(
        """
        import torch

        def test_right(assert_no_illegal_alias, fusion_compile, fusion_device):
            x = torch.ones(3, device=fusion_device)
            y = fusion_compile(lambda t: t * 2, backend="eager")(x)
            assert_no_illegal_alias(y, x)
            assert_no_illegal_alias(x[1:], x, like=(y[1:], y))

        def test_wrong(assert_no_illegal_alias):
            x = torch.ones(3)
            assert_no_illegal_alias({"a": x[1:]}, [x])
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["illegal alias: output*'a'* shares memory with input*0*"])


def test_loading_the_plugin_does_not_import_torch():
    code = textwrap.dedent(
        """
        import json, sys, time
        import pytest
        start = time.perf_counter()
        import pytest_fusealias.plugin
        print(json.dumps({"torch": "torch" in sys.modules, "numpy": "numpy" in sys.modules}))
        """
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(out) == {"torch": False, "numpy": False}


def test_suite_without_fusion_tests_does_not_import_torch(pytester):
    pytester.makepyfile("import sys\n\ndef test_it():\n    assert 'torch' not in sys.modules\n")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    assert "checked:" not in result.stdout.str()
