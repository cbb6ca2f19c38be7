"""Measure noise from reruns, and derive tolerances from it.

The smallest meaningful difference is that of `gate.comparison.tolerances`, but never less than one
unit in the last place of the metric's type.
"""

from __future__ import annotations

import glob
import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gate.comparison.measurements import CalibratedTolerance, MetricNoise, Provenance
from gate.comparison.metric_differences import tolerances_for, ulp_size
from gate.comparison.tolerances import (
    CONFIDENCE,
    derive,
    rounded_up,
    smallest_difference,
    tolerance_factor,
    tolerance_uses,
)
from gate.evidence.run_evidence import MetricSeries, RunEvidence
from gate.settings.levels import FINAL, Tolerance, steps_of
from gate.text.phrases import count
from gate.text.untrusted_text import masked

# Beyond this, a square overflows float64.
LARGEST = 1e150


def undetected_share(runs: int) -> float:
    """Return the largest share of differing runs at which all runs are equal in 1 of 20 cases."""
    return float(1 - (1 - CONFIDENCE) ** (1 / (runs - 1)))


def metric_noise(runs: tuple[RunEvidence, ...]) -> tuple[tuple[MetricNoise, ...], tuple[str, ...]]:
    """Return the noise of each metric that all runs have, and a note for each one left out."""
    by_name = [{series.name: series for series in run.metrics} for run in runs]
    noises, notes = list[MetricNoise](), list[str]()
    for name in sorted(set().union(*by_name)):
        series = [metrics[name] for metrics in by_name if name in metrics]
        if len(series) < len(runs):
            notes.append(f"metric {name} is missing in {count(len(runs) - len(series), 'run')}")
            continue
        noise = _noise_of(tuple(series))
        if noise is None:
            notes.append(f"metric {name} has no step at which all runs gave a finite number")
        else:
            noises.append(noise)
    return tuple(noises), tuple(notes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scatter:
    """One metric of several runs: `values` (float64) has a row per run and a column per step.

    `deviations` has the standard deviation over the runs (n - 1) for each step.
    """

    steps: tuple[int, ...]
    values: NDArray[np.float64]
    deviations: NDArray[np.float64]


def scatter_of(series: tuple[MetricSeries, ...]) -> Scatter | None:
    """Return the metric at the steps where every run has a finite number; None without any."""
    columns = [dict(series_item.points.pairs()) for series_item in series]
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
    """Return the standard deviation over the runs, which are on the last axis but one."""
    gaps = values.max(axis=-2) - values.min(axis=-2)
    # The computed mean of equal numbers may be off by a rounding error. The deviation would then
    # not be zero.
    spread: NDArray[np.float64] = np.where(gaps > 0, values.std(axis=-2, ddof=1), 0.0)
    return spread


def _noise_of(series: tuple[MetricSeries, ...]) -> MetricNoise | None:
    """Return one metric's noise; steps at which a run has no finite number are left out."""
    scatter = scatter_of(series)
    if scatter is None:
        return None
    values, deviation = scatter.values, float(scatter.deviations.max())
    gaps = values.max(axis=0) - values.min(axis=0)
    scale = np.abs(values).max(axis=0)
    widest = int(np.argmax(gaps))
    # A metric of this type cannot move by less than one unit in the last place of its largest
    # value.
    floor = ulp_size(float(scale.max()), series[0].dtype)
    difference = smallest_difference(tolerance_factor(len(series)), deviation)
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
        tolerance=rounded_up(max(difference, floor)),
        at_floor=difference <= floor,
    )


# The longest pattern that the settings accept.
MAX_PATTERN = 200
MAX_TOLERANCES = 100


def calibrate(
    runs: tuple[RunEvidence, ...],
    ranges: tuple[str, ...],
    confidence: float,
    before: tuple[Tolerance, ...],
) -> tuple[tuple[CalibratedTolerance, ...], tuple[str, ...]]:
    """Return a tolerance for each metric and range that moved, and a note for each one without.

    `before` are the tolerances in the settings. Their direction, which way is better, is kept.
    """
    rows: list[tuple[Tolerance, int, int]] = []
    notes: list[str] = []
    by_name = [{series.name: series for series in run.metrics} for run in runs]
    for name in sorted(set().union(*by_name)):
        series = tuple(metrics[name] for metrics in by_name if name in metrics)
        scatter = scatter_of(series) if len(series) == len(runs) else None
        if scatter is None:
            notes.append(f"metric {name} has no step at which all runs gave a finite number")
            continue
        if len(glob.escape(name)) > MAX_PATTERN:
            notes.append(f"metric {name[:40]}... has a name too long for a pattern")
            continue
        for steps in ranges:
            calibrated = _derived(series, scatter, steps, confidence, before)
            rows += [calibrated] if calibrated is not None else []
            notes += [] if calibrated is not None else [_equal(name, steps)]
    if len(rows) > MAX_TOLERANCES:
        notes.append(f"{len(rows) - MAX_TOLERANCES:,} more tolerances are left out")
    kept = rows[:MAX_TOLERANCES]
    uses = tolerance_uses(runs[0], tuple(rule for rule, _, _ in kept))
    return tuple(
        CalibratedTolerance(rule=rule, points=points, widest_step=step, use=use)
        for (rule, points, step), use in zip(kept, uses, strict=True)
    ), tuple(notes)


