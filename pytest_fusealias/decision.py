"""The time rule: a sign test on paired log-ratios, at fixed looks.

The unit is a quad: eager and compiled run in the order ABBA or BAAB, and the mean log-ratio of its two pairs is taken. The
bounds of the median of quads are order statistics, which hold for any distribution (the sign test). Each look spends its
own share of alpha, so that looking several times keeps the promise: at most ALPHA false verdicts on either side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_fusealias.outcome import Outcome

# Quads at which the rule may decide, and the share of alpha that each look spends.
LOOKS = ((10, 0.001), (30, 0.003), (60, 0.003), (120, 0.003))
ALPHA = 0.01
# Excess over the limit that nobody acts on: the larger one counts.
FLOOR_S = 0.5e-6
FLOOR_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio of compiled to eager time: the median, and its one-sided bounds."""

    ratio: float
    low: float
    high: float


def threshold(limit: float, eager_s: float) -> float:
    """Returns the ratio above which a limit counts as exceeded: the limit and the floor, as a share of eager's time."""
    return limit + max(FLOOR_SHARE, FLOOR_S / eager_s)


def interval(log_ratios: list[float], alpha: float) -> Interval:
    """Returns the median ratio and its bounds, each at level `alpha`; infinite where there are too few quads."""
    ordered = sorted(log_ratios)
    rank = order_statistic(len(ordered), alpha)
    low, high = (ordered[rank - 1], ordered[-rank]) if rank else (-math.inf, math.inf)
    return Interval(math.exp(median(ordered)), math.exp(low), math.exp(high))


def decide(found: Interval, bound: float) -> Outcome:
    """FAIL where the whole interval lies above the bound, PASS where none of it does, else NOT-MEASURED."""
    if found.low > bound:
        return Outcome.FAIL
    return Outcome.PASS if found.high <= bound else Outcome.NOT_MEASURED


def order_statistic(count: int, alpha: float) -> int:
    """Returns the largest rank k for which the k-th smallest of `count` exceeds the median with probability <= alpha.

    0 where even the smallest does so more often.
    """
    below, rank = 0.0, 0
    while rank < count:
        below += math.comb(count, rank) / 2**count
        if below > alpha:
            break
        rank += 1
    return rank


def median(values: list[float]) -> float:
    """Returns the median; raises ValueError where there is none."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
