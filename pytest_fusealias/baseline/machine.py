"""The machine key: numbers are only compared where it is equal."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

from pytest_fusealias import nvfuser_version


def machine_key(device: str, backend: str) -> str:
    """Returns what numbers of a backend on a device depend on: processor, driver, torch and backend versions."""
    import torch

    parts = [f"torch {torch.__version__}"]
    if device == "cuda":
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        parts = [properties.name, f"driver {_driver()}", f"cuda {torch.version.cuda}", *parts]
    parts = [_processor(), f"{os.cpu_count()} cpus", *parts]
    if backend == "fusion_core":
        parts.append(f"fusion_core {importlib.metadata.version('pytest-fusealias')}")
        if device == "cuda":
            parts.append(nvfuser_version.describe(torch.__version__))
    return ", ".join(parts)


def machine_info() -> dict[str, object]:
    """Returns facts about the machine for people, not for comparison; names as pytest-benchmark has them."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "system": platform.system(),
        "release": platform.release(),
        "python_version": platform.python_version(),
        "python_implementation": platform.python_implementation(),
        "cpu": {"brand_raw": _processor(), "count": os.cpu_count()},
    }


def commit_info(folder: Path) -> dict[str, object]:
    """Returns commit, branch and whether there are changes, where `folder` is in a git repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return {}
    return {
        "id": commit,
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "time": _git(folder, "show", "-s", "--format=%cI", "HEAD"),
        "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no")),
    }


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    return next((word for word in text.split() if word[0].isdigit() and "." in word), "unknown")
