"""The plain data of one check: what was asked (Spec) and what was decided (Verdict)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Checks in the order in which a report lists them; each compares one aspect of two observations.
CHECKS = (
    "raises",
    "values",
    "mutation",
    "alias",
    "identity",
    "layout",
    "meta",
    "grads",
    "rng",
    "compiled",
)

# Marker arguments that promise a bound or variation which this version accepts but cannot measure yet. They are
# reported as NOT-MEASURED, never as PASS, so that nobody believes in a gate that does not exist.
UNMEASURED = {
    "max_time_ratio": "time",
    "max_compile_s": "time",
    "max_peak_ratio": "memory",
    "max_peak_delta": "memory",
    "max_retained": "memory",
    "variations": "variations",
    "canary": "canary",
    "min_regions": "regions",
    "max_graph_breaks": "graph_breaks",
    "max_recompiles": "recompiles",
}


class Outcome(str, enum.Enum):
    """What a check, or all checks together, came to; the third is printed and counted, never folded into PASS."""

    PASS = "PASS"
    FAIL = "FAIL"
    NOT_MEASURED = "NOT-MEASURED"


@dataclass(frozen=True, slots=True)
class Spec:
    """What one test asks for: the marker's arguments after validation, command line applied.

    `rtol` and `atol` override the per-dtype defaults of `torch.testing`. `train=None` runs backward when an output
    requires grad. `raises` declares that eager must raise this. `xfail_checks` maps a check, or `backend:check`, to the
    reason why it must fail.
    """

    backend: str | Callable[..., Any] | None = None
    inputs: Callable[..., Any] | None = None
    raises: type[BaseException] | tuple[type[BaseException], ...] | None = None
    args: tuple[Any, ...] | None = None
    dtype: Any = None
    device: str | None = None
    train: bool | None = None
    dynamic: bool | None = None
    rtol: float | None = None
    atol: float | None = None
    checks: tuple[str, ...] = CHECKS
    xfail_checks: Mapping[str, str] = field(default_factory=dict)
    alias: str = "eager"
    rng: str = "eager"
    allow_fallback: bool = False
    strict: bool = False
    seed: int = 0
    canary: bool = False
    variations: tuple[str, ...] = ()
    max_time_ratio: float | None = None
    max_compile_s: float | None = None
    max_peak_ratio: float | None = None
    max_peak_delta: str | int | None = None
    max_retained: str | int | None = None
    min_regions: int | None = None
    max_graph_breaks: int | None = None
    max_recompiles: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between the arms. `strong` is false where correct backends legitimately differ."""

    check: str
    path: str
    text: str
    strong: bool = True


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check; `reason` says why it was not measured or why its failure is expected."""

    check: str
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    expected_failure: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """All checks of one program under one backend.

    `refused` is true when the backend raised where eager runs: a loud refusal, to be told from a silent difference.
    `graphs` counts what was compiled; None where the compiler gives no such count.
    """

    backend: str
    checks: tuple[CheckResult, ...]
    refused: bool = False
    graphs: int | None = None
    tensors: int = 0
    strict: bool = False

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """Checks that make the test fail; under strict also those not measured and those with weak findings."""
        return tuple(c for c in self.checks if _fails(c, self.strict))

    @property
    def not_measured(self) -> tuple[CheckResult, ...]:
        """Checks that could not be decided."""
        return tuple(c for c in self.checks if c.outcome is Outcome.NOT_MEASURED)

    @property
    def weak(self) -> tuple[Finding, ...]:
        """Differences in which correct backends may differ from eager."""
        return tuple(f for c in self.checks for f in c.findings if not f.strong)

    @property
    def expected(self) -> tuple[CheckResult, ...]:
        """Checks that failed as `xfail_checks` said."""
        return tuple(c for c in self.checks if c.expected_failure and c.outcome is not Outcome.FAIL)

    @property
    def outcome(self) -> Outcome:
        """FAIL before NOT-MEASURED before PASS."""
        if self.failures:
            return Outcome.FAIL
        return Outcome.NOT_MEASURED if self.not_measured else Outcome.PASS

    def __getitem__(self, check: str) -> CheckResult:
        """The result of one check by name; KeyError lists what was checked."""
        for result in self.checks:
            if result.check == check:
                return result
        raise KeyError(f"{check!r} was not checked; checked: {', '.join(c.check for c in self.checks)}")


def _fails(result: CheckResult, strict: bool) -> bool:
    if result.outcome is Outcome.FAIL:
        return True
    undecided = result.outcome is Outcome.NOT_MEASURED
    return strict and (
        undecided or (any(not f.strong for f in result.findings) and not result.expected_failure)
    )
