"""Which nvFuser is installed, told from package metadata: importing it, or torch, takes seconds."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re


def describe(torch_version: str) -> str:
    """Returns one clause for the header: the version, and whether it was built for this torch."""
    if importlib.util.find_spec("nvfuser_direct") is None:
        return "no nvFuser"
    for distribution in importlib.metadata.distributions():
        built = re.match(r"nvfuser[-_]cu\d+[-_]torch(\d)(\d+)$", distribution.metadata["Name"] or "")
        if built:
            release = f"{built[1]}.{built[2]}"
            mine = ".".join(torch_version.split(".")[:2])
            fit = "" if release == mine else f" built for torch {release}"
            return f"nvFuser {distribution.version}{fit}"
    return "nvFuser of an unknown build"
