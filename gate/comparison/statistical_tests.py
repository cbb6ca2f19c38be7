"""Equivalence, rankings and spread of few values, by Student's t distribution.

D. J. Schuirmann, A comparison of the two one-sided tests procedure and the power approach for
assessing the equivalence of average bioavailability, J. Pharmacokinet. Biopharm. 15, 1987: two
means are equivalent at alpha when the 1 - 2 alpha interval of their difference lies inside the
margin. The variances need not be equal: the degrees of freedom are those of B. L. Welch, The
generalization of Student's problem when several different population variances are involved,
Biometrika 34, 1947. Where several metrics must all be equivalent, each may be tested at alpha: the
whole then holds at alpha too (R. L. Berger, J. C. Hsu, Statistical Science 11, 1996).

Head and baseline train the same seeds. Where that makes their results alike, the spread of the
difference is smaller than it is taken for here: the test then errs on the side of `undecided`.

Neighbours of the baseline's ranking that it separates at alpha have to be separated again, in the
same order. Two variants that it does not separate may come either way. (Student, The probable error
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
    """Whose values make the spread: seeds of the package, runs of it, or seeds trained here."""

    SEEDS_THEN = "seeds-then"
    RUNS_THEN = "runs-then"
    SEEDS_HERE = "seeds-here"


class MetricSpread(Document):
    """A metric's last value against a prediction interval of 95 %.

    `value` is the one that is judged, of the other side than the `values` (their number) that make
    mean, standard deviation (of the sample), `low` and `high`.
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


# far above the rounding of float64, far below any digit that a reader sees
PRECISION = 1e-15
TINY = 1e-300
MAX_TERMS = 10_000


def upper_share(t: float, freedom: float) -> float:
    """The probability that a t variable exceeds `t`.

    Source: NIST Digital Library of Mathematical Functions, 8.17; Abramowitz and Stegun, 26.7.1.
    """
    share = 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom, t * t)
    return share if t >= 0 else 1 - share


def t_quantile(share: float, freedom: float) -> float:
    """The value that a t variable stays below with this probability, by bisection.

    For probabilities from one half up to, and without, one.
    """
    low, high = 0.0, 1.0
    # of one degree of freedom (Cauchy's distribution) no fixed bound holds the quantiles
    while 1 - upper_share(high, freedom) < share:
        low, high = high, 2 * high
    # each round halves the interval: after 100 it is below a rounding error of float64
    for _ in range(100):
        middle = (low + high) / 2
        if 1 - upper_share(middle, freedom) < share:
            low = middle
        else:
            high = middle
    return high


def _incomplete_beta(a: float, b: float, freedom: float, square: float) -> float:
    """I_x(a, b) at x = freedom / (freedom + square), which is handed in as its two parts.

    1 - x of a small square would lose its digits.
    """
    x, rest = freedom / (freedom + square), square / (freedom + square)
    # a square so small, or so large, that one of the parts is no float64 any more
    if not rest:
        return 1.0
    if math.isinf(square) or not x:
        return 0.0
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    )
    front = math.exp(log_front)
    # the fraction converges fast on this side of the mean alone (DLMF 8.17.22); beyond it the rest
    # is taken from one: I_x(a, b) = 1 - I_1-x(b, a) (DLMF 8.17.4)
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
    """Whether the mean of the head's values is equivalent to the mean of the baseline's."""
    if min(len(baseline), len(head)) < LEAST_SEEDS:
        return _untested(metric, f"fewer than {LEAST_SEEDS} seeds")
    if not all(map(math.isfinite, (*baseline, *head))):
        return _untested(metric, "a value is NaN or infinite")
    expected, observed = sample_of(baseline), sample_of(head)
    if expected is None or observed is None:
        return _untested(metric, "the values are too large to distinguish")
    if not _standard_error(expected, observed):
        # no spread was seen, so nothing says how far the means may be off
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
    """Mean and standard deviation; None where they are no float64."""
    try:
        # both add exact fractions: neither the order of the seeds nor a large mean costs a bit
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
    # the 1 - 2 alpha interval: two one-sided tests, each of them at alpha (Schuirmann)
    reach = t_quantile(1 - ALPHA, freedom) * error
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


