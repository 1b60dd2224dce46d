"""Assert what is known of a module's or optimizer's case on a device."""

from __future__ import annotations

from module_cases import ModuleCase, OptimizerCase
from opinfo_judge import judge
from opinfo_known import KNOWN_MODULES, moves_counters


def assert_known(case: ModuleCase | OptimizerCase, device: str) -> None:
    """Fails unless exactly the known failures that aot_eager shares are left."""
    case = case.counted(device)
    result = judge(case, device)
    singles = {single.key for single in case.singles()}
    known = {text.partition(":")[0] for text in result.shared}
    expected = {key for key in singles if key in KNOWN_MODULES or moves_counters(key, device)}
    assert not result.ours
    assert known == expected, result.shared or "passes now: remove it from opinfo_known.py"
    counted = result.passed + result.raised + len(known) + len(result.not_judged)
    assert counted == result.samples
