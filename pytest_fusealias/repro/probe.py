"""Ask a fresh process whether a script still fails."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

FAILS = 1  # exit code of a script whose check fails
_SCRIPT_SECONDS = 60.0


class Probe:
    """Runs candidate scripts in a folder of its own; a context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fusealias-")
        self._path = Path(self._folder.name) / "candidate.py"
        self._worker = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "pytest_fusealias.repro.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.kill()
        self._worker.communicate()
        self._folder.cleanup()

    def fails(self, script: str, files: dict[str, bytes] | None = None) -> bool:
        """True where the script runs to its end and its check fails."""
        self._path.write_text(script, encoding="utf-8")
        for name, content in (files or {}).items():
            (self._path.parent / name).write_bytes(content)
        return self.outcome(self._path) == FAILS

    def outcome(self, path: Path) -> int:
        """Returns the exit code of a script, -1 where it was stopped; what it prints is in a file beside it, `.out`."""
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(json.dumps([str(path), _SCRIPT_SECONDS]) + "\n")
        self._worker.stdin.flush()
        return int(self._worker.stdout.readline())

    def said(self) -> str:
        """Returns the last line that the last script printed."""
        out = Path(f"{self._path}.out")
        lines = out.read_text(errors="replace").split("\n") if out.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")


def fails_alone(path: Path) -> bool:
    """True where a new Python process, started as a user would, shows that the script's check fails."""
    command = [sys.executable, path.name]
    try:
        done = subprocess.run(
            command, cwd=path.parent, capture_output=True, timeout=2 * _SCRIPT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == FAILS and b"FAILS " in done.stdout
