"""Run a plan as a replayed CUDA graph where that is safe, else step by step.

A recording is made of tensors at fixed addresses, and its guard is the list of addresses. Sizes and strides are checked
before a plan is called; a call that passes the same addresses then gets the same work done on the tensors that it passes,
whether or not they are the same objects. Addresses seen for the first time run step by step, which also compiles the
kernels; the second call with them is recorded and replayed.
"""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from threading import RLock
from typing import Any
from weakref import WeakValueDictionary

import torch

from fusion_core.overlap import addresses_of
from fusion_core.replay.recording import Recorder, Recording, is_dense, rebased
from fusion_core.replay.waiting import run_watched
from fusion_core.runtime.plan import Plan
from fusion_core.runtime.straight import straight_line

Key = tuple[Any, ...]
Buffers = dict[int, torch.Tensor]  # where inputs that move are copied, by position

MOST_RECORDINGS = 8
MOST_LENDERS = 2  # each keeps memory for all that one forward saves
MOVES = 2  # of an input, after which it is copied to where it is expected
MOST_MISSES = 64  # calls in a row that no recording fits, after which none is looked for any more

# By device and stream: they own memory pools, which plans share. Recordings keep them.
_recorders: WeakValueDictionary[tuple[int, int], Recorder] = WeakValueDictionary()
_failures: Counter[int] = Counter()  # recordings that failed, by device: those made before are not usable


