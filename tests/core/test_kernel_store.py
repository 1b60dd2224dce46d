"""Where compiled kernels are kept: each process in a directory of its own, with what was finished before it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fusion_core.executors import kernel_store

HOLD = """
import os, sys
from fusion_core.executors import kernel_store
kernel_store.enable()
with kernel_store.opened(lambda: "kind"):
    print(os.environ["TMPDIR"], os.environ["NVFUSER_ENABLE"], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start(tmp_path):
    """Starts a process that takes a directory, and returns it with what it printed."""
    running = []

    def begin(**more):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {kernel_store.VARIABLE: str(tmp_path / "cache")} | more,
        )  # fmt: skip
        running.append(process)
        place, switches = process.stdout.readline().split()
        return process, Path(place), switches

    yield begin
    for process in running:
        process.communicate()


def finish(database, *numbers):
    database.mkdir(parents=True, exist_ok=True)
    lines = [f"name,--arch,kernel_{n}.cu,kernel_{n}.cubin\n" for n in numbers]
    (database / "db.csv").write_text(
        "".join(["kernel_signature,compile_args,kernel_code_file,cubin_file\n", *lines])
    )
    for n in numbers:
        (database / f"kernel_{n}.cu").write_text(f"source {n}")
        (database / f"kernel_{n}.cubin").write_bytes(bytes([n]))


def test_living_processes_share_no_directory(start):
    first, place, switches = start()
    _, other, more = start(NVFUSER_ENABLE="fast_math")
    assert place != other
    assert switches == "kernel_db"
    assert more == "fast_math,kernel_db"
    first.communicate()
    _, again, _ = start()
    assert again == place


def test_a_new_directory_begins_with_finished_kernels(start):
    _, place, _ = start()
    database = place / "nvfuser_kernel_db"
    finish(database, 0, 1)
    with (database / "db.csv").open("a") as file:
        file.write("damaged\nname,--arch,kernel_8.cu,kernel_8.cubin\n")
        file.write("name,--arch,kernel_2.cu,ker")  # it is being written
    (database / "kernel_2.cu").write_text("half")
    _, other, _ = start()
    copied = other / "nvfuser_kernel_db"
    assert sorted(p.name for p in copied.iterdir()) == [
        "db.csv", "kernel_0.cu", "kernel_0.cubin", "kernel_1.cu", "kernel_1.cubin",
    ]  # fmt: skip
    assert (copied / "db.csv").read_text().count("\n") == 3
    assert (copied / "kernel_1.cubin").read_bytes() == b"\1"


def test_nothing_changes_where_no_directory_is_named(monkeypatch):
    monkeypatch.delenv(kernel_store.VARIABLE, raising=False)
    monkeypatch.delenv("NVFUSER_ENABLE", raising=False)
    monkeypatch.delenv("TMPDIR", raising=False)
    kernel_store.enable()
    with kernel_store.opened(lambda: "kind"):
        assert "NVFUSER_ENABLE" not in os.environ
        assert "TMPDIR" not in os.environ


def test_the_temporary_directory_comes_back(monkeypatch, tmp_path):
    monkeypatch.setattr(kernel_store, "_locks", [])
    monkeypatch.setattr(kernel_store, "_open_in", [])
    monkeypatch.setenv(kernel_store.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", "/before")
    with pytest.raises(ZeroDivisionError), kernel_store.opened(lambda: "kind"):
        assert os.environ["TMPDIR"] == str(tmp_path / "cache" / "kind" / "0")
        1 / 0  # noqa: B018
    assert os.environ["TMPDIR"] == "/before"
    with kernel_store.opened(lambda: "kind"):
        assert os.environ["TMPDIR"] == str(tmp_path / "cache" / "kind" / "0")
    with kernel_store.opened(lambda: "kind"):  # the database is open
        assert os.environ["TMPDIR"] == "/before"
    os.close(kernel_store._locks.pop())


def test_a_directory_that_cannot_be_made_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(kernel_store, "_open_in", [])
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv(kernel_store.VARIABLE, str(tmp_path / "file"))
    told = pytest.warns(RuntimeWarning, match=r"FUSION_CORE_KERNEL_CACHE=.*file: kernels are not kept")
    with told, kernel_store.opened(lambda: "kind"):
        own = Path(os.environ["TMPDIR"])  # nvFuser's database is on, so it must not lie where others write
        assert own.parent == Path(tempfile.gettempdir())
    own.rmdir()
    assert (tmp_path / "file").read_text() == "mine"
