"""Judge a case under fusion_core, and under aot_eager where it fails: a failure that both share is torch's."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field
from typing import Protocol

import torch
from opinfo_known import tolerance

from pytest_fusealias.build import Program, ProgramError
from pytest_fusealias.check import check
from pytest_fusealias.model import Outcome, Spec, Verdict

BACKEND, CONTROL = "fusion_core", "aot_eager"


class Case(Protocol):
    """Samples that are judged together, and one by one where they do not pass."""

    first: int
    last: int
    key: str
    train: bool | None

    def build(self, device: str) -> Program: ...

    def singles(self) -> list[Case]: ...


@dataclass
class Result:
    """What came of a case's samples; texts are `key: check: path: what differs`.

    `raised` counts samples where eager and the backend both raise, and leave the same behind.
    """

    key: str
    samples: int
    passed: int = 0
    raised: int = 0
    ours: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    not_judged: list[str] = field(default_factory=list)

    def to_dict(self) -> dict:
        """Returns builtins."""
        return asdict(self)


def judge(case: Case, device: str) -> Result:
    """Judges all samples together, and each by itself where they do not pass."""
    result = Result(case.key, case.last - case.first)
    together = _verdict(case, device, BACKEND)
    if isinstance(together, Verdict) and together.outcome is Outcome.PASS:
        result.passed = result.samples
        return result
    for single in case.singles():
        _judge_one(single, device, result)
    return result


def _judge_one(case: Case, device: str, result: Result) -> None:
    found = _verdict(case, device, BACKEND)
    if isinstance(found, str):
        result.not_judged.append(f"{case.key}: {found}")
    elif found.outcome is Outcome.PASS:
        result.passed += 1
    elif found.outcome is Outcome.NOT_MEASURED and "eager raises" in found.not_measured[0].reason:
        result.raised += 1  # both raise, and leave the same behind: a pass of the other checks
    elif found.outcome is Outcome.NOT_MEASURED:
        result.not_judged.append(f"{case.key}: {found.not_measured[0].reason}")
    else:
        control = _verdict(case, device, CONTROL)
        fails_too = isinstance(control, str) or control.outcome is Outcome.FAIL
        (result.shared if fails_too else result.ours).append(f"{case.key}: {_text(found)}")


def _verdict(case: Case, device: str, backend: str) -> Verdict | str:
    rtol, atol = tolerance(case.key, device)
    spec = Spec(
        backend=backend,
        device=device,
        train=case.train,
        allow_fallback=True,
        rng="eager",
        rtol=rtol,
        atol=atol,
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return check(lambda: case.build(device), spec)
    except ProgramError as error:
        return f"not judged: {str(error)[:200]}"
    except Exception as error:  # noqa: BLE001 - a sample that cannot even be built must not end the run
        return f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        torch._dynamo.reset()


def _text(verdict: Verdict) -> str:
    return "; ".join(f"{f.check}: {f.path}: {f.text}"[:300] for c in verdict.failures for f in c.findings[:2])
