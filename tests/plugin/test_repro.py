"""Scripts of failures: they run without the plugin, fail as the test does, and are reduced where asked."""

import textwrap
from pathlib import Path

import pytest
import torch

from pytest_fusealias.compilers import resolve
from pytest_fusealias.model import Spec
from pytest_fusealias.repro.graphs import GraphCase, NotDescribedError, described
from pytest_fusealias.repro.probe import Probe, fails_alone
from pytest_fusealias.repro.script import Asked, NoScriptError, backend_text, data_files, graph_script
from pytest_fusealias.repro.shrink import built_inputs, shrunk
from pytest_fusealias.units import artifact_name

MODES = ((), ("-n0",), ("-n2",))

BACKENDS = """
import torch

def drops_mutation(graph, example_inputs):
    def run(*inputs):
        return graph(*[t.detach().clone() if isinstance(t, torch.Tensor) else t for t in inputs])
    return run

def forgets_second_call(function):
    done = []
    def run(*args):
        if done:
            return done[0]
        done.append(function(*args))
        return done[0]
    return run
"""

SUITE = """
import pytest
import torch
from backends import drops_mutation, forgets_second_call

def make(device, dtype, seed):
    return torch.randn(6, 5, device=device), torch.randn(5, device=device)

@pytest.mark.parametrize("factor", [2])
@pytest.mark.fusion_equiv(inputs=make, backend=drops_mutation)
def test_write(x, b, factor):
    h = torch.relu(x * factor + b).softmax(-1)
    b.mul_(0.5)
    return h.sum() + b.mean()

@pytest.mark.fusion_equiv(backend=forgets_second_call)
def test_state(fusion_program):
    def twice(function, x):
        return function(x), function(x + 1)
    return fusion_program(lambda x: x * 2, torch.ones(3), drive=twice)

@pytest.mark.fusion_equiv(inputs=make, backend="eager")
def test_right(x, b):
    return x + b
"""


@pytest.fixture
def project(pytester):
    """A test file with two wrong backends; its modules are imported as a user's are."""
    pytester.makepyfile(backends=BACKENDS, test_suite=SUITE)
    pytester.makeini("[pytest]\npythonpath = .\n")
    return pytester


def run(pytester, *options):
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)


@pytest.fixture(scope="module")
def alone():
    """Runs scripts as a new process would, and returns their exit code and output; none names the plugin."""
    with Probe() as probe:

        def run_alone(path):
            assert "pytest_fusealias" not in path.read_text()
            return probe.outcome(path), Path(f"{path}.out").read_text()

        yield run_alone


@pytest.mark.parametrize("mode", MODES, ids=lambda m: "".join(m) or "serial")
def test_script_fails_without_the_plugin_until_the_backend_is_right(project, alone, mode):
    result = run(project, "--fusion-repro-dir=out", *mode)
    result.assert_outcomes(passed=1, failed=2)
    scripts = sorted((project.path / "out").iterdir())
    assert len(scripts) == 2
    result.stdout.fnmatch_lines_random([f"*repro: {path} (*" for path in scripts])
    for path in scripts:
        code, said = alone(path)
        assert (code, said[:6]) == (1, "FAILS ")

    right = "def drops_mutation(graph, example_inputs):\n    return graph\ndef forgets_second_call(function):\n    return function\n"
    (project.path / "backends.py").write_text(right)
    for path in scripts:
        code, said = alone(path)
        assert (code, said[:13]) == (0, "does not fail")


@pytest.mark.parametrize("mode", MODES, ids=lambda m: "".join(m) or "serial")
def test_smallest_script_shows_the_worst_check(project, alone, mode):
    project.makeini("[pytest]\npythonpath = .\nfusion_repro_dir = smallest\nfusion_minify = true\n")
    run(project, "-k", "write", *mode).assert_outcomes(failed=1)
    (script,) = (project.path / "smallest").iterdir()
    text = script.read_text()
    graph = text[text.index("class Graph") :]
    assert "mul_(0.5)" in graph
    assert "softmax" not in graph
    assert "(1,), (1,)" in graph  # one element is enough
    assert alone(script)[1].startswith("FAILS mutation")


