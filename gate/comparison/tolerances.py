"""Find what each tolerance decides, and derive tolerances from few runs.

From n runs, mean +- k(n) s contains 95 % of all runs with the given confidence when runs scatter
normally (W. G. Howe, Two-sided tolerance limits for normal populations, JASA 64, 1969). A gate
compares two runs, each with its own noise. The smallest meaningful difference is therefore k(n) s
sqrt(2), at the step where s is largest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal
from itertools import chain
from statistics import NormalDist

from gate.comparison.differences import LeastChange, ToleranceUse
from gate.comparison.metric_differences import (
    FRACTION_BITS,
    last_step,
    tolerance_at,
    tolerances_for,
)
from gate.evidence.run_evidence import MetricSeries, RunEvidence
from gate.settings.levels import Derivation, Improvement, Tolerance

COVERAGE = 0.95
CONFIDENCE = 0.95
SIGNIFICANT_DIGITS = 2
# The significant digits with which factor and spread are written down.
WRITTEN_DIGITS = 4
# A factor from a different table may be rounded differently; Howe's own is an approximation.
FACTOR_SLACK = 0.01


def tolerance_factor(runs: int, confidence: float = CONFIDENCE) -> float:
    """Return k(n), two-sided, for 95 % of runs; n is at least 2, the confidence above one half."""
    freedom = runs - 1
    normal = NormalDist().inv_cdf((1 + COVERAGE) / 2)
    # The lower quantile, because the true deviation may be larger than the observed one.
    low = chi_square_quantile(1 - confidence, freedom)
    return normal * math.sqrt(freedom * (1 + 1 / runs) / low)


def chi_square_quantile(share: float, freedom: int) -> float:
    """Return the value that a chi-square variable stays below with this probability, by bisection.

    For probabilities up to one half only: there the quantile is below the mean, which is `freedom`.
    """
    low, high = 0.0, float(freedom)
    # Each round halves the interval, so 200 rounds get far below a rounding error.
    for _ in range(200):
        middle = (low + high) / 2
        if _chi_square_share(middle, freedom) < share:
            low = middle
        else:
            high = middle
    return high


def _chi_square_share(value: float, freedom: int) -> float:
    """Return the distribution function, a regularised incomplete gamma function, by power series.

    Source: NIST Digital Library of Mathematical Functions, 8.7.1.
    """
    half, x = freedom / 2, value / 2
    term = math.exp(half * math.log(x) - x - math.lgamma(half + 1))
    total, count = term, 0
    # Below half a unit in the last place of the sum, further terms add nothing.
    while term > total * 1e-16:
        count += 1
        term *= x / (half + count)
        total += term
    return total


def rounded_up(value: float, digits: int = SIGNIFICANT_DIGITS) -> float:
    """Return the next number with `digits` significant digits that is not smaller; 0 stays 0."""
    if value == 0:
        return 0.0
    # Use decimals: the power of ten for the smallest floats is not representable as a float.
    exact = Decimal(value)
    place = exact.adjusted() - digits + 1
    units = int(exact.scaleb(-place).to_integral_value(ROUND_CEILING))
    # Go through text, so that the number is the one that a person would type.
    rounded = float(f"{units}e{place}")
    return rounded if rounded >= value else float(f"{units + 1}e{place}")


def smallest_difference(factor: float, spread: float) -> float:
    """Return k(n) s sqrt(2), in the unit of `spread`: the variances of two runs add up."""
    return factor * math.sqrt(2) * spread


def derive(runs: int, spread: float, confidence: float) -> tuple[float, Derivation]:
    """Return the limit for a measured standard deviation, and its derivation, both as written."""
    derived = Derivation(
        runs=runs,
        factor=rounded_up(tolerance_factor(runs, confidence), WRITTEN_DIGITS),
        spread=rounded_up(spread, WRITTEN_DIGITS),
        confidence=confidence,
    )
    return _limit(derived), derived


def _limit(derived: Derivation) -> float:
    # Use the numbers as written, so that anybody can reproduce the limit.
    return rounded_up(smallest_difference(derived.factor, derived.spread))


def misfit(rule: Tolerance) -> str:
    """Return why a tolerance differs from what it was derived to be, or ""."""
    derived = rule.derived
    if derived is None:
        return ""
    factor = tolerance_factor(derived.runs, derived.confidence)
    if not math.isclose(derived.factor, factor, rel_tol=FACTOR_SLACK):
        return (
            f"the factor is {derived.factor:g}, but {derived.runs} runs at a confidence of "
            f"{derived.confidence:g} give {factor:.4g}"
        )
    if rule.absolute != _limit(derived):
        return (
            f"absolute is {rule.absolute!r}, but {derived.factor:g} x sqrt(2) x "
            f"{derived.spread:g} gives {_limit(derived)!r}"
        )
    # A tolerance is met if any of its limits is, so a further limit widens it.
    if rule.relative or rule.ulp > 1:
        return "relative or ulp in addition to the derived limit widens it"
    return ""


# `Pair` is a step and its number. `Change` is a share of the number, the absolute change, the
# metric's name and the step.
Pair = tuple[int, float]
Change = tuple[float, float, str, int]


def tolerance_uses(run: RunEvidence, tolerances: tuple[Tolerance, ...]) -> tuple[ToleranceUse, ...]:
    """Return one row per tolerance, in the order of the settings."""
    decided: list[list[tuple[MetricSeries, list[Pair]]]] = [[] for _ in tolerances]
    # Look at each point only once, however many tolerances there are: the training chooses the
    # number of points.
    for series in run.metrics:
        for place, points in _by_rule(series, tolerances).items():
            decided[place].append((series, points))
    return tuple(_use(run, rule, points) for rule, points in zip(tolerances, decided, strict=True))


def _by_rule(series: MetricSeries, tolerances: tuple[Tolerance, ...]) -> dict[int, list[Pair]]:
    """Return the points of a metric by the position of the tolerance that decides them."""
    rules = tolerances_for(series.name, tolerances)
    places = {id(rule): place for place, rule in enumerate(tolerances)}
    by_rule: dict[int, list[Pair]] = {}
    last = last_step(series)
    for step, value in series.points.pairs() if rules else ():
        rule = tolerance_at(step, last, rules)
        if rule is not None:
            by_rule.setdefault(places[id(rule)], []).append((step, value))
    return by_rule


def _use(
    run: RunEvidence, rule: Tolerance, decided: list[tuple[MetricSeries, list[Pair]]]
) -> ToleranceUse:
    named = [series for series in run.metrics if tolerances_for(series.name, (rule,))]
    covers = any(
        rule.decides(step, last_step(series)) for series in named for step in series.points.steps
    )
    changes = chain.from_iterable(_least(series, points, rule) for series, points in decided)
    return ToleranceUse(
        pattern=rule.metric,
        steps=rule.steps,
        limits=tuple(_limits(rule)),
        one_sided=rule.improvement is Improvement.PASS,
        derived=rule.derived,
        metrics=tuple(series.name for series, _ in decided),
        shadowed=covers and not decided,
        named=bool(named),
        least=_change(min(changes, key=_share, default=None)),
        misfit=misfit(rule),
    )


def _least(series: MetricSeries, decided: list[Pair], rule: Tolerance) -> Iterator[Change]:
    """Yield how far each point that the rule decides may move."""
    fraction_bits, _ = FRACTION_BITS[series.dtype]
    for step, value in decided:
        size = abs(value)
        if size:
            # A tolerance is met if any one limit is, so its widest limit counts. A unit in the last
            # place is at most this share of a value.
            share = max(rule.absolute / size, rule.relative, rule.ulp * 2.0**-fraction_bits)
            yield share, share * size, series.name, step


def _share(change: Change) -> float:
    return change[0]


def _change(change: Change | None) -> LeastChange | None:
    if change is None:
        return None
    share, absolute, metric, step = change
    return LeastChange(metric=metric, step=step, share=share, absolute=absolute)


def _limits(rule: Tolerance) -> Iterator[str]:
    if rule.absolute:
        yield f"absolute {rule.absolute:g}"
    if rule.relative:
        yield f"relative {rule.relative * 100:.3g} %"
    if rule.ulp:
        yield f"{rule.ulp:,} ULP"
