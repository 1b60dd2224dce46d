"""Device locks: timed sections exclude everything else, in every process, and death frees them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from pytest_fusealias.devices import share
from pytest_fusealias.locks import DeviceGate, NoLockError

HOLDER = """
import sys, time
from pathlib import Path
from pytest_fusealias.locks import DeviceGate
gate = DeviceGate("cpu", Path(sys.argv[1]))
with (gate.exclusive() if sys.argv[2] == "exclusive" else gate.shared()):
    begun = time.monotonic()
    print("held", flush=True)
    time.sleep(float(sys.argv[3]))
    print(begun, time.monotonic(), flush=True)
"""


def hold(folder, kind, seconds):
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), kind, str(seconds)], stdout=subprocess.PIPE, text=True
    )


@contextlib.contextmanager
def held(folder, kind, seconds=30.0):
    process = hold(folder, kind, seconds)
    assert process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("theirs", "ours", "free"),
    [
        ("exclusive", "exclusive", False),
        ("exclusive", "shared", False),
        ("shared", "exclusive", False),
        ("shared", "shared", True),
    ],
)
def test_who_excludes_whom(tmp_path, theirs, ours, free):
    gate = DeviceGate("cpu", tmp_path, wait_s=0.2)
    with held(tmp_path, theirs):
        begun = time.monotonic()
        try:
            with gate.exclusive() if ours == "exclusive" else gate.shared():
                taken_at_once = time.monotonic() - begun < 0.2
        except NoLockError as error:
            assert "another run holds the device" in str(error)
            taken_at_once = False
    assert taken_at_once is free


def test_devices_do_not_exclude_each_other(tmp_path):
    with held(tmp_path, "exclusive"), DeviceGate("cuda-1", tmp_path, wait_s=0.2).exclusive():
        pass


def test_killed_holder_leaves_no_stuck_lock(tmp_path):
    with held(tmp_path, "exclusive") as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        begun = time.monotonic()
        with DeviceGate("cpu", tmp_path, wait_s=5).exclusive():
            assert time.monotonic() - begun < 1


def test_child_of_a_killed_holder_does_not_keep_the_lock(tmp_path):
    """A fork shares open files; the lock must not live on in it."""
    code = f"""
import os, sys, time
from pathlib import Path
from pytest_fusealias.locks import DeviceGate
with DeviceGate("cpu", Path({str(tmp_path)!r})).exclusive():
    child = os.fork()
    if child == 0:
        os.close(1)
        os.close(2)  # who reads the two would wait for the child
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    os.kill(os.getpid(), 9)
"""
    begun = time.monotonic()
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    child = int(process.stdout)
    try:
        assert time.monotonic() - begun < 60
        with DeviceGate("cpu", tmp_path, wait_s=2).exclusive():
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_waiting_for_the_device_is_not_starved_by_sharers(tmp_path):
    """Two sharers overlap without end; who wants the device alone gets its turn."""
    code = f"""
import sys, time
from pathlib import Path
from pytest_fusealias.locks import DeviceGate
gate = DeviceGate("cpu", Path({str(tmp_path)!r}))
end = time.monotonic() + 8
print("ready", flush=True)
while time.monotonic() < end:
    with gate.shared():
        time.sleep(0.2)
"""
    sharers = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        for sharer in sharers:
            assert sharer.stdout.readline() == "ready\n"
        time.sleep(0.3)
        with DeviceGate("cpu", tmp_path, wait_s=3).exclusive():
            pass
    finally:
        for sharer in sharers:
            sharer.kill()
            sharer.communicate()


def test_exclusive_sections_of_several_processes_do_not_overlap(tmp_path):
    processes = [hold(tmp_path, "exclusive", 0.1) for _ in range(4)]
    spans = sorted(tuple(map(float, p.communicate()[0].splitlines()[1].split())) for p in processes)
    assert len(spans) == 4
    assert all(first[1] <= second[0] for first, second in pairwise(spans))


def test_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    gate = DeviceGate("cpu", tmp_path / "file" / "locks")
    with pytest.raises(NoLockError, match="cannot open the lock"), gate.exclusive():
        pass
    with gate.shared():  # ordinary work needs no lock
        pass


@pytest.mark.parametrize(
    ("device", "worker", "count", "own"),
    [
        ("cuda", "gw0", 2, "cuda:0"),
        ("cuda", "gw1", 2, "cuda:1"),
        ("cuda", "gw2", 2, "cuda:0"),
        ("cuda", "gw3", 1, "cuda"),
        ("cuda", None, 2, "cuda"),
        ("cuda:1", "gw0", 2, "cuda:1"),
        ("cpu", "gw1", 2, "cpu"),
    ],
)
def test_workers_take_turns_over_devices(device, worker, count, own):
    assert share(device, worker, count) == own
