"""What was measured of a program in eager and compiled: plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


class NotMeasuredError(Exception):
    """A measurement that could not be made, with the reason; never a result."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory that lives at a peak. `source` names the operators around it, and the user's line where that is known."""

    nbytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Live bytes above the inputs after each event of the allocator, and what lives at the highest of them."""

    live_bytes: tuple[int, ...]
    at_peak: tuple[Allocation, ...]

    @property
    def peak(self) -> int:
        """Position of the highest point; 0 where nothing happened."""
        return max(range(len(self.live_bytes)), key=self.live_bytes.__getitem__, default=0)

    @property
    def peak_bytes(self) -> int:
        """Height of the highest point."""
        return max(self.live_bytes, default=0)

    def thinned(self, most: int) -> list[int]:
        """Returns at most so many points, each the highest of those that it stands for."""
        count = len(self.live_bytes)
        kept = min(count, most)
        return [max(self.live_bytes[i * count // kept : (i + 1) * count // kept]) for i in range(kept)]


@dataclass(frozen=True, slots=True)
class ArmMemory:
    """Memory of one arm after warm-up, in bytes above the inputs.

    `peak_bytes` is the most during a call, with what earlier calls left behind (`kept_bytes`); `retained_bytes` is what is
    held after the call with its result. `leak_bytes` is what a call leaves behind for good, with its result dropped.
    """

    peak_bytes: int
    retained_bytes: int
    kept_bytes: int
    leak_bytes: int
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Pair:
    """A number of the eager and of the compiled arm."""

    eager: int
    compiled: int

    @property
    def excess(self) -> int:
        """How much more the compiled arm has."""
        return self.compiled - self.eager


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """Memory of both arms on one device type; `unit` tells what its bytes are."""

    device: str
    unit: str
    eager: ArmMemory
    compiled: ArmMemory

    @property
    def peak_bytes(self) -> Pair:
        """Peaks above the inputs."""
        return Pair(self.eager.peak_bytes, self.compiled.peak_bytes)

    @property
    def retained_bytes(self) -> Pair:
        """Bytes held after the call, with its result."""
        return Pair(self.eager.retained_bytes, self.compiled.retained_bytes)

    @property
    def leak_bytes(self) -> Pair:
        """Bytes that each further call leaves behind."""
        return Pair(self.eager.leak_bytes, self.compiled.leak_bytes)

    def numbers(self) -> dict[str, object]:
        """Returns the numbers, without timelines, as builtins."""
        pairs = {
            "peak_bytes": self.peak_bytes,
            "retained_bytes": self.retained_bytes,
            "leak_bytes": self.leak_bytes,
        }
        both = {name: {"eager": p.eager, "compiled": p.compiled} for name, p in pairs.items()}
        return {"device": self.device, "unit": self.unit, **both}

    def first_odd_value(self) -> Allocation | None:
        """Returns the first value, in order of allocation, at the compiled peak for which eager holds none of its size."""
        unmatched = Counter(a.nbytes for a in self.eager.timeline.at_peak)
        for value in self.compiled.timeline.at_peak:
            if not unmatched[value.nbytes]:
                return value
            unmatched[value.nbytes] -= 1
        return None
