"""Saved runs: their files, their comparison, and everything that can be wrong with them."""

import dataclasses
import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_fusealias import cli
from pytest_fusealias.baseline import storage
from pytest_fusealias.baseline.expression import ExpressionError, Limit, parse_limit
from pytest_fusealias.baseline.judge import compare_runs
from pytest_fusealias.baseline.schema import Entry, FormatError, Run, dumps, loads, to_json
from pytest_fusealias.baseline.storage import (
    StorageError,
    locate,
    read_run,
    save_run,
    saved_runs,
    write_document,
)
from pytest_fusealias.outcome import Outcome


def entry(ratio=1.0, compiled_s=1e-3, width=0.01, **values):
    given_values = {
        "test": "test_a.py::test_a",
        "backend": "inductor",
        "machine": "this machine",
        "estimator": "e1",
        "ratio": ratio,
        "ratio_low": ratio * (1 - width),
        "ratio_high": ratio * (1 + width),
        "eager_s": compiled_s / ratio,
        "compiled_s": compiled_s,
        "compiled_low_s": compiled_s * (1 - width),
        "compiled_high_s": compiled_s * (1 + width),
        "log_ratios": (0.0, 0.01, -0.01),
        "compiled_quads_s": (compiled_s, compiled_s * 1.1),
        "compile_s": 2.0,
        "peak_bytes": 1000,
        "eager_peak_bytes": 1000,
        "retained_bytes": 10,
        "outcome": "PASS",
        "threads": 1,
        "cache": "warm",
        "clock": "cpu",
    }
    return Entry(**(given_values | values))


def run(*entries):
    return Run("2030-01-01T00:00:00+00:00", "1", entries)


def saved(path, *entries):
    write_document(path, to_json(run(*entries)))
    return path


# -- expressions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("time:10%", Limit("time", 0.1, 0.0)),
        ("time:10%+50us", Limit("time", 0.1, 50e-6)),
        ("time: 10 % + 50 us", Limit("time", 0.1, 50e-6)),
        ("ratio:5%", Limit("ratio", 0.05, 0.0)),
        ("peak:0%", Limit("peak", 0.0, 0.0)),
        ("peak:8 MiB", Limit("peak", 0.0, 8 * 2**20)),
        ("retained:1%+512", Limit("retained", 0.01, 512)),
        ("compile:30%+1s", Limit("compile", 0.3, 1.0)),
        ("compile:1.5s", Limit("compile", 0.0, 1.5)),
    ],
)
def test_expressions(text, limit):
    assert parse_limit(text) == limit
    assert parse_limit(str(limit).partition(" (")[0]).field == limit.field


@pytest.mark.parametrize(
    "text",
    [
        "",
        "time",
        "time:",
        "tim:10%",
        "time:10",
        "time:-1%",
        "time:10%+",
        "time:10%+5%",
        "ratio:5%+1s",
        "peak:1us",
    ],
)
def test_wrong_expressions(text):
    with pytest.raises(ExpressionError) as error:
        parse_limit(text)
    assert repr(text) in str(error.value)


@given(st.floats(0, 2), st.floats(0, 1), st.floats(0.001, 10))
def test_both_parts_must_be_exceeded(share, absolute, old):
    limit = Limit("time", share, absolute)
    assert limit.allowed(old) >= old * (1 + share) - 1e-9
    assert limit.allowed(old) >= old + absolute - 1e-9


