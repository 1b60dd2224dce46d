"""`--fusion-bench` and its companions, each serial, with `-n0` and with `-n2`."""

import json
import re
import textwrap

import pytest
import torch
import torch._inductor.utils

import pytest_fusealias.bounded

# Runs in this process forget the modules that they load, and torch cannot be loaded twice: all of it is loaded before.
_KEPT = (torch._inductor.utils, pytest_fusealias.bounded)
torch._dynamo.list_backends()
for _backend in ("eager", "aot_eager", "fusion_core"):
    torch.compile(lambda x: x.add_(1).exp(), backend=_backend)(torch.ones(2))

pytest_plugins = ["pytester"]
MODES = ((), ("-n0",), ("-n2",))

CONFTEST = """
import pytest
import torch
from pathlib import Path

def padded(graph, _inputs):
    def run(*inputs):
        if Path("regressed").exists():
            torch.ones(400_000).exp()
        return graph(*inputs)
    return run

@pytest.hookimpl
def pytest_fusealias_register_backends(config):
    return {"padded": padded}
"""

SUITE = """
import pytest
import torch

def make(device, dtype, seed):
    return (torch.randn(600_000, device=device),)

@pytest.mark.parametrize("kind", ["tanh", "exp"])
@pytest.mark.fusion_equiv(inputs=make, backend="padded")
def test_unary(x, kind):
    return getattr(x, kind)()

@pytest.mark.fusion_equiv(inputs=make, backend="padded", max_time_ratio=3)
def test_in_place(x):
    return x.mul_(0.5)

def test_fixture(fusion_bench):
    bench = fusion_bench(lambda x: x.exp(), make=lambda: (torch.randn(1000),), backend="eager")
    assert bench.time.ratio > 0
    assert bench.facts.graphs == 1

def test_ordinary():
    pass
"""


@pytest.fixture
def suite(pytester):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_suite=SUITE)
    return pytester


def run(pytester, mode, *arguments):
    """A run in a process of its own where xdist needs one, else in this one."""
    arguments = ("-p", "no:cacheprovider", *mode, *arguments)
    if mode == ("-n2",):
        return pytester.runpytest_subprocess(*arguments)
    return pytester.runpytest_inprocess(*arguments)


def rows(result):
    """Cells of the printed table, by program."""
    lines = [line for line in result.outlines if re.match(r"(program|test_\w+(\[\S+\])?) {2,}\S", line)]
    return {line.split()[0]: re.split(r" {2,}", line) for line in lines}


@pytest.mark.parametrize("mode", MODES)
def test_everything_that_is_written(suite, mode):
    result = run(
        suite, mode, "--fusion-bench-only", "--fusion-bench-save", "--fusion-bench-json=out/run.json",
        "--fusion-report=out/page.html", "--fusion-github-summary=summary.md", "--fusion-bench-max-time=1",
        "--fusion-bench-min-pairs=10", "--fusion-bench-threads=1", "--fusion-bench-cache=warm", "--fusion-bench-sort=ratio",
        "--fusion-bench-group-by=param:kind", "--fusion-bench-columns=backend,eager,compiled,ratio,compile,peak,outcome",
    )  # fmt: skip
    assert result.ret == 0, result.stdout.str()
    result.assert_outcomes(passed=4, deselected=0 if mode == ("-n2",) else 1)
    found = rows(result)
    assert set(found) == {"program", "test_unary[tanh]", "test_unary[exp]", "test_in_place", "test_fixture"}
    assert found["program"][1:] == ["backend", "eager", "compiled", "ratio", "compile", "peak", "outcome"]
    assert re.fullmatch(r"[\d.]+ \([\d.]+-[\d.]+\) / 3", found["test_in_place"][4])
    result.stdout.fnmatch_lines(
        ["kind=-:", "kind=exp:", "kind=tanh:", "saved 4 measurements to *0001_baseline.json"]
    )
    document = json.loads((suite.path / "out/run.json").read_text())
    assert {b["extra_info"]["fusealias"]["test"].partition("::")[2] for b in document["benchmarks"]} == set(
        found
    ) - {"program"}
    assert all(len(b["extra_info"]["fusealias"]["log_ratios"]) >= 10 for b in document["benchmarks"])
    assert json.loads((suite.path / ".fusealias/0001_baseline.json").read_text())["fusealias"] == {
        "schema": 1
    }
    assert "Paired ratios" in (suite.path / "out/page.html").read_text()
    assert (suite.path / "summary.md").read_text().count("| test_") == 4


