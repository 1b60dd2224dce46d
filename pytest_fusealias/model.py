"""The plain data of one check: what was asked (Spec) and what was decided (Verdict)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_fusealias.measurement import NotMeasuredError
from pytest_fusealias.outcome import Outcome as Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_fusealias.measurement import MemoryComparison, Pair
    from pytest_fusealias.timing import Benchmark

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

# Checks that a bound of the marker, or a baseline, adds.
BOUNDED = ("memory", "time", "compile_time", "recompiles", "graph_breaks", "regions", "baseline")

# Marker arguments that promise a check which this version accepts but cannot make yet. They are reported as
# NOT-MEASURED, never as PASS, so that nobody believes in a gate that does not exist.
UNMEASURED = {"variations": "variations", "canary": "canary"}


@dataclass(frozen=True, slots=True)
class Spec:
    """What one test asks for: the marker's arguments after validation, command line applied.

    `rtol` and `atol` override the per-dtype defaults of `torch.testing`. `train=None` runs backward when an output
    requires grad. `raises` declares that eager must raise this. `xfail_checks` maps a check, or `backend:check`, to the
    reason why it must fail. `max_peak_delta` and `max_retained` are what the compiled program may need more than eager, in
    the forms of `units.parse_bytes`. `keeps_timeline` has memory measured without a bound.
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
    keeps_timeline: bool = False

    @property
    def bounds_bench(self) -> bool:
        """True where a bound on time, compilation or fusion is set."""
        bounds = (self.max_compile_s, self.max_recompiles, self.max_graph_breaks, self.min_regions)
        return self.max_time_ratio is not None or any(b is not None for b in bounds)

    @property
    def bounds_memory(self) -> bool:
        """True where a bound on memory is set."""
        return any(b is not None for b in (self.max_peak_ratio, self.max_peak_delta, self.max_retained))


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
    `graphs` counts what was compiled; None where the compiler gives no such count. `memory` and `bench` are there where
    they were measured; `measure_memory` does so later, for whoever asks for `peak_bytes`.
    `diagram` has, for pairs of tensors that share memory otherwise than in eager, both paths and the relation in each arm.
    """

    backend: str
    checks: tuple[CheckResult, ...]
    refused: bool = False
    graphs: int | None = None
    tensors: int = 0
    strict: bool = False
    memory: MemoryComparison | None = None
    bench: Benchmark | None = None
    diagram: tuple[tuple[str, str, str, str], ...] = ()
    measure_memory: Callable[[], MemoryComparison] | None = field(default=None, repr=False, compare=False)

    @property
    def peak_bytes(self) -> Pair:
        """Peak bytes above the inputs, `eager` and `compiled`; raises NotMeasuredError where they cannot be measured."""
        return self._measured().peak_bytes

    @property
    def retained_bytes(self) -> Pair:
        """Bytes held after the call with its result, `eager` and `compiled`; raises NotMeasuredError."""
        return self._measured().retained_bytes

    def _measured(self) -> MemoryComparison:
        if self.memory is not None:
            return self.memory
        if self.measure_memory is None:
            raise NotMeasuredError("memory was not measured for this verdict")
        return self.measure_memory()

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