# -- comparison ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "expression", "outcome"),
    [
        ({}, "ratio:5%", Outcome.PASS),
        ({"ratio": 1.2}, "ratio:5%", Outcome.FAIL),
        (
            {"ratio": 1.06},
            "ratio:5%",
            Outcome.NOT_MEASURED,
        ),  # intervals of 1 % on both sides reach over the limit
        ({"ratio": 0.5}, "ratio:5%", Outcome.PASS),
        ({"compiled_s": 1.3e-3}, "time:10%", Outcome.FAIL),
        ({"compiled_s": 1.3e-3}, "time:10%+1ms", Outcome.PASS),
        ({"compiled_s": 1.3e-3}, "time:10%+50us", Outcome.FAIL),
        ({"peak_bytes": 1001}, "peak:0%", Outcome.FAIL),
        ({"peak_bytes": 1001}, "peak:0%+1", Outcome.PASS),
        ({"peak_bytes": None}, "peak:0%", Outcome.NOT_MEASURED),
        ({"retained_bytes": 11}, "retained:0%", Outcome.FAIL),
        ({"compile_s": 3.0}, "compile:30%", Outcome.FAIL),
        ({"compile_s": 3.0}, "compile:30%+2s", Outcome.PASS),
    ],
)
def test_outcome_of_a_field(new, expression, outcome):
    (change,) = compare_runs(run(entry()), run(entry(**new)), [parse_limit(expression)])
    assert change.outcome is outcome, change


@pytest.mark.parametrize(
    ("old", "reason"),
    [
        ({"test": "test_a.py::test_other"}, "its id changed"),
        ({"backend": "aot_eager"}, "no entry for this test and backend"),
        ({"machine": "another"}, "of another machine: another; this one is this machine"),
        ({"estimator": "e0"}, "measured in another way (e0)"),
        ({"threads": 4}, "with other threads"),
        ({"cache": "cold"}, "another state of the cache"),
    ],
)
def test_entry_without_counterpart_is_not_measured(old, reason):
    changes = compare_runs(run(entry(**old)), run(entry()), [parse_limit("ratio:5%")])
    assert changes[0].outcome is Outcome.NOT_MEASURED
    assert reason in changes[0].text


def test_entry_that_is_gone_is_said():
    changes = compare_runs(run(entry(), entry(test="gone")), run(entry()), [parse_limit("ratio:5%")])
    assert [c.outcome for c in changes] == [Outcome.PASS, Outcome.NOT_MEASURED]
    assert "this run has not" in changes[1].text


# -- files ---------------------------------------------------------------------------------------------------------

_numbers = st.one_of(st.none(), st.floats(1e-9, 1e9), st.integers(0, 2**50))


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=9), _numbers), max_size=4))
def test_what_is_written_is_read_again(rows):
    first = run(*(entry(test=t, params={"p": p}, compile_s=c) for t, p, c in rows))
    assert loads(dumps(to_json(first))) == first