@pytest.mark.parametrize("mode", MODES)
def test_regression_against_the_baseline_fails_the_test(suite, mode):
    common = ("--fusion-bench-compare", "--fusion-bench-compare-fail=ratio:30%+", "-k", "tanh or in_place")
    common = (
        common[0],
        "--fusion-bench-compare-fail=ratio:30%",
        "--fusion-bench-compare-fail=peak:0%",
        *common[2:],
    )
    result = run(suite, mode, *common, "--fusion-bench-save")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["NO BASELINE: baseline (nothing saved in *); 2 measurements were compared with nothing"]
    )
    result = run(suite, mode, *common)
    assert result.ret == 0, result.stdout.str()
    result.stdout.fnmatch_lines(["baseline */0001_baseline.json: 2 of 2 measurements compared"])
    (suite.path / "regressed").write_text("")
    result = run(suite, mode, *common, "--junitxml=junit.xml")
    assert result.ret == 1
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["  baseline: ratio: ratio * -> *; allowed is ratio:30%"])
    assert 'failures="2"' in (suite.path / "junit.xml").read_text()


@pytest.mark.parametrize("mode", MODES)
def test_strict_run_without_baseline_fails(suite, mode):
    result = run(suite, mode, "--fusion-bench-compare", "--fusion-strict", "-k", "in_place")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*baseline: NOT-MEASURED: no baseline: baseline (nothing saved in *"])


@pytest.mark.parametrize("mode", MODES)
def test_other_ids_and_machines_are_said(suite, mode):
    run(suite, (), "--fusion-bench-save=one", "-k", "tanh", "--fusion-bench-max-time=0.5")
    path = suite.path / ".fusealias/0001_one.json"
    text = path.read_text()
    result = run(suite, mode, "--fusion-bench-compare=one", "-k", "exp and unary")
    result.stdout.fnmatch_lines(
        [
            "NOT-MEASURED *test_unary*exp* baseline: the baseline has no entry for this test and backend*",
            "baseline *: 0 of 1 measurements compared; NOTHING WAS COMPARED",
            "in the baseline, not measured in this run: *test_unary*tanh*",
        ]
    )
    path.write_text(text.replace('"machine": "', '"machine": "quite another '))
    result = run(suite, mode, "--fusion-bench-compare=one", "-k", "tanh")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["NOT-MEASURED * baseline: the baseline is of another machine: quite another *"]
    )


@pytest.mark.parametrize("mode", MODES)
def test_skip(suite, mode):
    result = run(suite, mode, "--fusion-bench-skip", "-k", "in_place or fixture or ordinary")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["NOT-MEASURED *test_in_place* time: --fusion-bench-skip"])


@pytest.mark.parametrize("mode", MODES)
def test_ini_twins(suite, mode):
    suite.makeini(
        """
        [pytest]
        fusion_bench = true
        fusion_bench_max_time = 0.5
        fusion_bench_columns = ratio,outcome
        fusion_bench_storage = runs
        fusion_bench_save = nightly
        fusion_bench_min_pairs = 10
        fusion_bench_sort = compiled
        fusion_bench_group_by = backend
        fusion_bench_threads = 1
        fusion_bench_cache = warm
        fusion_bench_json = run.json
        fusion_report = page.html
        fusion_github_summary = summary.md
        """
    )
    result = run(suite, mode, "-k", "in_place")
    assert result.ret == 0, result.stdout.str()
    assert rows(result)["program"] == ["program", "ratio", "outcome"]
    assert {p.name for p in suite.path.iterdir()} >= {"run.json", "page.html", "summary.md", "runs"}
    assert [p.name for p in (suite.path / "runs").iterdir()] == ["0001_nightly.json"]
    suite.makeini(
        """
        [pytest]
        fusion_bench_only = true
        fusion_bench_storage = runs
        fusion_bench_compare = nightly
        fusion_bench_compare_fail = peak:0% retained:0%
        """
    )
    result = run(suite, mode, "-k", "in_place or ordinary")
    assert result.ret == 0, result.stdout.str()
    result.stdout.fnmatch_lines(["baseline *0001_nightly.json: 1 of 1 measurements compared"])
    suite.makeini("[pytest]\nfusion_bench_skip = true\n")
    run(suite, mode, "-k", "in_place").stdout.fnmatch_lines(["NOT-MEASURED * time: --fusion-bench-skip"])


