"""Equivalence, rankings and spread of few values, by Student's t distribution.

Equivalence: D. J. Schuirmann, A comparison of the two one-sided tests procedure and the power
approach for assessing the equivalence of average bioavailability, J. Pharmacokinet. Biopharm. 15,
1987. Two means are equivalent at alpha when the 1 - 2 alpha interval of their difference is inside
the margin. The variances need not be equal: the degrees of freedom are those of B. L. Welch, The
generalization of Student's problem when several different population variances are involved,
Biometrika 34, 1947. If several metrics must all be equivalent, each may be tested at alpha: the
whole then holds at alpha too (R. L. Berger, J. C. Hsu, Statistical Science 11, 1996).

Head and baseline train the same seeds. If that makes their results alike, the true spread of the
difference is smaller than assumed here, and the test errs towards `undecided`.

Ranking: neighbours that the baseline separates at alpha have to be separated again, in the same
order. Two variants that it does not separate may come in either order. (Student, The probable error
of a mean, Biometrika 6, 1908.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import combinations, pairwise
from statistics import fmean, mean, stdev
from typing import Annotated, Final

from pydantic import Field

from gate.comparison.level_records import (
    ALPHA,
    Agreement,
    Equivalence,
    PairState,
    RankedPair,
    RankedVariant,
    Sample,
    TestedDifference,
)
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.step_work import SeedResult
from gate.settings.levels import LEAST_SEEDS, Direction, Margin
from gate.text.document import Document

Finite = Annotated[float, Field(allow_inf_nan=False)]


class SpreadPlace(StrEnum):
    """The source of a spread's values: recorded seeds, recorded runs, or seeds trained here."""

    SEEDS_THEN = "seeds-then"
    RUNS_THEN = "runs-then"
    SEEDS_HERE = "seeds-here"


class MetricSpread(Document):
    """A metric's last value against a 95 % prediction interval.

    `value` is judged. It comes from the other side than the `values` observations from which
    `mean`, `deviation` (of the sample), `low` and `high` are computed.
    """

    metric: str
    place: SpreadPlace
    value: Finite
    values: int = Field(ge=2)
    mean: Finite
    deviation: Finite
    low: Finite
    high: Finite
    inside: bool


# `PRECISION` is above the rounding of float64 and far below any digit that a reader sees.
PRECISION = 1e-15
TINY = 1e-300
MAX_TERMS = 10_000


def upper_share(t: float, freedom: float) -> float:
    """Return the probability that a t variable with `freedom` degrees of freedom exceeds `t`.

    Source: NIST Digital Library of Mathematical Functions, 8.17; Abramowitz and Stegun, 26.7.1.
    """
    share = 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom, t * t)
    return share if t >= 0 else 1 - share


def t_quantile(share: float, freedom: float) -> float:
    """Return the value that a t variable stays below with probability `share`, by bisection.

    `share` is at least one half and less than one.
    """
    low, high = 0.0, 1.0
    # With one degree of freedom (Cauchy's distribution), no fixed bound contains the quantiles.
    while 1 - upper_share(high, freedom) < share:
        low, high = high, 2 * high
    # Each round halves the interval, so 100 rounds reach the rounding error of float64.
    for _ in range(100):
        middle = (low + high) / 2
        if 1 - upper_share(middle, freedom) < share:
            low = middle
        else:
            high = middle
    return high