BROKEN = {
    "empty": ("", "it is not complete JSON"),
    "truncated": (dumps(to_json(run(entry())))[:300], "it is not complete JSON"),
    "foreign": ('{"benchmarks": [], "version": "5.3"}', "was not written by this plugin"),
    "list": ("[]", "was not written by this plugin"),
    "future": (
        '{"fusealias": {"schema": 99}, "benchmarks": []}',
        "its schema is 99, this version reads 1; update",
    ),
    "no_schema": ('{"fusealias": {}, "benchmarks": []}', "its schema is None"),
    "nan": (dumps(to_json(run(entry()))).replace('"compile_s": 2.0', '"compile_s": NaN'), "the number NaN"),
    "infinity": (
        dumps(to_json(run(entry()))).replace('"compile_s": 2.0', '"compile_s": -Infinity'),
        "the number -Infinity",
    ),
    "huge": (
        dumps(to_json(run(entry()))).replace('"compile_s": 2.0', '"compile_s": 1e999'),
        "compile_s is inf, expected a number",
    ),
    "text_for_number": (
        dumps(to_json(run(entry()))).replace('"compile_s": 2.0', '"compile_s": "2"'),
        "compile_s is '2', expected a number",
    ),
    "no_test": (
        dumps(to_json(run(entry()))).replace('"test": "test_a.py::test_a"', '"test": null'),
        "test is None, expected text",
    ),
    "no_list": ('{"fusealias": {"schema": 1}, "benchmarks": {}}', "'benchmarks' is not a list"),
    "no_block": ('{"fusealias": {"schema": 1}, "benchmarks": [{}]}', "benchmark 0 has no block"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_file(tmp_path, name):
    text, message = BROKEN[name]
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(StorageError) as error:
        read_run(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert path.read_text() == text


def test_unreadable_file(tmp_path, monkeypatch):
    path = saved(tmp_path / "run.json", entry())

    def refuse(*_args, **_kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(StorageError, match="cannot be read: Permission denied"):
        read_run(path)


def test_binary_file(tmp_path):
    (tmp_path / "run.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StorageError, match="not UTF-8"):
        read_run(tmp_path / "run.json")


def test_folder_instead_of_file(tmp_path):
    with pytest.raises(StorageError, match="is a folder; expected the path of a file"):
        write_document(tmp_path, {})
    with pytest.raises(StorageError, match="cannot be read: Is a directory"):
        read_run(tmp_path)


def test_file_instead_of_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageError):
        save_run(tmp_path / "file" / "runs", "x", to_json(run(entry())))
    assert (tmp_path / "file").read_text() == "mine"


def test_disk_full_leaves_the_old_file(tmp_path, monkeypatch):
    path = saved(tmp_path / "run.json", entry())
    before = path.read_bytes()

    def full(_handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device; nothing was changed"):
        saved(path, entry(ratio=2.0))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_read_only_file_is_not_replaced(tmp_path, monkeypatch):
    path = saved(tmp_path / "run.json", entry())
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)  # a superuser may write anything
    with pytest.raises(StorageError, match="is read-only"):
        saved(path, entry(ratio=2.0))
    assert read_run(path).entries[0].ratio == 1.0


def test_numbers_that_json_has_not_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        saved(tmp_path / "run.json", entry(compile_s=float("nan")))
    assert not list(tmp_path.iterdir())


def test_saved_runs_are_numbered_and_found(tmp_path):
    assert locate(tmp_path, "nightly", tmp_path) is None
    for ratio in (1.0, 2.0):
        save_run(tmp_path / "runs", "nightly", to_json(run(entry(ratio=ratio))))
    save_run(tmp_path / "runs", "other", to_json(run(entry(ratio=3.0))))
    (tmp_path / "runs" / "notes.txt").write_text("mine")
    assert [(n, name) for n, name, _ in saved_runs(tmp_path / "runs")] == [
        (1, "nightly"),
        (2, "nightly"),
        (3, "other"),
    ]
    assert read_run(locate(tmp_path / "runs", "nightly", tmp_path)).entries[0].ratio == 2.0
    assert (
        locate(tmp_path / "runs", "runs/0001_nightly.json", tmp_path) == tmp_path / "runs/0001_nightly.json"
    )


def _save_many(folder, count):
    for _ in range(count):
        save_run(Path(folder), "x", to_json(run(entry())))


def test_runs_that_save_at_once_lose_nothing(tmp_path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_save_many, args=(str(tmp_path), 8)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(saved_runs(tmp_path)) == 24
    assert all(read_run(path).entries for _, _, path in saved_runs(tmp_path))


def test_file_system_without_hard_links(tmp_path, monkeypatch):
    def refuse(_source, _target):
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(storage.os, "link", refuse)
    for _ in range(2):
        save_run(tmp_path, "x", to_json(run(entry())))
    assert len(saved_runs(tmp_path)) == 2
    assert not list(tmp_path.glob("*.part"))


# -- the console command -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "arguments", "code", "text"),
    [
        ([{}], [], 0, "2 passed, 0 regressed"),
        ([{"ratio": 2.0}], [], 1, "FAIL"),
        ([{"ratio": 2.0}], ["--fail", "peak:0%"], 0, "1 passed"),
        ([{"peak_bytes": 1001}], [], 1, "peak 1000 B -> 1001 B (+0.1%)"),
        ([{"machine": "other"}], [], 0, "NOTHING WAS COMPARED"),
        ([{"machine": "other"}], ["--strict"], 3, "NOTHING WAS COMPARED"),
        ([{}, {"test": "new"}], ["--strict"], 3, "1 not measured"),
        ([], ["--strict"], 3, "NOTHING WAS COMPARED"),
        ([{"ratio": 2.0}, {"test": "new"}], ["--strict"], 1, "FAIL"),
    ],
)
def test_compare_command(tmp_path, capsys, new, arguments, code, text):
    old = saved(tmp_path / "old.json", entry())
    later = saved(tmp_path / "new.json", *(entry(**values) for values in new))
    assert cli.main(["compare", str(old), str(later), *arguments]) == code
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["compare", "old.json", "none.json"], "there is no such file"),
        (["compare", "old.json", "old.json", "--fail", "tim:1%"], "found 'tim:1%'; expected FIELD"),
        (["report", "none.json"], "there is no such file"),
        (["report", "old.json", "-o", "folder"], "is a folder; expected the path of a file"),
        (["merge", "old.json", "broken.json", "-o", "out.json"], "it is not complete JSON"),
    ],
)
def test_command_refuses(tmp_path, monkeypatch, capsys, arguments, text):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "old.json", entry())
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "folder").mkdir()
    assert cli.main(arguments) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("arguments", [[], ["compare"], ["compair", "a", "b"], ["merge", "a"]])
