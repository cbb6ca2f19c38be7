"""Tolerances derived from measured results: for each metric and range of steps."""

from __future__ import annotations

import glob

import numpy as np

from gate.comparison.calibration import Scatter, scatter_of
from gate.comparison.comparison_tolerances import tolerance_uses
from gate.comparison.measurements import CalibratedTolerance
from gate.comparison.metrics import tolerances_for
from gate.comparison.tolerances import derive
from gate.comparison.ulp import ulp_size
from gate.evidence.run_evidence import MetricSeries, RunEvidence
from gate.settings.tolerances import FINAL, Tolerance, steps_of

# the longest pattern that the settings take
MAX_PATTERN = 200
MAX_TOLERANCES = 100


def calibrate(
    runs: tuple[RunEvidence, ...],
    ranges: tuple[str, ...],
    confidence: float,
    before: tuple[Tolerance, ...],
) -> tuple[tuple[CalibratedTolerance, ...], tuple[str, ...]]:
    """A tolerance for each metric and range that moved, and a sentence for each that has none.

    `before` are the tolerances of the settings: which way a metric is better is taken over.
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
            found = _derived(series, scatter, steps, confidence, before)
            rows += [found] if found is not None else []
            notes += [] if found is not None else [_equal(name, steps)]
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
    """The tolerance, how many steps it is made of, and the step where the runs scatter most."""
    places = _places(scatter.steps, steps)
    if not places or not scatter.deviations[places].any():
        return None
    widest = places[int(np.argmax(scatter.deviations[places]))]
    limit, derived = derive(len(series), float(scatter.deviations[widest]), confidence)
    floor = ulp_size(float(np.abs(scatter.values[:, places]).max()), series[0].dtype)
    known = next(iter(tolerances_for(series[0].name, before)), None)
    rule = Tolerance(
        # a name with a star or a bracket would be a pattern
        metric=glob.escape(series[0].name),
        absolute=limit,
        # never less than a unit in the last place: below it, no number lies in between
        ulp=1 if limit < floor else 0,
        steps=steps,
        derived=derived,
    )
    if known is not None:
        sides = {"better_is": known.better_is, "improvement": known.improvement}
        rule = rule.model_copy(update=sides)
    return rule, len(places), scatter.steps[widest]


def _places(found: tuple[int, ...], steps: str) -> list[int]:
    """Where in a metric's steps those of a range stand."""
    if steps == FINAL:
        return [len(found) - 1]
    wanted = steps_of(steps)
    return [place for place, step in enumerate(found) if wanted is None or step in wanted]


def _equal(name: str, steps: str) -> str:
    where = "" if steps == "every" else f" (steps: {steps})"
    return f"metric {name}{where} did not move, or has no such step: it must be equal, bit for bit"
