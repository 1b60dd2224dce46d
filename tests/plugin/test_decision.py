"""The time rule: exact error rates, not simulated ones."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_fusealias.decision import (
    ALPHA,
    FLOOR_S,
    FLOOR_SHARE,
    LOOKS,
    Interval,
    decide,
    interval,
    median,
    order_statistic,
    threshold,
)
from pytest_fusealias.outcome import Outcome


def test_looks_spend_alpha_once():
    assert sum(alpha for _, alpha in LOOKS) <= ALPHA + 1e-12
    assert all(order_statistic(quads, alpha) > 0 for quads, alpha in LOOKS)


@pytest.mark.parametrize("count", range(1, 13))
@pytest.mark.parametrize("alpha", [0.001, 0.003, 0.05, 0.2])
def test_order_statistic_is_the_sign_test(count, alpha):
    """Over all 2**count ways in which samples fall on either side of the median."""
    rank = order_statistic(count, alpha)
    above = [sum(sides) for sides in product((0, 1), repeat=count)]
    exceeds = [sum(count - a < k for a in above) / len(above) for k in range(1, count + 1)]
    allowed = [k for k in range(1, count + 1) if exceeds[k - 1] <= alpha]
    assert rank == (max(allowed) if allowed else 0)


@pytest.mark.parametrize(("quads", "alpha"), LOOKS)
def test_false_verdicts_at_the_limit_are_rarer_than_alpha(quads, alpha):
    """A function exactly at the threshold fails where the rank-th smallest lies above it: a binomial tail."""
    rank = order_statistic(quads, alpha)
    assert sum(math.comb(quads, k) for k in range(rank)) / 2**quads <= alpha


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=80), st.sampled_from([0.001, 0.003, 0.1]))
def test_interval_holds_the_median_and_mirrors(values, alpha):
    found = interval(values, alpha)
    assert found.low <= found.ratio <= found.high
    mirrored = interval([-v for v in values], alpha)
    assert mirrored.low == pytest.approx(1 / found.high if math.isfinite(found.high) else 0.0)
    assert found.ratio == pytest.approx(math.exp(median(values)))


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (Interval(1.2, 1.1, 1.3), Outcome.FAIL),
        (Interval(1.0, 0.9, 1.04), Outcome.PASS),
        (Interval(1.0, 0.9, 1.05), Outcome.PASS),
        (Interval(1.1, 1.05, 1.2), Outcome.NOT_MEASURED),
        (Interval(1.0, 0.0, math.inf), Outcome.NOT_MEASURED),
    ],
)
def test_three_outcomes(found, outcome):
    assert decide(found, 1.05) is outcome


def test_floor_is_the_larger_of_share_and_time():
    assert threshold(1.05, 1.0) == pytest.approx(1.05 + FLOOR_SHARE)
    assert threshold(1.05, 1e-6) == pytest.approx(1.05 + FLOOR_S / 1e-6)


def test_too_few_quads_decide_nothing():
    assert decide(interval([1.0] * 5, 0.001), 1.05) is Outcome.NOT_MEASURED
    with pytest.raises(ValueError, match="no values"):
        median([])