def _incomplete_beta(a: float, b: float, freedom: float, square: float) -> float:
    """Return I_x(a, b) at x = freedom / (freedom + square).

    The two parts are arguments because 1 - x would lose the digits of a small square.
    """
    x, rest = freedom / (freedom + square), square / (freedom + square)
    # The square is so small or so large that one of the parts underflows float64.
    if not rest:
        return 1.0
    if math.isinf(square) or not x:
        return 0.0
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    )
    front = math.exp(log_front)
    # The fraction converges fast only on this side of the mean (DLMF 8.17.22). Beyond it, use
    # I_x(a, b) = 1 - I_1-x(b, a) (DLMF 8.17.4).
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, rest) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of DLMF 8.17.22, by the modified Lentz method (DLMF 3.10)."""
    c, d = 1.0, _kept_off_zero(1 - (a + b) * x / (a + 1))
    d = 1 / d
    value = d
    for m in range(1, MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _kept_off_zero(1 + term * d)
            c = _kept_off_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < PRECISION:
            break
    return value


def _kept_off_zero(value: float) -> float:
    return value if abs(value) > TINY else TINY


MOST_SEEDS_NAMED = 1000


def equivalence(
    metric: str, baseline: Sequence[float], head: Sequence[float], margin: Margin
) -> Equivalence:
    """Test whether the head's mean is equivalent to the baseline's mean within the margin."""
    if min(len(baseline), len(head)) < LEAST_SEEDS:
        return _untested(metric, f"fewer than {LEAST_SEEDS} seeds")
    if not all(map(math.isfinite, (*baseline, *head))):
        return _untested(metric, "a value is NaN or infinite")
    expected, observed = sample_of(baseline), sample_of(head)
    if expected is None or observed is None:
        return _untested(metric, "the values are too large to distinguish")
    if not _standard_error(expected, observed):
        # Without any spread, nothing shows how far the means may be off.
        reason = "does not vary with the seed; judge it by policy.thresholds"
        return _untested(metric, reason, expected, observed)
    tested = _tested(expected, observed, margin.around(expected.mean))
    if tested is None:
        return _untested(
            metric, "the relative margin is zero, because the mean is zero", expected, observed
        )
    return Equivalence(
        metric=metric,
        agreement=_agreement(tested),
        baseline=expected,
        head=observed,
        tested=tested,
    )


def sample_of(values: Sequence[float]) -> Sample | None:
    """Return mean and standard deviation; None where float64 cannot hold them."""
    try:
        # Both functions add exact fractions, so neither the order of seeds nor a large mean costs a
        # bit.
        sample = Sample(seeds=len(values), mean=mean(values), deviation=stdev(values))
    except (OverflowError, ValueError):
        return None
    return sample


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
    # The 1 - 2 alpha interval stands for two one-sided tests at alpha each (Schuirmann).
    reach = t_quantile(1 - ALPHA, freedom) * error
    numbers = (difference - reach, difference + reach, margin)
    if not margin or not all(map(math.isfinite, numbers)):
        return None
    low, high, _ = numbers
    # The larger of the two one-sided p values, which is for the nearer bound.
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


def _standard_error(left: Sample, right: Sample) -> float:
    # hypot avoids squares, which overflow float64 for a large loss.
    return math.hypot(
        left.deviation / math.sqrt(left.seeds), right.deviation / math.sqrt(right.seeds)
    )


def welch_freedom(baseline: Sample, head: Sample) -> float:
    """Welch's degrees of freedom (the Welch-Satterthwaite equation)."""
    # Shares of the variance avoid the fourth powers of the usual form, which overflow for a large
    # loss.
    share = (baseline.deviation / math.sqrt(baseline.seeds) / _standard_error(baseline, head)) ** 2
    return 1 / (share**2 / (baseline.seeds - 1) + (1 - share) ** 2 / (head.seeds - 1))


def _seeds_needed(baseline: Sample, head: Sample, room: float) -> int | None:
    """Return the least number of seeds on each side that would decide, None above the maximum.

    It assumes that means and deviations stay as they are.
    """

    def decides(seeds: int) -> bool:
        sides = [side.model_copy(update={"seeds": seeds}) for side in (baseline, head)]
        return t_quantile(1 - ALPHA, welch_freedom(*sides)) * _standard_error(*sides) < room

    if not decides(MOST_SEEDS_NAMED):
        return None
    low, high = LEAST_SEEDS - 1, MOST_SEEDS_NAMED
    # More seeds never widen the interval, so bisection works.
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


# Maps a variant to a metric's values by seed.
Values = Mapping[str, Mapping[int, float]]
Ranked = tuple[tuple[RankedVariant, ...], tuple[RankedPair, ...], str]


def ranking(baseline: Values, head: Values, better_is: Direction) -> Ranked:
    """Return the variants in the baseline's order, its neighbouring pairs, and a problem or "".

    The problem says why the ranking does not hold. Every variant must have a finite value for at
    least three seeds on each side.
    """
    sign = 1.0 if better_is is Direction.HIGHER else -1.0
    samples = {
        name: (sample_of([*baseline[name].values()]), sample_of([*head[name].values()]))
        for name in baseline
    }
    variants = tuple(
        RankedVariant(name=name, baseline=expected, head=observed)
        for name, (expected, observed) in samples.items()
        if expected is not None and observed is not None
    )
    if len(variants) < len(baseline):
        return (), (), "the values are too large to distinguish"
    ordered = tuple(
        sorted(variants, key=lambda comparison: (-sign * comparison.baseline.mean, comparison.name))
    )
    pairs = tuple(_pair(left, right, (baseline, head), sign) for left, right in pairwise(ordered))
    return ordered, pairs, _problem(ordered, pairs, baseline, sign)


