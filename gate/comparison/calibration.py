"""What reruns of the default mode say about its noise, and which differences mean anything.

The smallest difference that does is that of `gate.comparison.tolerances`, and never less than
one unit in the last place of the metric's type.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gate.comparison.measurements import MetricNoise
from gate.comparison.tolerances import CONFIDENCE, rounded_up, smallest_difference, tolerance_factor
from gate.comparison.ulp import ulp_size
from gate.evidence.run_evidence import MetricSeries, RunEvidence

# Beyond, a square leaves float64.
LARGEST = 1e150


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Scatter:
    """One metric of several runs: a row of `values` (float64) for each run, a column for each step.

    `deviations` holds the standard deviation over the runs (n - 1), one for each step.
    """

    steps: tuple[int, ...]
    values: NDArray[np.float64]
    deviations: NDArray[np.float64]


def scatter_of(series: tuple[MetricSeries, ...]) -> Scatter | None:
    """The steps at which every run has a finite number; None where there is none."""
    columns = [dict(one.points.pairs()) for one in series]
    steps = tuple(
        step
        for step in sorted(set.intersection(*(set(column) for column in columns)))
        if all(abs(column[step]) <= LARGEST for column in columns)
    )
    if not steps:
        return None
    values = np.array([[column[step] for step in steps] for column in columns])
    return Scatter(steps=steps, values=values, deviations=deviations(values))


def deviations(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The standard deviation over the runs, which lie along the last axis but one."""
    gaps = values.max(axis=-2) - values.min(axis=-2)
    # Of equal numbers the computed mean may differ by a rounding error, and so the deviation be
    # other than zero.
    spread: NDArray[np.float64] = np.where(gaps > 0, values.std(axis=-2, ddof=1), 0.0)
    return spread


def _noise_of(series: tuple[MetricSeries, ...]) -> MetricNoise | None:
    """One metric; a step at which any run lacks a finite number is left out."""
    scatter = scatter_of(series)
    if scatter is None:
        return None
    values, deviation = scatter.values, float(scatter.deviations.max())
    gaps = values.max(axis=0) - values.min(axis=0)
    scale = np.abs(values).max(axis=0)
    widest = int(np.argmax(gaps))
    floor = ulp_size(float(scale.max()), series[0].dtype)
    wanted = smallest_difference(tolerance_factor(len(series)), deviation)
    relative = gaps[scale > 0] / scale[scale > 0]
    return MetricNoise(
        name=series[0].name,
        dtype=series[0].dtype,
        points=len(scatter.steps),
        largest_gap=float(gaps[widest]),
        gap_step=scatter.steps[widest],
        largest_relative_gap=float(relative.max()) if len(relative) else None,
        final_gap=float(gaps[-1]),
        largest_deviation=deviation,
        tolerance=rounded_up(max(wanted, floor)),
        at_floor=wanted <= floor,
    )
