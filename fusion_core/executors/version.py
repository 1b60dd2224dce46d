"""Is nvFuser there, and was it built for this torch?"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re

import torch

OLDEST = (0, 2, 34)  # the first release with the `nvfuser_direct` bindings that the executor uses


def installed() -> tuple[str, str] | None:
    """Returns name and version of the distribution that provides `nvfuser_direct`; None where there is none."""
    if importlib.util.find_spec("nvfuser_direct") is None:
        return None
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if re.match(r"nvfuser[-_]cu\d+", name):
            return name.replace("_", "-"), distribution.version
    return "nvfuser", "unknown version"


def problem() -> str:
    """Returns why nvFuser cannot be used on this machine, or an empty string."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    found = installed()
    if found is None:
        return "nvfuser_direct is not installed; install the nvfuser-cuXXX-torchYYY wheel of this torch"
    numbers = tuple(map(int, re.findall(r"\d+", found[1])[:3]))
    if numbers and numbers < OLDEST:
        return f"nvFuser {found[1]} is older than {'.'.join(map(str, OLDEST))}"
    return ""


def mismatch() -> str:
    """Returns a sentence where nvFuser was built for another torch than this one, or an empty string."""
    found = installed()
    built = re.search(r"torch(\d)(\d+)$", found[0]) if found is not None else None
    if found is None or built is None:
        return ""
    release = f"{built[1]}.{built[2]}"
    mine = ".".join(torch.__version__.split(".")[:2])
    return (
        ""
        if release == mine
        else f"nvFuser {found[1]} is built for torch {release}, this is {torch.__version__}"
    )
