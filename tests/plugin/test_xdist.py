"""Timing under pytest-xdist: sections never overlap, every way to distribute works, a killed worker loses one test."""

import json
import re
from itertools import pairwise

import pytest

pytest_plugins = ["pytester"]

CONFTEST = """
import contextlib
import time
from pathlib import Path

from pytest_fusealias import locks

exclusive, shared = locks.DeviceGate.exclusive, locks.DeviceGate.shared

def recorded(kind, section):
    @contextlib.contextmanager
    def wrapped(self):
        with section(self):
            begun = time.monotonic()
            try:
                yield
            finally:
                with Path("sections").open("a") as file:
                    file.write(f"{kind} {begun} {time.monotonic()}\\n")
    return wrapped

locks.DeviceGate.exclusive = recorded("exclusive", exclusive)
locks.DeviceGate.shared = recorded("shared", shared)
"""

SUITE = """
import os, signal
from pathlib import Path
import pytest
import torch

def make(device, dtype, seed):
    return (torch.randn(200_000, device=device),)

@pytest.mark.parametrize("number", range(6))
@pytest.mark.xdist_group("a")
@pytest.mark.fusion_equiv(inputs=make, backend="eager", max_time_ratio=5)
def test_timed(x, number):
    return x.tanh()
"""

KILLED = """
import os, signal
from pathlib import Path
import pytest
import torch

def make(device, dtype, seed):
    return (torch.randn(1000, device=device),)

def deadly(graph, _inputs):
    calls = []
    def run(*inputs):
        calls.append(1)
        if len(calls) == 20:  # well inside the timed section
            os.kill(os.getpid(), signal.SIGKILL)
        return graph(*inputs)
    return run

@pytest.mark.fusion_equiv(inputs=make, backend=deadly, max_time_ratio=9)
def test_deadly(x):
    return x.tanh()

@pytest.mark.parametrize("number", range(3))
@pytest.mark.fusion_equiv(inputs=make, backend="eager", max_time_ratio=99)
def test_timed(x, number):
    return x.tanh()
"""


@pytest.mark.parametrize("dist", ["load", "loadfile", "loadgroup", "worksteal"])
def test_timed_sections_of_two_workers_never_overlap(pytester, dist):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_one=SUITE, test_two=SUITE.replace('"a"', '"b"'))
    result = pytester.runpytest_subprocess(
        "-n2",
        f"--dist={dist}",
        "-p",
        "no:cacheprovider",
        "--fusion-bench-json=run.json",
        "--fusion-bench-max-time=0.3",
    )
    result.assert_outcomes(passed=12)
    spans = [line.split() for line in (pytester.path / "sections").read_text().splitlines()]
    timed = sorted((float(a), float(b)) for kind, a, b in spans if kind == "exclusive")
    assert len(timed) == 12
    assert all(first[1] <= second[0] for first, second in pairwise(timed))
    for begun, ended in timed:
        inside = [s for s in spans if s[0] == "shared" and float(s[1]) < ended and float(s[2]) > begun]
        assert not inside
    tests = [
        b["extra_info"]["fusealias"]["test"]
        for b in json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    ]
    assert len(set(tests)) == 12
    assert all(re.fullmatch(r"test_(one|two)\.py::test_timed\[\d\]", t) for t in tests)


def test_killed_worker_loses_only_its_test(pytester):
    pytester.makepyfile(test_suite=KILLED)
    result = pytester.runpytest_subprocess("-n2", "-p", "no:cacheprovider", "--fusion-bench-json=run.json")
    assert result.ret == 1
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["failed"]) == (3, 1), result.stdout.str()
    result.stdout.fnmatch_lines(["*crashed while running*test_deadly*"])
    document = json.loads((pytester.path / "run.json").read_text())
    assert len(document["benchmarks"]) == 3
