"""Runs scripts, each in a fork of a process that has only imported torch: as fresh as a new process, without its start.

Reads a line of JSON for each script, `[path, seconds]`, and answers with a line: its exit code, or -1 where it had to be
stopped. What the script prints goes to a file beside it, `.out`.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path

_PAUSE_S = 0.005


def serve() -> None:
    """Serves until the input ends."""
    _warm_up()
    for line in sys.stdin:
        path, seconds = json.loads(line)
        sys.stdout.write(f"{_outcome(path, seconds)}\n")
        sys.stdout.flush()


def _warm_up() -> None:
    """Compiles something with no backend at all, so that forks find everything imported; touches no CUDA device."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = (
        "1"  # asking the runtime whether there is CUDA would bar forks from it
    )
    import torch

    @torch.compile(backend="eager")
    def nothing(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    nothing(torch.ones(2))
    torch._dynamo.reset()


def _outcome(path: str, seconds: float) -> int:
    child = os.fork()
    if child == 0:
        _run(path)
    ending = time.monotonic() + seconds
    while time.monotonic() < ending:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_PAUSE_S)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def _run(path: str) -> None:
    """Runs the script in this process and ends it; 2 where the script breaks off."""
    os.setsid()
    out = os.open(f"{path}.out", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    code = 2
    try:
        sys.path.insert(0, str(Path(path).parent))
        runpy.run_path(path, run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 2
    except BaseException as error:  # noqa: BLE001 - the process ends here, whatever it is
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