def test_program_inside_of_a_test_has_a_script_of_its_graph(project):
    body = """
    import torch
    from backends import drops_mutation, forgets_second_call
    def test_inside(fusion_check):
        fusion_check(lambda x: x.add_(1), make=lambda: (torch.ones(2),), backend=drops_mutation)
    def test_no_graph(fusion_check):
        fusion_check(lambda x: x * 1, make=lambda: (torch.ones(2),), backend=forgets_second_call,
                     drive=lambda f, x: (f(x), f(x + 1)))
    """
    project.makepyfile(test_suite=textwrap.dedent(body))
    result = run(project, "--fusion-repro-dir=out")
    result.assert_outcomes(failed=2)
    assert len(list((project.path / "out").iterdir())) == 1
    result.stdout.fnmatch_lines(["*repro: none: the program lives inside of the test*"])


def test_foreign_file_is_not_overwritten(project):
    script = (
        project.path / "out" / f"repro_{artifact_name('test_suite.py::test_write[2] [drops_mutation]')}.py"
    )
    script.parent.mkdir()
    script.write_text("mine")
    result = run(project, "--fusion-repro-dir=out", "-k", "write")
    result.stdout.fnmatch_lines(["*repro: none: *is no repro script; move it away"])
    assert script.read_text() == "mine"


def test_options_that_lead_nowhere_are_usage_errors(project):
    result = run(project, "--fusion-minify")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--fusion-minify: say with --fusion-repro-dir=DIR*"])
    result = run(project, "--fusion-repro-dir=backends.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--fusion-repro-dir: expected a folder, found the file*"])


def test_bound_has_no_script(project):
    body = """
    import pytest, torch
    @pytest.mark.fusion_equiv(inputs=lambda device, dtype, seed: (torch.ones(2),), backend="eager", max_graph_breaks=0)
    def test_breaks(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2
    """
    project.makepyfile(test_suite=textwrap.dedent(body))
    result = run(project, "--fusion-repro-dir=out")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*repro: none: a script does not show graph_breaks"])
    assert not (project.path / "out").exists()


def test_inputs_are_built_as_they_were():
    base = torch.arange(24.0).reshape(4, 6)
    weight = torch.nn.Parameter(torch.ones(3))
    values = (
        base,
        base[1:3, ::2],
        base.t(),
        3,
        True,
        weight,
        torch.ones(2).expand(4, 2),
        torch.tensor([True]),
    )
    storages, inputs = described(values)
    made = built_inputs(GraphCase(None, storages, inputs))
    assert len(storages) == 4
    for value, twin in zip(values, made, strict=True):
        if not isinstance(value, torch.Tensor):
            assert value == twin
            continue
        assert (value.shape, value.stride(), value.storage_offset()) == (
            twin.shape,
            twin.stride(),
            twin.storage_offset(),
        )
        assert (value.dtype, value.requires_grad) == (twin.dtype, twin.requires_grad)
    assert made[0].untyped_storage().data_ptr() == made[2].untyped_storage().data_ptr()


def test_inputs_that_no_script_can_build_are_named():
    with pytest.raises(NotDescribedError, match="input 1 is a Tensor"):
        described((torch.ones(2), torch.ones(2).to_sparse()))


def case_of(function, *values):
    graph = torch.fx.symbolic_trace(function)
    return GraphCase(graph, *described(values))


def asked(checks=("values",), backend="eager"):
    return Asked("a test", resolve(backend), Spec(backend=backend), checks)


def calls(case, name):
    return any(name in str(node.target) for node in case.graph.graph.nodes)


def test_reduction_keeps_what_the_predicate_needs_and_nothing_else():
    def program(x, y, z):
        a = (x + y).relu()
        b = torch.exp(a * z)
        return b.sum(), a, z.clone(), y.t()

    tall = torch.arange(30.0).reshape(5, 6)
    case = case_of(program, tall, tall[:, :], tall.t().contiguous().t())
    small = shrunk(case, lambda smaller: calls(smaller, "exp"), seconds=60)
    assert small.operations == 1
    assert [value.shape for value in small.inputs] == [(1, 1)]
    assert len(small.storages) == 1