def _standard_error(left: Sample, right: Sample) -> float:
    # by hypot, since the square of a large loss is no float64
    return math.hypot(
        left.deviation / math.sqrt(left.seeds), right.deviation / math.sqrt(right.seeds)
    )


def welch_freedom(baseline: Sample, head: Sample) -> float:
    """Welch's degrees of freedom (the Welch-Satterthwaite equation)."""
    # by shares of the variance: the fourth powers of the usual form are no float64 for a large loss
    share = (baseline.deviation / math.sqrt(baseline.seeds) / _standard_error(baseline, head)) ** 2
    return 1 / (share**2 / (baseline.seeds - 1) + (1 - share) ** 2 / (head.seeds - 1))


def _seeds_needed(baseline: Sample, head: Sample, room: float) -> int | None:
    """The least number on each side whose interval, as wide as it is now, keeps off the margin."""

    def decides(seeds: int) -> bool:
        sides = [side.model_copy(update={"seeds": seeds}) for side in (baseline, head)]
        return t_quantile(1 - ALPHA, welch_freedom(*sides)) * _standard_error(*sides) < room

    if not decides(MOST_SEEDS_NAMED):
        return None
    low, high = LEAST_SEEDS - 1, MOST_SEEDS_NAMED
    # more seeds never make the interval wider
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


# a metric by seed, of each variant
Values = Mapping[str, Mapping[int, float]]
Ranked = tuple[tuple[RankedVariant, ...], tuple[RankedPair, ...], str]


def ranking(baseline: Values, head: Values, better_is: Direction) -> Ranked:
    """Variants in the baseline's order, its neighbouring pairs, and why the ranking does not hold.

    The last is empty where it holds. Every variant has a finite value for at least three seeds on
    each side.
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
    """The p of a one-sided t test, paired over the seeds that both have, that the first is better.

    Differences that are all the same and not zero have none of their spread left to chance: 0.
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
    # not only neighbours: a leader must not fall behind the last past a pair that is open
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
# of two values the interval is so wide that almost anything lies inside
LEAST_VALUES: Final = 3


def spread_of(
    metric: str, values: Sequence[float], value: float, place: SpreadPlace
) -> MetricSpread | None:
    """The prediction interval of `values` for one more observation, and whether `value` is inside.

    mean ± t(0.975, n - 1) · s · √(1 + 1/n): G. J. Hahn and W. Q. Meeker, Statistical Intervals
    (1991), 4.7. None for fewer than three values, or where one is not finite.
    """
    count = len(values)
    if count < LEAST_VALUES or not all(map(math.isfinite, (*values, value))):
        return None
    mean, deviation = fmean(values), stdev(values)
    half = t_quantile((1 + SHARE) / 2, count - 1) * deviation * math.sqrt(1 + 1 / count)
    # of values whose squares overflow there is no interval
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
    """The last value of each metric of a run."""
    return {series.name: series.points[-1].value for series in run.metrics if series.points}


def values_of_seeds(results: Sequence[SeedResult], metric: str) -> tuple[float, ...]:
    """The last values of a metric over the seeds of the training itself, no variant's."""
    values = (result.value(metric) for result in results if not result.variant)
    return tuple(point.value for point in values if point is not None)


def spreads(
    judged: dict[str, float], values: dict[str, tuple[float, ...]], place: SpreadPlace
) -> tuple[MetricSpread, ...]:
    """One for each metric that is judged and has enough values, in the order of their names."""
    samples = (
        spread_of(metric, values.get(metric, ()), value, place)
        for metric, value in sorted(judged.items())
    )
    return tuple(sample for sample in samples if sample is not None)
