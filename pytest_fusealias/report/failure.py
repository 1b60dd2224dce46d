"""The text of a failed verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_fusealias.model import BOUNDED, Outcome
from pytest_fusealias.report.memory import side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_fusealias.model import CheckResult, Verdict

_SHOWN_FINDINGS = 6


def failure_text(verdict: Verdict, node_id: str, replay: str, repro: str = "") -> str:
    """Returns what failed, by check and path, what else was found, the command that runs it again, and the script."""
    kind = "the compiled program differs from eager"
    if verdict.refused:
        kind = "the backend refuses what eager runs"
    elif all(r.check in BOUNDED for r in verdict.failures):
        kind = "the compiled program exceeds a bound"
    lines = [f"fusion_equiv: {kind} (backend {verdict.backend}, {node_id})"]
    for result in verdict.failures:
        lines += _result_lines(result)
        if result.check == "memory" and verdict.memory is not None:
            lines += [f"    {line}" for line in side_by_side(verdict.memory)]
    lines += [
        f"  {c.check}: NOT-MEASURED: {c.reason}" for c in verdict.not_measured if c not in verdict.failures
    ]
    passed = [c.check for c in verdict.checks if c.outcome is Outcome.PASS and c not in verdict.failures]
    lines.append(f"  passed: {', '.join(passed) or 'none'}")
    lines += [f"  weak: {f.check}: {f.path}: {f.text}" for f in verdict.weak[:_SHOWN_FINDINGS]]
    lines.append(f"  again: {replay}")
    if repro:
        lines.append(f"  repro: {repro}")
    return "\n".join(lines)


def _result_lines(result: CheckResult) -> Iterator[str]:
    if not result.findings:
        yield f"  {result.check}: {result.outcome.value}: {result.reason}"
    strong_first = sorted(result.findings, key=lambda f: not f.strong)
    for finding in strong_first[:_SHOWN_FINDINGS]:
        yield f"  {result.check}: {finding.path}: {finding.text}"
    hidden = len(result.findings) - _SHOWN_FINDINGS
    if hidden > 0:
        yield f"  {result.check}: and {hidden} more"
