"""Programs, their seeded builds, and the proof that two builds are equal and share no memory."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from fusion_core import reach
from pytest_fusealias.relation import relations, storage_extents
from pytest_fusealias.watch import has_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class ProgramError(Exception):
    """The program under test cannot be judged: it is not deterministic, shares state between arms, or is ill-formed."""


@dataclass(frozen=True, slots=True)
class Program:
    """What one arm runs: `call(*args, **kwargs)`, or `drive(call, *args)` where a test calls more than once.

    `state` names further objects that the call may change. `fixtures` are the keyword arguments that pytest filled and
    that both arms therefore share.
    """

    call: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    state: object = None
    drive: Callable[..., Any] | None = None
    fixtures: frozenset[str] = frozenset()

    def run(self, call: Callable[..., Any]) -> Any:
        """Runs the program with `call` in the place of its own function."""
        if self.drive is not None:
            return self.drive(call, *self.args, **self.kwargs)
        return call(*self.args, **self.kwargs)

    def roots(self) -> dict[str, object]:
        """Returns every object from which the program's tensors are reached, by path."""
        named: dict[str, object] = {f"args[{position}]": value for position, value in enumerate(self.args)}
        for name, value in self.kwargs.items():
            named[f"fixture {name}" if name in self.fixtures else f"argument {name}"] = value
        if self.state is not None:
            named["state"] = self.state
        named["program"] = self.call
        if self.drive is not None:
            named["drive"] = self.drive
        return named


def seed_everything(seed: int) -> None:
    """Seeds torch (all devices), `random`, and numpy where it is loaded."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def build(factory: Callable[[], Program], seed: int) -> Program:
    """Builds one arm's program from the seeded factory."""
    seed_everything(seed)
    return factory()


def require_equal_builds(first: Program, second: Program) -> None:
    """Raises ProgramError unless both builds reach equal bytes, related in the same way, on the same paths."""
    one = {r.path: r.tensor for r in reach.walk(first.roots())}
    two = {r.path: r.tensor for r in reach.walk(second.roots())}
    if list(one) != list(two):
        odd = sorted(set(one) ^ set(two)) or ["their order"]
        raise ProgramError(
            f"two builds with the same seed differ at {odd[0]}: one has the tensor, the other has not; "
            "build the same inputs and state at every call"
        )
    for path, tensor in one.items():
        if tensor.is_nested:
            raise ProgramError(
                f"{path} is a nested tensor; these cannot be compared yet, pass its values and offsets"
            )
        if not _same_tensor(tensor, two[path]):
            raise ProgramError(
                f"two builds with the same seed differ at {path}; derive all inputs from torch, numpy or random, "
                "which are seeded before each build, and initialise all memory"
            )
    if relations(one) != relations(two):
        raise ProgramError(
            "two builds with the same seed share memory in different ways; build inputs the same way each time"
        )


def _same_tensor(a: torch.Tensor, b: torch.Tensor) -> bool:
    if (a.shape, a.dtype, a.device, a.layout) != (b.shape, b.dtype, b.device, b.layout):
        return False
    if a.layout is torch.strided and a.stride() != b.stride():
        return False
    if a.device.type == "meta" or a.layout is not torch.strided:
        return True
    return torch.equal(_plain_bytes(a), _plain_bytes(b))


def _plain_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as bytes: every dtype has them, and equal builds give equal NaNs."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    plain = plain.int_repr() if plain.is_quantized else plain
    # `contiguous` would keep a stride that addresses nothing, and then no view of bytes exists
    return plain.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def require_disjoint(arms: Mapping[str, Program]) -> None:
    """Raises ProgramError where a tensor's storage is reached from two arms, naming the path and the remedy.

    Two builds that share memory would run on each other's results; the difference would be blamed on the backend.
    """
    extents: dict[tuple[str, int, int, str], str] = {}
    for arm, program in arms.items():
        for reached in reach.walk(program.roots()):
            if has_storage(reached.tensor):
                for device, start, stop in storage_extents([reached.tensor]):
                    extents.setdefault((device, start, stop, arm), reached.path)
    last: tuple[str, int, str, str] | None = None  # device, end, arm, path of what reaches furthest so far
    for (device, start, stop, arm), path in sorted(extents.items()):
        if last is not None and last[0] == device and start < last[1] and last[2] != arm:
            raise ProgramError(_shared_message(path, last[3], arm if arm != "eager" else last[2]))
        if last is None or last[0] != device or stop > last[1]:
            last = (device, stop, arm, path)


def _shared_message(path: str, other_path: str, arm: str) -> str:
    where = path if path == other_path else f"{path} (also {other_path})"
    return (
        f"tensor {where} is shared by the eager and the {arm} build, so one arm would run on the other's results; "
        "create it inside `inputs`, `make` or the builder, not in a fixture, `self`, a module global or a closure"
    )


def require_one_device(program: Program) -> None:
    """Raises ProgramError where arguments lie on several devices, 0-d CPU tensors aside."""
    devices: dict[str, str] = {}
    for reached in reach.walk(
        {k: v for k, v in program.roots().items() if k not in ("program", "drive", "state")}
    ):
        if reached.tensor.dim() > 0:
            devices.setdefault(str(reached.tensor.device), reached.path)
    if len(devices) > 1:
        found = ", ".join(f"{path} on {device}" for device, path in devices.items())
        raise ProgramError(
            f"the inputs lie on several devices ({found}); build all of them on the `device` that is passed in"
        )