def test_wrong_use(arguments):
    with pytest.raises(SystemExit) as error:
        cli.main(arguments)
    assert error.value.code == 2


def test_merge_command(tmp_path, capsys):
    shards = [
        saved(tmp_path / "0.json", entry(), entry(test="b")),
        saved(tmp_path / "1.json", entry(test="c"), entry(test="b", ratio=3.0)),
        saved(tmp_path / "2.json", entry(machine="another")),
    ]
    out = tmp_path / "all.json"
    assert cli.main(["merge", *map(str, shards), "-o", str(out)]) == 0
    merged = read_run(out).entries
    assert sorted((e.test, e.machine, e.ratio) for e in merged) == [
        ("b", "this machine", 3.0),
        ("c", "this machine", 1.0),
        ("test_a.py::test_a", "another", 1.0),
        ("test_a.py::test_a", "this machine", 1.0),
    ]
    assert "1 were in several files" in capsys.readouterr().out


def test_report_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = [saved(tmp_path / f"{n}.json", entry(ratio=1 + n / 10, log_ratios=(n / 10,))) for n in range(3)]
    assert cli.main(["report", *map(str, files), "-o", "out.html"]) == 0
    page = (tmp_path / "out.html").read_text()
    assert "History" in page
    assert page.count('class="dot big"') == 3


def test_command_is_light(tmp_path):
    """Comparing runs must not take the seconds that torch takes."""
    import subprocess
    import sys

    path = saved(tmp_path / "run.json", entry())
    code = f"""
import sys
from pytest_fusealias import cli
assert cli.main(["compare", {str(path)!r}, {str(path)!r}]) == 0
assert cli.main(["report", {str(path)!r}, "-o", {str(tmp_path / "r.html")!r}]) == 0
assert "torch" not in sys.modules and "pytest" not in sys.modules, sorted(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_pytest_benchmark_reads_our_files(tmp_path):
    import subprocess
    import sys

    pytest.importorskip("pytest_benchmark")
    first = saved(tmp_path / "0001_a.json", entry(), entry(test="test_a.py::test_b[x]", params={"p": "x"}))
    second = saved(tmp_path / "0002_b.json", entry(compiled_s=2e-3), entry(test="test_a.py::test_b[x]"))
    command = [sys.executable, "-m", "pytest_benchmark", "compare", str(first), str(second)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "test_a[inductor]" in done.stdout + done.stderr
    assert "2.0000" in done.stdout + done.stderr or "2,0" in done.stdout + done.stderr, done.stdout


def test_entries_have_no_field_that_json_loses():
    assert dataclasses.asdict(entry())["log_ratios"] == (0.0, 0.01, -0.01)
    assert json.loads(dumps(entry().to_dict()))["log_ratios"] == [0.0, 0.01, -0.01]


def test_format_error_is_a_value_error():
    with pytest.raises(FormatError):
        loads("{")