@pytest.mark.parametrize("mode", MODES)
def test_group_ids_of_xdist_do_not_change_the_key(pytester, mode):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        test_suite=SUITE.replace("def test_in_place", "@pytest.mark.xdist_group('one')\ndef test_in_place", 1)
    )
    mode = (*mode, "--dist=loadgroup") if mode == ("-n2",) else mode
    arguments = ("-p", "no:cacheprovider", *mode, "--fusion-bench-json=run.json", "-k", "in_place")
    assert pytester.runpytest_subprocess(*arguments).ret == 0
    (benchmark,) = json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    assert benchmark["extra_info"]["fusealias"]["test"] == "test_suite.py::test_in_place"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--fusion-bench-sort=speed",), "--fusion-bench-sort: expected one of name, eager"),
        (("--fusion-bench-columns=ratio,speed",), "--fusion-bench-columns: expected one of backend"),
        (("--fusion-bench-group-by=param:",), "--fusion-bench-group-by: expected one of none"),
        (("--fusion-bench-cache=hot",), "--fusion-bench-cache: expected one of warm, cold; found 'hot'"),
        (
            ("--fusion-bench-max-time=soon",),
            "--fusion-bench-max-time: expected a number above 0, found 'soon'",
        ),
        (("--fusion-bench-max-time=nan",), "--fusion-bench-max-time: expected a number above 0"),
        (("--fusion-bench-min-pairs=0",), "--fusion-bench-min-pairs: expected a number above 0"),
        (("--fusion-bench-threads=1.5",), "--fusion-bench-threads: expected a number above 0"),
        (
            ("--fusion-bench-compare-fail=time:1%",),
            "--fusion-bench-compare-fail needs --fusion-bench-compare",
        ),
        (("--fusion-bench-compare", "--fusion-bench-compare-fail=tme:1%"), "found 'tme:1%'; expected FIELD"),
        (("--fusion-bench-save", "tests/"), "expected a name of letters"),
        (
            ("--fusion-bench-compare", "tests/here"),
            "if that is a path of tests, write --fusion-bench-compare=NAME",
        ),
        (("--fusion-bench-only", "--fusion-bench-skip"), "exclude each other"),
        (("--fusion-bench", "--fusion-bench-skip"), "contradicts the options that measure"),
        (("--fusion-bench-json=folder",), "--fusion-bench-json: *folder is a folder"),
        (("--fusion-report=file/x.html",), "--fusion-report: *file is a file; expected a folder"),
        (("--fusion-bench-storage=file", "--fusion-bench-save"), "--fusion-bench-storage: *file is a file"),
        (
            ("--fusion-bench-compare=broken.json",),
            "--fusion-bench-compare: *broken.json cannot be read as a saved run",
        ),
    ],
)
def test_wrong_options_stop_before_any_test(suite, arguments, text):
    (suite.path / "folder").mkdir()
    (suite.path / "file").write_text("mine")
    (suite.path / "broken.json").write_text('{"benchmarks": [')
    result = suite.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{text}*"])
    assert (suite.path / "file").read_text() == "mine"
    assert (suite.path / "broken.json").read_text() == '{"benchmarks": ['


@pytest.mark.parametrize("mode", MODES)
def test_file_that_cannot_be_written_at_the_end_fails_the_run(suite, mode):
    suite.makeconftest(
        CONFTEST
        + textwrap.dedent(
            """
            def pytest_sessionfinish(session):
                if not hasattr(session.config, "workerinput"):
                    Path("out").write_text("somebody made this a file meanwhile")

            pytest_sessionfinish = pytest.hookimpl(tryfirst=True)(pytest_sessionfinish)
            """
        )
    )
    result = run(suite, mode, "--fusion-bench-json=out/run.json", "-k", "in_place")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["ERROR *out*", "*1 passed*"])
    assert (suite.path / "out").read_text() == "somebody made this a file meanwhile"


