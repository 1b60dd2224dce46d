"""Compiled kernels kept across processes, in the directory that the environment variable FUSION_CORE_KERNEL_CACHE names.

nvFuser's own database keeps binaries by their source, in one directory below the temporary one. It numbers its files, so
two processes that write at once would mix up the files of two kernels. Here a process takes a directory that no other
living process holds; a new one begins with what the first one has.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

VARIABLE = "FUSION_CORE_KERNEL_CACHE"
MOST_PROCESSES = 256
# nvFuser's names: its directory, and the file in it that names the files of each kernel.
_DATABASE, _INDEX = "nvfuser_kernel_db", "db.csv"


def enable() -> None:
    """Switches nvFuser's database on, where a directory is named; to be called before nvFuser is imported.

    nvFuser reads its switches from the environment when a thread first uses it.
    """
    switches = [s for s in os.environ.get("NVFUSER_ENABLE", "").split(",") if s]
    if os.environ.get(VARIABLE) and "kernel_db" not in switches:
        os.environ["NVFUSER_ENABLE"] = ",".join([*switches, "kernel_db"])


@contextmanager
def opened(kind: Callable[[], str]) -> Iterator[None]:
    """Lets nvFuser find its database until a first kernel is compiled; `kind` names what kernels depend on."""
    root = os.environ.get(VARIABLE)
    if not root or _open_in:
        yield
        return
    with _one_thread:
        place = _held(Path(root) / kind())
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = str(place)
        try:
            yield
        finally:
            os.environ.pop("TMPDIR", None)
            if before is not None:
                os.environ["TMPDIR"] = before
        _open_in.append(place)


_one_thread = threading.RLock()  # the environment belongs to all threads
_open_in: list[Path] = []  # where nvFuser has opened its database


@cache
def _held(parent: Path) -> Path:
    """Returns a directory that this process holds until it ends; where there is none, one that goes with it, and warns."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(MOST_PROCESSES):
            place = parent / str(number)
            place.mkdir(exist_ok=True)
            lock = _lock(place / "lock")
            if lock is not None:
                _locks.append(lock)
                if not (place / _DATABASE).exists():
                    copy_finished(parent / "0" / _DATABASE, place / _DATABASE)
                return place
        reason = f"{MOST_PROCESSES} processes hold its parts"
    except OSError as error:
        reason = str(error)
    warnings.warn(
        f"{VARIABLE}={parent.parent}: kernels are not kept: {reason}; name a directory that can be written",
        RuntimeWarning,
        stacklevel=2,
    )
    own = (
        tempfile.mkdtemp()
    )  # nvFuser's database is on, and the common temporary directory is not safe for it
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(own)


_locks: list[int] = []  # descriptors; a file that is closed is no longer locked


def _lock(path: Path) -> int | None:
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def copy_finished(source: Path, target: Path) -> None:
    """Copies the kernels that the index of `source` names: these are complete, though a process may be adding more."""
    index = source / _INDEX
    if source == target or not index.exists():
        return
    text = index.read_text(errors="replace")
    header, *lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")] or [""]
    beginning = target.with_name(f"{target.name}.new")
    shutil.rmtree(beginning, ignore_errors=True)
    beginning.mkdir()
    kept = [line for line in lines if _copied(line, source, beginning)]
    (beginning / _INDEX).write_text("".join([header, *kept]))
    beginning.rename(target)


def _copied(line: str, source: Path, target: Path) -> bool:
    """Copies the files that a line of the index names; False for a damaged line, which costs a compilation."""
    names = line.rstrip("\n").split(",")[-2:]
    if len(names) < 2 or not all((source / name).is_file() for name in names):
        return False
    for name in names:
        shutil.copy(source / name, target / name)
    return True
