"""Whether a CUDA device is slowed down to protect itself, where NVML tells."""

from __future__ import annotations

from typing import Any

import torch


class Throttle:
    """Reads a device's throttle reasons through `pynvml`, which need not be installed."""

    def __init__(self, device: torch.device) -> None:
        self._nvml: Any = None
        if device.type != "cuda":
            return
        try:
            import pynvml  # type: ignore[import-not-found,unused-ignore]

            pynvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            self._nvml = pynvml
            self.is_throttled()
        except Exception:  # noqa: BLE001 - no library, no driver, no right to ask: all of them mean that it is not known
            self._nvml = None

    @property
    def known(self) -> str:
        """What a report says: `watched` or `not known`."""
        return "not known" if self._nvml is None else "watched"

    def is_throttled(self) -> bool:
        """True where heat, power brake or a hardware slowdown holds the clocks down."""
        if self._nvml is None:
            return False
        try:
            reasons = int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
        except self._nvml.NVMLError:
            self._nvml = None  # it told once and does no more: not known from here on
            return False
        bad = (
            self._nvml.nvmlClocksThrottleReasonHwSlowdown
            | self._nvml.nvmlClocksThrottleReasonHwThermalSlowdown
            | self._nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
            | self._nvml.nvmlClocksThrottleReasonSwThermalSlowdown
        )
        return bool(reasons & bad)
