"""Two commits that ran side by side: their metrics, and the ratio of their speed.

Ratios are computed as for the cost of determinism (`cost.py`): in each round head is divided by
base, and the figure is the geometric mean of the rounds. The control is each commit over itself,
one round over the next. A ratio whose interval is not outside the control is no finding.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gate.comparison.cost import (
    Ratio,
    RoundOfRuns,
    Seconds,
    memory_ratio,
    noise_band,
    paired_ratio,
    steady,
    steady_steps,
    too_few_steps,
    typical_seconds,
)
from gate.comparison.cost_arms import MIN_ROUNDS
from gate.comparison.differences import (
    Comparison,
    CostState,
    MetricDelta,
    SeriesFault,
    SeriesFaultKind,
)
from gate.comparison.measurements import MAX_METRICS, MAX_VALUES, MetricBeside, SpeedRatio
from gate.evidence.run_evidence import MetricSeries, RunEvidence
from gate.evidence.step_columns import Timings
from gate.settings.levels import CostSettings
from gate.training.runs import RunMode

Runs = tuple[RunEvidence, ...]


def speed_ratio(mode: RunMode, base: Runs, head: Runs, settings: CostSettings) -> SpeedRatio:
    """Return step time and memory, head over base; `base[i]` and `head[i]` ran side by side."""
    rounds = len(base)
    shortest = min(len(steady(run, settings.warmup_steps)) for run in (*base, *head))
    measured = SpeedRatio(
        mode=mode,
        state=CostState.NOT_MEASURABLE,
        rounds=rounds,
        steps_used=shortest,
        memory_ratio=memory_ratio(head, base),
    )
    if shortest < settings.min_steps:
        both = (*base, *head)
        reason = too_few_steps(both, both, settings, settings.min_steps)
        return measured.model_copy(update={"reason": reason})
    seconds = _steady_seconds(base, head, settings)
    if any(np.min(run) <= 0 for run in seconds):
        return measured.model_copy(update={"reason": "steps too short for this clock"})
    over, under = seconds[rounds:], seconds[:rounds]
    ratio = paired_ratio(_rounds(over, under))
    # Odd rounds over even ones of the same commit show the noise between rounds.
    band = noise_band(
        paired_ratio(_rounds(side[1::2], side[::2])) for side in (under, over) if len(side) > 1
    )
    why_not = _why_inconclusive(rounds, ratio, band)
    return measured.model_copy(
        update={
            "state": CostState.INCONCLUSIVE if why_not else CostState.MEASURED,
            "reason": why_not,
            "base_step_seconds": typical_seconds(tuple(under)),
            "head_step_seconds": typical_seconds(tuple(over)),
            "ratio": ratio.value,
            "low": ratio.low,
            "high": ratio.high,
            "control_low": 1 / band,
            "control_high": band,
        }
    )


def _steady_seconds(base: Runs, head: Runs, settings: CostSettings) -> list[Seconds]:
    """Return the steady steps of base's runs, then head's; the very first run warms up longer."""
    timings = steady_steps((*base, *head), settings)
    if base[0].run.mode is RunMode.STRICT:
        # The first run starts on a cold machine, which is no property of its commit.
        rows = timings[0].rows()
        warmer = Timings(row for row in rows if row[0] > 2 * settings.warmup_steps)
        timings[0] = warmer if 2 * len(warmer) >= settings.min_steps else timings[0]
    return [np.array(steps.seconds, np.float64) for steps in timings]


def _rounds(over: list[Seconds], under: list[Seconds]) -> tuple[RoundOfRuns, ...]:
    return tuple(
        RoundOfRuns(over=(left,), under=(right,)) for left, right in zip(over, under, strict=False)
    )


def _why_inconclusive(rounds: int, ratio: Ratio, band: float) -> str:
    if rounds < MIN_ROUNDS:
        return f"fewer than {MIN_ROUNDS} rounds"
    if ratio.low > band or ratio.high < 1 / band:
        return ""
    return "within the noise of this machine"


def metrics_beside(
    base: RunEvidence, head: RunEvidence, comparison: Comparison
) -> tuple[MetricBeside, ...]:
    """Return each metric of either side, differing ones first, then by name; at most 200."""
    sides = [{series.name: series for series in run.metrics} for run in (base, head)]
    faults = {fault.metric: fault for fault in comparison.series}
    deltas: dict[str, list[MetricDelta]] = {}
    for delta in comparison.metrics:
        deltas.setdefault(delta.metric, []).append(delta)
    metrics = [
        _beside(name, (sides[0].get(name), sides[1].get(name)), deltas.get(name, []), faults)
        for name in sorted(sides[0].keys() | sides[1].keys())
    ]
    order = sorted(metrics, key=lambda metric: not (metric.differing_points or metric.fault))
    return tuple(order[:MAX_METRICS])


def _beside(
    name: str,
    sides: tuple[MetricSeries | None, MetricSeries | None],
    deltas: list[MetricDelta],
    faults: Mapping[str, SeriesFault],
) -> MetricBeside:
    known = [series for series in sides if series is not None]
    values = [dict(series.points.pairs()) if series else {} for series in sides]
    steps = _evenly(sorted({*values[0], *values[1]}))
    same_type = len({series.dtype for series in known}) == 1
    sized = [delta for delta in deltas if delta.absolute is not None]
    largest = max(sized, key=lambda delta: delta.absolute or 0.0, default=None)
    relative = [delta.relative for delta in deltas if delta.relative is not None]
    return MetricBeside(
        name=name,
        source=known[0].source.value,
        compared_points=len(values[0].keys() & values[1].keys()) if same_type else 0,
        differing_points=len(deltas),
        within=name not in faults and all(delta.within for delta in deltas),
        base_last=_last(sides[0]),
        head_last=_last(sides[1]),
        first_step=min((delta.step for delta in deltas), default=None),
        largest_absolute=None if largest is None else largest.absolute,
        largest_step=None if largest is None else largest.step,
        largest_relative=max(relative, default=None),
        fault=_fault(faults[name].kind, values, known) if name in faults else "",
        steps=steps,
        base_values=tuple(_decimal(values[0], step) for step in steps),
        head_values=tuple(_decimal(values[1], step) for step in steps),
    )


def _decimal(values: dict[int, float], step: int) -> str | None:
    return repr(values[step]) if step in values else None


def _fault(kind: SeriesFaultKind, values: list[dict[int, float]], known: list[MetricSeries]) -> str:
    if kind is SeriesFaultKind.DTYPE:
        return f"{known[0].dtype} in base, {known[1].dtype} in head"
    if kind is SeriesFaultKind.STEPS:
        return f"other steps: {len(values[0]):,} values in base, {len(values[1]):,} in head"
    return "only in base" if kind is SeriesFaultKind.MISSING else "only in head"


def _last(series: MetricSeries | None) -> str:
    return series.points[-1].decimal if series is not None and series.points else ""


def _evenly(steps: list[int]) -> tuple[int, ...]:
    """Return at most `MAX_VALUES` of the steps, including the first and the last."""
    if len(steps) <= MAX_VALUES:
        return tuple(steps)
    places = np.linspace(0, len(steps) - 1, MAX_VALUES).round().astype(int)
    return tuple(steps[place] for place in places)
