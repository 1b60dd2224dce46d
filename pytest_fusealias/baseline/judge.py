"""Compare measured entries with saved ones: field by field, with the outcome that the intervals of both allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_fusealias.baseline.expression import amount_text
from pytest_fusealias.model import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_fusealias.baseline.expression import Limit
    from pytest_fusealias.baseline.schema import Entry, Run


@dataclass(frozen=True, slots=True)
class Change:
    """One field of one test against its baseline. `outcome` is that of the limit; PASS where there is none."""

    test: str
    backend: str
    field: str
    outcome: Outcome
    text: str
    old: float | None = None
    new: float | None = None


# Field -> names of its value, lower and upper bound in an Entry.
_VALUES = {
    "time": ("compiled_s", "compiled_low_s", "compiled_high_s"),
    "ratio": ("ratio", "ratio_low", "ratio_high"),
    "compile": ("compile_s", "compile_s", "compile_s"),
    "peak": ("peak_bytes", "peak_bytes", "peak_bytes"),
    "retained": ("retained_bytes", "retained_bytes", "retained_bytes"),
}


def counterpart(entry: Entry, run: Run) -> Entry | str:
    """Returns the baseline's entry for the same test, backend, machine and estimator, or why there is none."""
    if not run.entries:
        return "the baseline is empty"
    same_test = [e for e in run.entries if e.test == entry.test and e.backend == entry.backend]
    if not same_test:
        return "the baseline has no entry for this test and backend; it is new, or its id changed"
    same_machine = [e for e in same_test if e.machine == entry.machine]
    if not same_machine:
        return f"the baseline is of another machine: {same_test[-1].machine}; this one is {entry.machine}"
    found = [e for e in same_machine if e.key == entry.key]
    if not found:
        return f"the baseline was measured in another way ({same_machine[-1].estimator}); save it again"
    if (found[-1].threads, found[-1].cache) != (entry.threads, entry.cache) and entry.threads is not None:
        return "the baseline was measured with other threads or another state of the cache; save it again"
    return found[-1]


def compare_entry(new: Entry, run: Run, limits: Sequence[Limit]) -> list[Change]:
    """Returns one change for each limit; a single NOT-MEASURED one where the baseline has no counterpart."""
    old = counterpart(new, run)
    if isinstance(old, str):
        return [Change(new.test, new.backend, "baseline", Outcome.NOT_MEASURED, old)]
    return [_judged(old, new, limit) for limit in limits]


def compare_runs(old: Run, new: Run, limits: Sequence[Limit]) -> list[Change]:
    """Returns the changes of every entry of the new run, then the entries that only the old run has."""
    changes = [change for entry in new.entries for change in compare_entry(entry, old, limits)]
    return [*changes, *(_gone(entry) for entry in unmatched(old, new.entries))]


def unmatched(old: Run, entries: Iterable[Entry]) -> list[Entry]:
    """Returns the baseline's entries that were not measured again."""
    seen = {(e.test, e.backend) for e in entries}
    return [e for e in old.entries if (e.test, e.backend) not in seen]


def _gone(entry: Entry) -> Change:
    text = "the baseline has it, this run has not"
    return Change(entry.test, entry.backend, "baseline", Outcome.NOT_MEASURED, text)


def _judged(old: Entry, new: Entry, limit: Limit) -> Change:
    value, low, high = _VALUES[limit.field]
    before, after = getattr(old, value), getattr(new, value)
    if before is None or after is None:
        where = "in the baseline" if before is None else "in this run"
        text = f"{limit.field} was not measured {where}"
        return Change(new.test, new.backend, limit.field, Outcome.NOT_MEASURED, text, before, after)
    surely = getattr(new, low) > limit.allowed(getattr(old, high))
    surely_not = getattr(new, high) <= limit.allowed(getattr(old, low))
    outcome = Outcome.FAIL if surely else Outcome.PASS if surely_not else Outcome.NOT_MEASURED
    text = f"{limit.field} {amount_text(limit.field, before)} -> {amount_text(limit.field, after)}{_growth(before, after)}"
    if outcome is Outcome.NOT_MEASURED:
        text += f": too noisy to tell from the limit {limit}"
    elif outcome is Outcome.FAIL:
        text += f"; allowed is {limit}"
    return Change(new.test, new.backend, limit.field, outcome, text, before, after)


def _growth(before: float, after: float) -> str:
    return f" ({(after / before - 1) * 100:+.1f}%)" if before else ""
