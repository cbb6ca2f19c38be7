"""Equivalence of two means by two one-sided tests (TOST).

D. J. Schuirmann, A comparison of the two one-sided tests procedure and the power approach for
assessing the equivalence of average bioavailability, J. Pharmacokinet. Biopharm. 15, 1987: two
means are equivalent at alpha when the 1 - 2 alpha interval of their difference lies inside the
margin. The variances need not be equal: the degrees of freedom are those of B. L. Welch, The
generalization of Student's problem when several different population variances are involved,
Biometrika 34, 1947. Where several metrics must all be equivalent, each may be tested at alpha: the
whole then holds at alpha too (R. L. Berger, J. C. Hsu, Statistical Science 11, 1996).

Head and baseline train the same seeds. Where that makes their results alike, the spread of the
difference is smaller than it is taken for here: the test then errs on the side of `undecided`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev

from gate.comparison.level_records import ALPHA, Agreement, Equivalence, Sample, TestedDifference
from gate.comparison.student import quantile, upper_share
from gate.settings.levels import LEAST_SEEDS, Margin

MOST_SEEDS_NAMED = 1000


def equivalence(
    metric: str, baseline: Sequence[float], head: Sequence[float], margin: Margin
) -> Equivalence:
    """Whether the mean of the head's values is equivalent to the mean of the baseline's."""
    if min(len(baseline), len(head)) < LEAST_SEEDS:
        return _untested(metric, f"fewer than {LEAST_SEEDS} seeds")
    if not all(map(math.isfinite, (*baseline, *head))):
        return _untested(metric, "a value is NaN or infinite")
    expected, observed = sample_of(baseline), sample_of(head)
    if expected is None or observed is None:
        return _untested(metric, "the values are too large to be told apart")
    if not _standard_error(expected, observed):
        # no spread was seen, so nothing says how far the means may be off
        reason = "does not vary with the seed; judge it by policy.thresholds"
        return _untested(metric, reason, expected, observed)
    tested = _tested(expected, observed, margin.around(expected.mean))
    if tested is None:
        return _untested(metric, "the margin is none, as its mean is zero", expected, observed)
    return Equivalence(
        metric=metric,
        agreement=_agreement(tested),
        baseline=expected,
        head=observed,
        tested=tested,
    )


def sample_of(values: Sequence[float]) -> Sample | None:
    """Mean and standard deviation; None where they are no float64."""
    try:
        found = Sample(seeds=len(values), mean=mean(values), deviation=stdev(values))
    except (OverflowError, ValueError):
        return None
    return found


def _untested(
    metric: str, reason: str, baseline: Sample | None = None, head: Sample | None = None
) -> Equivalence:
    return Equivalence(
        metric=metric,
        agreement=Agreement.UNDECIDED,
        reason=reason,
        baseline=baseline,
        head=head,
    )


def _tested(baseline: Sample, head: Sample, margin: float) -> TestedDifference | None:
    difference = head.mean - baseline.mean
    error = _standard_error(baseline, head)
    freedom = welch_freedom(baseline, head)
    reach = quantile(1 - ALPHA, freedom) * error
    numbers = (difference - reach, difference + reach, margin)
    if not margin or not all(map(math.isfinite, numbers)):
        return None
    low, high, _ = numbers
    # the larger of the two one-sided p: of the bound that the difference is nearer to
    p = upper_share((margin - abs(difference)) / error, freedom)
    tested = TestedDifference(
        difference=difference,
        margin=margin,
        low=low,
        high=high,
        shown=max(abs(low), abs(high)),
        freedom=freedom,
        p=p,
    )
    if _agreement(tested) is not Agreement.UNDECIDED:
        return tested
    needed = _seeds_needed(baseline, head, abs(margin - abs(difference)))
    return tested.model_copy(update={"seeds_needed": needed})


def _agreement(tested: TestedDifference) -> Agreement:
    if tested.shown < tested.margin:
        return Agreement.EQUIVALENT
    if tested.low > tested.margin or tested.high < -tested.margin:
        return Agreement.DIFFERENT
    return Agreement.UNDECIDED


def _standard_error(one: Sample, other: Sample) -> float:
    # by hypot, since the square of a large loss is no float64
    return math.hypot(
        one.deviation / math.sqrt(one.seeds), other.deviation / math.sqrt(other.seeds)
    )


def welch_freedom(one: Sample, other: Sample) -> float:
    """Welch's degrees of freedom (the Welch-Satterthwaite equation)."""
    share = (one.deviation / math.sqrt(one.seeds) / _standard_error(one, other)) ** 2
    return 1 / (share**2 / (one.seeds - 1) + (1 - share) ** 2 / (other.seeds - 1))


def _seeds_needed(baseline: Sample, head: Sample, room: float) -> int | None:
    """The least number on each side whose interval, as wide as it is now, keeps off the margin."""

    def decides(seeds: int) -> bool:
        sides = [side.model_copy(update={"seeds": seeds}) for side in (baseline, head)]
        return quantile(1 - ALPHA, welch_freedom(*sides)) * _standard_error(*sides) < room

    if not decides(MOST_SEEDS_NAMED):
        return None
    low, high = LEAST_SEEDS - 1, MOST_SEEDS_NAMED
    # more seeds never make the interval wider
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high