def _pair(
    better: RankedVariant, worse: RankedVariant, sides: tuple[Values, Values], sign: float
) -> RankedPair:
    before, now = (leads(side[better.name], side[worse.name], sign) for side in sides)
    if before >= ALPHA:
        state = PairState.OPEN
    elif sign * (better.head.mean - worse.head.mean) <= 0:
        state = PairState.SWAPPED
    else:
        state = PairState.HELD if now < ALPHA else PairState.NOT_SEPARATED
    return RankedPair(
        better=better.name, worse=worse.name, state=state, baseline_p=before, head_p=now
    )


def leads(better: Mapping[int, float], worse: Mapping[int, float], sign: float) -> float:
    """Return the p value of a one-sided paired t test that the first variant is better.

    Pairs are over the seeds that both have. Differences that are all equal and positive leave
    nothing to chance: the result is 0.
    """
    common = sorted(better.keys() & worse.keys())
    differences = [sign * (better[seed] - worse[seed]) for seed in common]
    if len(differences) < LEAST_SEEDS or not all(map(math.isfinite, differences)):
        return 1.0
    sample = sample_of(differences)
    if sample is None:
        return 1.0
    if not sample.deviation:
        return 0.0 if sample.mean > 0 else 1.0
    return upper_share(sample.mean / sample.deviation * math.sqrt(sample.seeds), sample.seeds - 1)


def _problem(
    ordered: tuple[RankedVariant, ...],
    pairs: tuple[RankedPair, ...],
    baseline: Values,
    sign: float,
) -> str:
    if all(pair.state is PairState.OPEN for pair in pairs):
        return "the baseline's ranking separates no two neighbours, so there is no order to keep"
    # All pairs, because a leader must not fall behind the last variant past an open pair.
    for left, right in combinations(ordered, 2):
        behind = sign * (left.head.mean - right.head.mean) <= 0
        if behind and leads(baseline[left.name], baseline[right.name], sign) < ALPHA:
            return f"{right.name} is no longer behind {left.name}"
    weak = next((pair for pair in pairs if pair.state is PairState.NOT_SEPARATED), None)
    if weak is None:
        return ""
    return (
        f"{weak.better} leads {weak.worse}, but these seeds do not show it (p = {weak.head_p:.2g}, "
        f"the baseline's is {weak.baseline_p:.2g})"
    )


SHARE: Final = 0.95
# With two values the interval is so wide that almost everything is inside.
LEAST_VALUES: Final = 3


def spread_of(
    metric: str, values: Sequence[float], value: float, place: SpreadPlace
) -> MetricSpread | None:
    """Return the prediction interval of `values` for one more observation, tested on `value`.

    mean ± t(0.975, n - 1) · s · √(1 + 1/n): G. J. Hahn and W. Q. Meeker, Statistical Intervals
    (1991), 4.7. None for fewer than three values, or where one is not finite.
    """
    count = len(values)
    if count < LEAST_VALUES or not all(map(math.isfinite, (*values, value))):
        return None
    mean, deviation = fmean(values), stdev(values)
    half = t_quantile((1 + SHARE) / 2, count - 1) * deviation * math.sqrt(1 + 1 / count)
    # If squares overflow, there is no interval.
    if not math.isfinite(half):
        return None
    return MetricSpread(
        metric=metric,
        place=place,
        value=value,
        values=count,
        mean=mean,
        deviation=deviation,
        low=mean - half,
        high=mean + half,
        inside=mean - half <= value <= mean + half,
    )


def last_values(run: RunEvidence) -> dict[str, float]:
    """Return the last value of each metric of a run."""
    return {series.name: series.points[-1].value for series in run.metrics if series.points}


def values_of_seeds(results: Sequence[SeedResult], metric: str) -> tuple[float, ...]:
    """Return a metric's last values over the seeds of the training itself, without variants."""
    values = (result.value(metric) for result in results if not result.variant)
    return tuple(point.value for point in values if point is not None)


def spreads(
    judged: dict[str, float], values: dict[str, tuple[float, ...]], place: SpreadPlace
) -> tuple[MetricSpread, ...]:
    """Return a spread for each judged metric with enough values, sorted by name."""
    samples = (
        spread_of(metric, values.get(metric, ()), value, place)
        for metric, value in sorted(judged.items())
    )
    return tuple(sample for sample in samples if sample is not None)
