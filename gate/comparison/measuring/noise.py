"""What reruns of the default mode say about its noise, and which differences mean anything.

From n runs, mean +- k(n) s holds 95 % of all runs with 95 % confidence when runs scatter normally
(W. G. Howe, Two-sided tolerance limits for normal populations, JASA 64, 1969). A gate compares two
runs, each with its own noise, so the smallest difference that means anything is k(n) s sqrt(2), at
the step where s is largest; never less than one unit in the last place of the metric's type.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal
from statistics import NormalDist

import numpy as np

from gate.comparison.ulp import ulp_size
from gate.records.measurement import MetricNoise
from gate.records.observed.evidence import MetricSeries, RunEvidence

COVERAGE = 0.95
CONFIDENCE = 0.95
# Beyond, a square leaves float64.
LARGEST = 1e150
SIGNIFICANT_DIGITS = 2


def tolerance_factor(runs: int) -> float:
    """k(n), two-sided, 95 % of runs with 95 % confidence; n is at least 2."""
    freedom = runs - 1
    normal = NormalDist().inv_cdf((1 + COVERAGE) / 2)
    # the lower quantile: the true deviation may be larger than the one that was seen
    low = chi_square_quantile(1 - CONFIDENCE, freedom)
    return normal * math.sqrt(freedom * (1 + 1 / runs) / low)


def chi_square_quantile(share: float, freedom: int) -> float:
    """The value that a chi-square variable stays below with this probability, by bisection.

    For probabilities up to one half: there it lies below the mean, which is `freedom`.
    """
    low, high = 0.0, float(freedom)
    # each round halves the interval: after 200 what is left of it is far below a rounding error
    for _ in range(200):
        middle = (low + high) / 2
        if _chi_square_share(middle, freedom) < share:
            low = middle
        else:
            high = middle
    return high


def _chi_square_share(value: float, freedom: int) -> float:
    """The distribution function: the regularised incomplete gamma function, by its power series.

    Source: NIST Digital Library of Mathematical Functions, 8.7.1.
    """
    half, x = freedom / 2, value / 2
    term = math.exp(half * math.log(x) - x - math.lgamma(half + 1))
    total, count = term, 0
    # below half a unit in the last place of the sum: what follows adds nothing
    while term > total * 1e-16:
        count += 1
        term *= x / (half + count)
        total += term
    return total


def undetected_share(runs: int) -> float:
    """The largest share of differing runs at which n equal ones are still a 1 in 20 chance."""
    return float(1 - (1 - CONFIDENCE) ** (1 / (runs - 1)))


def metric_noise(runs: tuple[RunEvidence, ...]) -> tuple[tuple[MetricNoise, ...], tuple[str, ...]]:
    """Each metric that all runs have, and a sentence for each that was left out."""
    by_name = [{series.name: series for series in run.metrics} for run in runs]
    found, notes = list[MetricNoise](), list[str]()
    for name in sorted(set().union(*by_name)):
        series = [metrics[name] for metrics in by_name if name in metrics]
        if len(series) < len(runs):
            notes.append(f"metric {name} is missing in {len(runs) - len(series)} run(s)")
            continue
        noise = _noise_of(tuple(series))
        if noise is None:
            notes.append(f"metric {name} has no step at which all runs gave a finite number")
        else:
            found.append(noise)
    return tuple(found), tuple(notes)


def _noise_of(series: tuple[MetricSeries, ...]) -> MetricNoise | None:
    """One metric; a step at which any run lacks a finite number is left out."""
    columns = [{point.step: point.value for point in one.points} for one in series]
    steps = [
        step
        for step in sorted(set.intersection(*(set(column) for column in columns)))
        if all(abs(column[step]) <= LARGEST for column in columns)
    ]
    if not steps:
        return None
    values = np.array([[column[step] for step in steps] for column in columns])
    gaps = values.max(axis=0) - values.min(axis=0)
    # Of equal numbers the computed mean may differ by a rounding error, and so the deviation be
    # other than zero.
    deviation = np.where(gaps > 0, values.std(axis=0, ddof=1), 0.0)
    scale = np.abs(values).max(axis=0)
    widest = int(np.argmax(gaps))
    floor = ulp_size(float(scale.max()), series[0].dtype)
    # sqrt(2): a gate compares two runs, and the variances of both add up
    wanted = tolerance_factor(len(series)) * math.sqrt(2) * float(deviation.max())
    relative = gaps[scale > 0] / scale[scale > 0]
    return MetricNoise(
        name=series[0].name,
        dtype=series[0].dtype,
        points=len(steps),
        largest_gap=float(gaps[widest]),
        gap_step=steps[widest],
        largest_relative_gap=float(relative.max()) if len(relative) else None,
        final_gap=float(gaps[-1]),
        largest_deviation=float(deviation.max()),
        tolerance=rounded_up(max(wanted, floor)),
        at_floor=wanted <= floor,
    )


def rounded_up(value: float) -> float:
    """The next number of two significant digits that is not smaller; 0 stays."""
    if value == 0:
        return 0.0
    # In decimal, since the power of ten for the smallest floats is no float any more.
    exact = Decimal(value)
    digits = exact.adjusted() - SIGNIFICANT_DIGITS + 1
    units = int(exact.scaleb(-digits).to_integral_value(ROUND_CEILING))
    # Through text, so that the number is the one that a person would type.
    rounded = float(f"{units}e{digits}")
    return rounded if rounded >= value else float(f"{units + 1}e{digits}")