def test_reduction_keeps_shared_memory_where_it_is_needed():
    def program(x, y, z):
        x.add_(1)
        return y * z

    base = torch.zeros(4, 3)

    def fails(case):
        """As an unaliased compilation would: the result depends on a write through the other input."""
        one, two = built_inputs(case), built_inputs(case)
        try:
            right = case.graph(*one)
            copies = [t.clone() for t in two]
            wrong = case.graph(*copies)
        except (RuntimeError, IndexError, TypeError):
            return False
        return any(not torch.equal(a, b) for a, b in zip(right, wrong, strict=True))

    case = case_of(lambda x, y, z: (program(x, y, z),), base, base[1:], torch.ones(3))
    assert fails(case)
    small = shrunk(case, fails, seconds=60)
    assert fails(small)
    assert len(small.storages) == 1
    assert len(small.inputs) == 2


def test_values_are_recorded_where_they_matter(tmp_path, alone):
    """A graph that differs for one value alone: text holds small storages, a file beside the script large ones."""
    for count in (4, 20_000):
        values = torch.randn(count)
        values[1] = 7.0
        case = case_of(lambda x: (x == 7,), values)
        text = graph_script(asked(), case, "data-")
        files = data_files(case, "data-")
        assert bool(files) == (count > 4)
        path = tmp_path / f"of_{count}.py"
        path.write_text(text.replace("main(build", "print(build().args[0][1].item()) or main(build"))
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        assert alone(path)[1].startswith("7.0")


def test_probe_tells_failing_from_breaking():
    with Probe() as probe:
        assert probe.fails("print('FAILS'); raise SystemExit(1)")
        assert not probe.fails("raise SystemExit(0)")
        assert not probe.fails("raise ValueError('no')")
        assert probe.said() == "ValueError: no"
        assert not probe.fails("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
        assert probe.fails("raise SystemExit(1)")  # goes on after a crash


def test_probe_stops_what_hangs(monkeypatch):
    monkeypatch.setattr("pytest_fusealias.repro.probe._SCRIPT_SECONDS", 0.5)
    with Probe() as probe:
        assert not probe.fails("while True: pass")
        assert probe.fails("raise SystemExit(1)")


def test_script_that_breaks_off_does_not_count_as_failing(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError")  # Python's own exit code for that is 1, too
    assert not fails_alone(broken)


def test_backend_without_a_name_has_no_script():
    with pytest.raises(NoScriptError, match="not importable by name"):
        backend_text(resolve(lambda graph, inputs: graph), None)
    lines, _ = backend_text(resolve("fusion_core"), None)
    assert "import fusion_core.backend  # registers the backend" in lines


def test_every_check_of_a_script_can_fail(tmp_path, alone):
    """The comparison of scripts sees what the plugin's own checks see, each by an injected fault."""
    faults = {
        "values": "lambda f: lambda x, w: f(x, w) + 1",
        "mutation": "lambda f: lambda x, w: f(x.clone(), w)",
        "alias": "lambda f: lambda x, w: (f(x, w), x.data.detach())[1]",
        "identity": "lambda f: lambda x, w: (f(x, w), x)[1]",
        "layout": "lambda f: lambda x, w: f(x, w).t().contiguous().t()",
        "meta": "lambda f: lambda x, w: f(x, w).detach()",
        "grads": "lambda f: lambda x, w: f(x, w).detach() + 0 * w.sum()",
        "rng": "lambda f: lambda x, w: (f(x, w), torch.rand(1))[0]",
        "raises": "lambda f: lambda x, w: f(x)",
    }
    spec = graph_script(
        asked(tuple(faults)),
        case_of(lambda x, w: x.mul_(2) * w, torch.ones(2, 3), torch.ones(3, requires_grad=True)),
    )
    line = next(line for line in spec.splitlines() if line.startswith("    return torch.compile"))
    for check, fault in faults.items():
        path = tmp_path / f"{check}.py"
        path.write_text(spec.replace(line, f"    return ({fault})(function)"))
        assert f"FAILS {check}: " in alone(path)[1], check
    right = tmp_path / "right.py"
    right.write_text(spec)
    assert alone(right)[1].startswith("does not fail")