def test_nothing_measured_is_not_saved(suite):
    result = suite.runpytest_inprocess("--fusion-bench-save", "-k", "ordinary")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["ERROR --fusion-bench-save: nothing was measured, so nothing was written"])
    assert not (suite.path / ".fusealias").exists()


def test_run_that_measures_nothing_leaves_the_file_that_was_there(suite):
    (suite.path / "run.json").write_text("mine")
    result = suite.runpytest_inprocess("--fusion-bench-json=run.json", "-k", "ordinary")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["ERROR --fusion-bench-json: nothing was measured, so nothing was written"])
    assert (suite.path / "run.json").read_text() == "mine"


def test_run_that_was_broken_off_is_not_saved(suite):
    suite.makepyfile(test_zz="def test_stop():\n    raise KeyboardInterrupt")
    result = suite.runpytest_inprocess("--fusion-bench-save", "-k", "in_place or stop", no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["ERROR --fusion-bench-save: the run was broken off, so nothing was written"])
    assert not (suite.path / ".fusealias").exists()


def test_several_measurements_in_one_test(suite):
    suite.makepyfile(
        test_twice="""
        import torch

        def test_both(fusion_bench):
            for size in (10, 20):
                fusion_bench(lambda x: x + 1, make=lambda: (torch.zeros(size),), backend="eager")
        """
    )
    suite.runpytest_inprocess("--fusion-bench-json=run.json", "test_twice.py")
    document = json.loads((suite.path / "run.json").read_text())
    tests = [b["extra_info"]["fusealias"]["test"] for b in document["benchmarks"]]
    assert tests == ["test_twice.py::test_both", "test_twice.py::test_both#2"]


@pytest.mark.parametrize("mode", MODES)
def test_github(suite, mode, monkeypatch):
    (suite.path / "regressed").write_text("")
    (suite.path / "step.md").write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(suite.path / "step.md"))
    suite.makepyfile(test_suite=SUITE.replace("max_time_ratio=3", "max_time_ratio=1.2"))
    result = run(suite, mode, "--fusion-bench", "--fusion-github-summary", "-k", "in_place")
    assert result.ret == 1
    lines = [line for line in result.outlines if line.startswith("::error")]
    assert len(lines) == 1
    assert re.match(
        r"::error file=test_suite\.py,line=\d+,title=time%3A padded::test_suite\.py::test_in_place", lines[0]
    )
    text = (suite.path / "step.md").read_text()
    assert text.startswith("before\n## fusealias\n")
    assert text.count("**FAIL** `test_suite.py::test_in_place") == 1


def test_github_summary_outside_of_github(suite, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    result = suite.runpytest_inprocess("--fusion-github-summary", "-k", "in_place")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["ERROR --fusion-github-summary: GITHUB_STEP_SUMMARY is not set*"])


def test_hooks(suite):
    suite.makeconftest(
        CONFTEST
        + textwrap.dedent(
            """
            def pytest_fusealias_machine_key(config, device):
                return f"our {device} farm"

            def pytest_fusealias_update_json(config, document):
                document["machine_info"]["rack"] = 7
            """
        )
    )
    suite.runpytest_inprocess("--fusion-bench-json=run.json", "-k", "in_place")
    document = json.loads((suite.path / "run.json").read_text())
    assert document["machine_info"]["rack"] == 7
    assert document["benchmarks"][0]["extra_info"]["fusealias"]["machine"] == "our cpu farm"


def test_progress_is_shown_on_long_runs(suite, monkeypatch):
    from pytest_fusealias import progress

    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    result = suite.runpytest_inprocess(
        "--fusion-bench", "--fusion-bench-max-time=0.5", "-k", "unary or ordinary"
    )
    result.stdout.fnmatch_lines(
        [
            "fusealias: measuring *; 0 of 3 tests done, 3 left",
            "fusealias: measuring *; 1 of 3 tests done, 2 left, about * to go",
        ]
    )


def test_no_measurement_without_being_asked(suite):
    result = suite.runpytest_inprocess("-k", "unary or ordinary", "-v")
    assert "compiled" not in result.stdout.str().partition("= fusealias =")[2].replace("compiled program", "")
