"""Which device a test process works on, and the lock that goes with it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_fusealias.locks import DeviceGate

if TYPE_CHECKING:
    import pytest


def worker_of(config: pytest.Config) -> str | None:
    """Returns the name of the xdist worker that this process is, or None."""
    inputs = getattr(config, "workerinput", None)
    return None if inputs is None else str(inputs["workerid"])


def share(device: str, worker: str | None, count: int) -> str:
    """Returns a worker's device: workers take turns over `count` CUDA devices; a device named with its index stays."""
    number = re.fullmatch(r"gw(\d+)", worker or "")
    if device != "cuda" or number is None or count < 2:
        return device
    return f"cuda:{int(number[1]) % count}"


def own_device(config: pytest.Config, device: str) -> str:
    """Returns this process's share of a device name, and makes it torch's current device."""
    if device != "cuda" or worker_of(config) is None:
        return device
    import torch

    own = share(device, worker_of(config), torch.cuda.device_count())
    if own != device:
        torch.cuda.set_device(torch.device(own))
    return own


def gate_of(device: str) -> DeviceGate:
    """Returns the lock of a device; a CUDA device has one name in every process, whatever its index there."""
    if not device.startswith("cuda"):
        return DeviceGate(device.partition(":")[0])
    import torch

    if not torch.cuda.is_available():
        return DeviceGate("cuda")
    index = torch.cuda.current_device() if device == "cuda" else torch.device(device).index
    properties = torch.cuda.get_device_properties(index)
    return DeviceGate(f"cuda-{properties.uuid}")