def _derived(
    series: tuple[MetricSeries, ...],
    scatter: Scatter,
    steps: str,
    confidence: float,
    before: tuple[Tolerance, ...],
) -> tuple[Tolerance, int, int] | None:
    """Return the tolerance, the number of steps behind it, and the step where runs scatter most."""
    places = _places(scatter.steps, steps)
    if not places or not scatter.deviations[places].any():
        return None
    widest = places[int(np.argmax(scatter.deviations[places]))]
    limit, derived = derive(len(series), float(scatter.deviations[widest]), confidence)
    floor = ulp_size(float(np.abs(scatter.values[:, places]).max()), series[0].dtype)
    known = next(iter(tolerances_for(series[0].name, before)), None)
    rule = Tolerance(
        # A name with a star or bracket would be a pattern.
        metric=glob.escape(series[0].name),
        absolute=limit,
        # Never less than one unit in the last place: there is no number in between.
        ulp=1 if limit < floor else 0,
        steps=steps,
        derived=derived,
    )
    if known is not None:
        sides = {"better_is": known.better_is, "improvement": known.improvement}
        rule = rule.model_copy(update=sides)
    return rule, len(places), scatter.steps[widest]


def _places(steps_found: tuple[int, ...], steps: str) -> list[int]:
    """Return the positions of a range's steps within a metric's steps."""
    if steps == FINAL:
        return [len(steps_found) - 1]
    selected = steps_of(steps)
    return [place for place, step in enumerate(steps_found) if selected is None or step in selected]


def _equal(name: str, steps: str) -> str:
    where = "" if steps == "every" else f" (steps: {steps})"
    return f"metric {name}{where} did not move, or has no such step: it must be equal, bit for bit"


MAX_METRICS = 20
ENVIRONMENT = ("device", "cpu", "torch", "threads")


def tolerance_snippet(
    metrics: tuple[MetricNoise, ...], runs: int, factor: float, provenance: Provenance
) -> str:
    """Return a `compare` section for the metrics that moved; only a comment if none did.

    It is printable ASCII, because the metric names come from the training and are untrusted.
    """
    moved = [metric for metric in metrics if metric.largest_gap > 0]
    head = [
        f"# repro-gate noise: {runs} runs in default mode, k({runs}) = {factor:.3g}",
        _origin(provenance),
    ]
    if not moved:
        return "\n".join([*head, "# no metric moved: a tolerance would only hide changes", ""])
    rows = [
        # A name with a star or bracket would be a pattern, and a quote would end the YAML string.
        f"    - {{metric: {json.dumps(glob.escape(metric.name))}, absolute: {metric.tolerance!r}}}"
        for metric in moved[:MAX_METRICS]
    ]
    return "\n".join([*head, "compare:", "  tolerances:", *rows, ""])


def calibrated_block(
    tolerances: tuple[CalibratedTolerance, ...], measured: str, provenance: Provenance
) -> str:
    """Return a `compare` section with derived tolerances, one key a line; "" if no metric moved."""
    if not tolerances:
        return ""
    head = [f"# {_plain(measured)}", _origin(provenance), "compare:", "  tolerances:"]
    return "\n".join([*head, *(_row(tolerance.rule) for tolerance in tolerances), ""])


def _row(rule: Tolerance) -> str:
    keys = rule.model_dump(mode="json", exclude_defaults=True)
    # JSON is valid YAML, and quoting this way keeps a name that the training chose inside its
    # string.
    lines = [f"{key}: {json.dumps(value)}" for key, value in keys.items() if key != "derived"]
    if rule.derived is not None:
        parts = rule.derived.model_dump(mode="json").items()
        lines.append(f"derived: {{{', '.join(f'{key}: {value!r}' for key, value in parts)}}}")
    return "\n".join(f"    {' ' if place else '-'} {line}" for place, line in enumerate(lines))


def _origin(provenance: Provenance) -> str:
    parts = provenance.environment.parts
    where = ", ".join(f"{part} {parts.get(part, 'unknown')}" for part in ENVIRONMENT)
    dirty = " with uncommitted changes" if provenance.changed_files else ""
    commit = f"{provenance.commit[:12]}{dirty}"
    return f"# commit {commit}, {provenance.created_at[:10]}, {_plain(where)}"


def _plain(text: str) -> str:
    return masked(text).encode("ascii", "replace").decode("ascii")[:200]
