"""Who may use a device now: timed sections alone, ordinary work together; across processes and test runs.

Locks are POSIX record locks on files in the machine's temporary folder. The kernel drops them when their process dies,
however it dies, and children do not inherit them.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

try:
    import fcntl
except ImportError:  # no record locks on this system
    fcntl = None  # type: ignore[assignment]

WAIT_S = 900.0
_POLL_S = 0.005


class NoLockError(Exception):
    """A device could not be locked; a timing made without the lock would not be one."""


class DeviceGate:
    """The lock of one device. `owner` names a device the same way in every process."""

    def __init__(self, owner: str, folder: Path | None = None, wait_s: float = WAIT_S) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / "fusealias-locks"
        self._name = re.sub(r"[^A-Za-z0-9.-]+", "-", owner)
        self._wait_s = wait_s

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Ordinary work. Where no lock is to be had the work is done without: only timings need one."""
        try:
            held = self._acquire(exclusive=False)
        except NoLockError:
            yield
            return
        with held:
            yield

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """A timed section; raises NoLockError where the device cannot be had alone."""
        with self._acquire(exclusive=True):
            yield

    def _acquire(self, *, exclusive: bool) -> contextlib.ExitStack:
        """Takes the lock in turn: who waits keeps the turnstile, so that a stream of sharers cannot starve it."""
        if fcntl is None:
            raise NoLockError("this system has no record locks, so a timing may overlap with others")
        deadline = time.monotonic() + self._wait_s
        with contextlib.ExitStack() as turn, contextlib.ExitStack() as taken:
            turn.enter_context(self._locked(f"{self._name}.turn", fcntl.LOCK_EX, deadline))
            kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
            taken.enter_context(self._locked(f"{self._name}.lock", kind, deadline))
            return taken.pop_all()

    @contextlib.contextmanager
    def _locked(self, name: str, kind: int, deadline: float) -> Iterator[None]:
        path = self._folder / name
        try:
            handle = _open(path)
        except OSError as error:
            raise NoLockError(f"cannot open the lock {path}: {error.strerror}") from None
        try:
            _wait(lambda: fcntl.lockf(handle, kind | fcntl.LOCK_NB), deadline, path)
            yield
        finally:
            os.close(handle)  # which also unlocks


def _open(path: Path) -> int:
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            path.parent.chmod(0o1777)  # other users' runs take turns with ours
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    with contextlib.suppress(OSError):
        os.fchmod(handle, 0o666)
    return handle


def _wait(lock: Callable[[], None], deadline: float, path: Path) -> None:
    while True:
        try:
            lock()
        except (BlockingIOError, PermissionError):
            if time.monotonic() > deadline:
                raise NoLockError(f"another run holds the device for too long ({path})") from None
            time.sleep(_POLL_S)
        else:
            return