class Replay:
    """Stands in for a plan.

    With `copies`, inputs that are not written may move from call to call: after the second move they are copied to memory
    of the recording. What forward saved moves once, to where its recording has it. Without `copies`, a call with other
    addresses runs step by step. Outputs from `lent_from` on go to backward alone, which lets go of them.
    """

    def __init__(
        self,
        plan: Plan,
        written: frozenset[int],
        device: torch.device,
        *,
        copies: bool,
        lent_from: int | None = None,
    ) -> None:
        self._plan = plan
        self._run_plainly = straight_line(plan)
        self._written = written
        self._device = device
        self._copies = copies
        self._lent_from = lent_from
        self._moves: Counter[int] = Counter()
        self._lock = RLock()
        self._recordings: dict[Key, tuple[Recording, Buffers]] = {}
        self._failures = _failures[device.index]
        self._seen: OrderedDict[Key, Buffers] = OrderedDict()
        self._misses = 0
        self._last: list[Any] = []
        self._moving: set[int] = set()  # positions of inputs that are copied
        self._current: tuple[list[Any], Recording, Buffers] | None = None  # the last replay, with its key
        self.stopped = ""

    def run(self, arguments: list[Any]) -> tuple[Any, ...]:
        """Does what `Plan.run` does; takes over the list of arguments."""
        if self.stopped or torch.cuda.is_current_stream_capturing():
            return self._run_plainly(arguments)
        with self._lock:
            addresses = addresses_of(arguments)
            key = self._key(addresses)
            if self._current is not None and self._failures == _failures[self._device.index]:
                known, recording, buffers = self._current
                if key == known:
                    return self._replay(recording, buffers, arguments)
            return self._look_up(arguments, addresses)

    def _look_up(self, arguments: list[Any], addresses: list[Any]) -> tuple[Any, ...]:
        if self._copies and addresses != self._last:
            self._let_move(arguments, addresses)
        if not all(is_dense(arguments[i]) for i in self._moving):
            return self._run_plainly(arguments)
        if self._failures != _failures[self._device.index]:
            self._failures = _failures[self._device.index]
            self._recordings.clear()
            self._current = None
        key = self._key(addresses)
        recorded = self._recordings.get(tuple(key))
        if recorded is None:
            return self._run_new(arguments, tuple(key))
        self._current = key, *recorded
        return self._replay(*recorded, arguments)

    def _replay(self, recording: Recording, buffers: Buffers, arguments: list[Any]) -> tuple[Any, ...]:
        self._misses = 0
        with recording.recorder.lock:  # until what is returned is copied out, no other thread may replay
            if recording.loan.may_be_overwritten():
                _fill(buffers, arguments)
                if torch.cuda.current_device() == self._device.index:
                    return recording.replay(arguments)
                with torch.cuda.device(self._device):
                    return recording.replay(arguments)
        return self._run_plainly(arguments)

    def _key(self, addresses: list[Any]) -> list[Any]:
        """Addresses and numbers, and the stream, since a recording uses memory that calls on one stream share."""
        key = [*addresses, torch._C._cuda_getCurrentRawStream(self._device.index)]  # noqa: SLF001 - ten times as fast
        for position in self._moving:
            key[position] = None
        return key

    def _forget(self) -> None:
        self._recordings.clear()
        self._seen.clear()
        self._current = None

    def _run_new(self, arguments: list[Any], key: Key) -> tuple[Any, ...]:
        self._misses += 1
        if self._misses > MOST_MISSES or (key in self._seen and len(self._recordings) >= MOST_RECORDINGS):
            self._stop("addresses of inputs change from call to call")
            return self._run_plainly(arguments)
        if key not in self._seen:
            self._seen[key] = buffers = self._new_buffers(arguments)
            if len(self._seen) > MOST_RECORDINGS:
                self._seen.popitem(last=False)
            return self._run_in_steps(buffers, arguments)
        buffers = self._seen[key]
        _fill(buffers, arguments)
        given = _with(buffers, arguments)
        lenders = sum(bool(recording.loan) for recording, _ in self._recordings.values())
        lent_from = self._lent_from if lenders < MOST_LENDERS else None
        try:
            with torch.cuda.device(self._device):
                recording = self._recorder(key[-1]).record(self._plan, given, lent_from)
        except RuntimeError as error:  # out of memory is one; nothing has run, so nothing is written
            _failures[self._device.index] += 1
            _recorders.clear()
            self._stop(f"the recording failed: {str(error).splitlines()[0]}")
            return self._run_plainly(arguments)
        self._recordings[key] = recording, buffers
        return self._replay(recording, buffers, arguments)

    def _run_in_steps(self, buffers: Buffers, arguments: list[Any]) -> tuple[Any, ...]:
        """Runs the plan, on the buffers where inputs move: kernels are compiled for where these lie."""
        waits: list[str] = []
        if buffers:
            _fill(buffers, arguments)
            given = _with(buffers, arguments)
            values = rebased(run_watched(self._plan, list(given), waits), given, arguments)
        else:
            values = run_watched(
                self._plan, arguments, waits
            )  # which lets go of each argument after its last use
        if waits:
            self._stop(f"the host waits for {waits[0]}")
        return values

    def _recorder(self, stream: int) -> Recorder:
        place = (self._device.index, stream)
        recorder = _recorders.get(place) or Recorder(self._device)
        _recorders[place] = recorder
        return recorder

    def _stop(self, reason: str) -> None:
        self.stopped = reason
        self._forget()
        self._moving.clear()
        if self._copies:
            warnings.warn(
                f"graphs=True: a plan is no longer replayed: {reason}", RuntimeWarning, stacklevel=2
            )

    def _let_move(self, arguments: list[Any], addresses: list[Any]) -> None:
        """Gives memory of the recording to inputs that have moved twice and are not written."""
        for position, (now, before) in enumerate(zip(addresses, self._last, strict=False)):
            if (
                now == before
                or position in self._written
                or not isinstance(arguments[position], torch.Tensor)
            ):
                continue
            self._moves[position] += 1
        moving = {i for i, count in self._moves.items() if count >= MOVES and is_dense(arguments[i])}
        if not moving <= self._moving:
            self._moving |= moving
            self._forget()
        self._last = addresses

    def _new_buffers(self, arguments: list[Any]) -> Buffers:
        with torch.inference_mode(False):  # they are written in any mode
            return {i: torch.empty_like(arguments[i], requires_grad=False) for i in sorted(self._moving)}


def _fill(buffers: Buffers, arguments: list[Any]) -> None:
    """Copies the inputs that move."""
    if buffers:
        with torch.no_grad():
            torch._foreach_copy_(list(buffers.values()), [arguments[i] for i in buffers])


def _with(buffers: Buffers, arguments: list[Any]) -> list[Any]:
    """Returns the arguments with the buffers in their places."""
    return [buffers.get(position, argument) for position, argument in enumerate(arguments)]
