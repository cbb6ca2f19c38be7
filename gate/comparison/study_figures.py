"""Compare set-ups of one commit over the same seeds: means with intervals, and what differs.

A mean's interval is Student's (Biometrika 6, 1908). Two set-ups ran the same seeds, so differences
are taken seed by seed. The interval is the one of their mean, and the effect that a seed has on
both set-ups cancels. An interval that contains zero does not show equality. Half its width is the
difference that these seeds could have missed. Speed is compared as for two commits
(`base_head.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import Final

from gate.comparison.base_head import speed_ratio
from gate.comparison.cost import timed_alone
from gate.comparison.differences import CostState
from gate.comparison.level_judgement import seed_result
from gate.comparison.level_records import Sample
from gate.comparison.measurements import SpeedRatio
from gate.comparison.performance import performance_of
from gate.comparison.statistical_tests import sample_of, t_quantile
from gate.comparison.studies import (
    MAX_CURVES,
    MAX_METRICS,
    MAX_POINTS,
    ArmContrast,
    Contrast,
    Maybe,
    MetricContrast,
    MetricCurve,
    MetricOverSeeds,
    StudyArm,
    StudyRun,
)
from gate.evidence.columns import Point, Points
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.step_columns import UNKNOWN
from gate.settings.gate_settings import GateSettings
from gate.settings.levels import LEAST_SEEDS

# The upper quantile of a two-sided 95 % interval.
TAIL: Final = 0.975
Runs = tuple[RunEvidence, ...]


def process_count(run: RunEvidence) -> int:
    """Return how many processes trained together; 1 if none joined another."""
    world_size = run.environment.part("world_size")
    return int(world_size) if world_size.isdecimal() else 1


def study_runs(
    runs_by_arm: dict[str, Runs], seeds: Sequence[int], settings: GateSettings
) -> tuple[StudyRun, ...]:
    """Return each run as the document records it, arm by arm, in the order of the seeds."""
    numbers: dict[str, int] = {}
    every = tuple(run for runs in runs_by_arm.values() for run in runs)
    by_arm = []
    for name, runs in runs_by_arm.items():
        # Steps beside which a different run was going prove nothing about speed.
        alone = timed_alone(runs, every, settings.cost)
        medians = [performance_of((run,), settings.cost)[0].median_step_seconds for run in alone]
        for seed, run, median in zip(seeds, runs, medians, strict=True):
            result = seed_result(run, seed, "", settings.policy)
            by_arm.append(
                StudyRun(
                    label=run.run.label,
                    arm=name,
                    seed=seed,
                    # Equal results get the same number, so a reader sees at once which runs agree.
                    result=numbers.setdefault(result.digest, len(numbers) + 1),
                    steps=max(
                        (max(metric.points.steps, default=0) for metric in run.metrics), default=0
                    ),
                    wall_seconds=run.run.wall_seconds,
                    step_seconds=median,
                    peak_memory_bytes=run.peak_memory_bytes,
                    device_memory_bytes=run.device_memory_bytes,
                    values=result.values,
                )
            )
    return tuple(by_arm)


def study_arm(
    name: str, command: tuple[str, ...], runs: Runs, own: tuple[StudyRun, ...],
    first: RunEvidence, settings: GateSettings,
) -> StudyArm:  # fmt: skip
    """Return the arm of these runs.

    `own` are the same runs as the document records them; `first` is a run of the first arm.
    """
    names = [value.metric for value in own[0].values]
    return StudyArm(
        name=name,
        command=command,
        ranks=process_count(runs[0]),
        ignores_seed=len(own) > 1 and len({run.result for run in own}) == 1,
        performance=performance_of(runs, settings.cost)[0],
        samples_per_step=_samples_per_step(runs),
        metrics=tuple(_over_seeds(metric, own) for metric in names),
        curves=tuple(
            _curve(metric, runs)
            # The loss comes first: there may be more metrics than curves.
            for metric in sorted(names, key=lambda metric: (metric != "loss", metric))[:MAX_CURVES]
        ),
        moved=first.environment.moved(runs[0].environment),
    )


def _samples_per_step(runs: Runs) -> float | None:
    counts = [samples for run in runs for samples in run.timings.samples]
    return None if not counts or UNKNOWN in counts or not sum(counts) else fmean(counts)


def _over_seeds(metric: str, runs: tuple[StudyRun, ...]) -> MetricOverSeeds:
    points = [value.point for run in runs for value in run.values if value.metric == metric]
    steps = {point.step for point in points}
    reason = ""
    if len(points) < len(runs):
        reason = "missing at some seeds"
    elif len(steps) > 1:
        reason = "ends at different steps"
    elif not all(math.isfinite(point.value) for point in points):
        reason = "not finite at some seeds"
    sample = None if reason else sample_of([point.value for point in points])
    if sample is None:
        return MetricOverSeeds(metric=metric, reason=reason or "too few or too large values")
    low, high = _interval(sample)
    return MetricOverSeeds(metric=metric, step=min(steps), sample=sample, low=low, high=high)


def _interval(sample: Sample) -> tuple[float | None, float | None]:
    reach = t_quantile(TAIL, sample.seeds - 1) * sample.deviation / math.sqrt(sample.seeds)
    bounds = sample.mean - reach, sample.mean + reach
    return bounds if all(map(math.isfinite, bounds)) else (None, None)


def _series(run: RunEvidence, metric: str) -> Points:
    return next((series.points for series in run.metrics if series.name == metric), Points())


def _curve(metric: str, runs: Runs) -> MetricCurve:
    """Return the points that every run has; for many, an evenly spaced sample with the last one."""
    series = [dict(_series(run, metric).pairs()) for run in runs]
    steps = sorted(set.intersection(*(set(series_item) for series_item in series)))
    if len(steps) > MAX_POINTS:
        last = len(steps) - 1
        steps = [steps[place * last // (MAX_POINTS - 1)] for place in range(MAX_POINTS)]
    rows = [[series_item[step] for series_item in series] for step in steps]
    return MetricCurve(
        metric=metric,
        steps=tuple(steps),
        low=tuple(_finite(min(row)) for row in rows),
        mean=tuple(_finite(_mean(row)) for row in rows),
        high=tuple(_finite(max(row)) for row in rows),
    )


def _mean(row: list[float]) -> float:
    try:
        return fmean(row)
    except (OverflowError, ValueError):
        return math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def arm_contrast(
    arms: tuple[StudyArm, StudyArm], runs: tuple[Runs, Runs],
    own: tuple[tuple[StudyRun, ...], tuple[StudyRun, ...]], settings: GateSettings,
) -> ArmContrast:  # fmt: skip
    """Compare the second arm with the first; `runs[0][i]` and `runs[1][i]` ran side by side."""
    speed = speed_ratio(runs[0][0].run.mode, runs[0], runs[1], settings.cost)
    efficiency, low, high, reason = _efficiency(arms, speed)
    names = sorted({value.metric for side in own for run in side for value in run.values})
    return ArmContrast(
        arm=arms[1].name,
        over=arms[0].name,
        pairs=len(own[0]),
        equal_pairs=sum(left.result == right.result for left, right in zip(*own, strict=True)),
        metrics=tuple(_contrast(metric, runs, own) for metric in names[:MAX_METRICS]),
        speed=speed,
        efficiency=efficiency,
        efficiency_low=low,
        efficiency_high=high,
        reason=reason,
    )


def _efficiency(
    arms: tuple[StudyArm, StudyArm], speed: SpeedRatio
) -> tuple[Maybe, Maybe, Maybe, str]:
    """Return a rank's work per second relative to the first arm's, for batches of any size."""
    base, head = (arm.samples_per_step for arm in arms)
    if base is None or head is None:
        return None, None, None, "samples per step unknown: no DataLoader shows the batch size"
    if speed.ratio is None or speed.low is None or speed.high is None:
        return None, None, None, speed.reason
    work = head / base
    reason = "" if speed.state is CostState.MEASURED else speed.reason
    # A time ratio is inverted, so its bounds change places.
    return work / speed.ratio, work / speed.high, work / speed.low, reason


def _contrast(
    metric: str, runs: tuple[Runs, Runs], own: tuple[tuple[StudyRun, ...], tuple[StudyRun, ...]]
) -> MetricContrast:
    firsts = (
        _first_step(_series(left, metric), _series(right, metric))
        for left, right in zip(*runs, strict=True)
    )
    first = min((step for step in firsts if step is not None), default=None)
    contrast = partial(MetricContrast, metric=metric, state=Contrast.UNDECIDED, first_step=first)
    points = [(_last(left, metric), _last(right, metric)) for left, right in zip(*own, strict=True)]
    pairs = [(left, right) for left, right in points if left and right]
    if len(pairs) < len(points):
        return contrast(reason="not every run has it")
    if any(left.step != right.step for left, right in pairs):
        return contrast(reason="ends at different steps")
    if first is None:
        # No pair differs in any bit at any step, so no test is needed.
        return contrast(state=Contrast.EQUAL, difference=0.0, low=0.0, high=0.0)
    return _tested(contrast, [right.value - left.value for left, right in pairs])


def _tested(contrast: partial[MetricContrast], differences: list[float]) -> MetricContrast:
    """Return what the paired differences show."""
    if not all(map(math.isfinite, differences)):
        return contrast(reason="a value is NaN or infinite")
    if len(differences) < LEAST_SEEDS:
        return contrast(difference=_finite(_mean(differences)), reason=f"under {LEAST_SEEDS} seeds")
    sample = sample_of(differences)
    low, high = (None, None) if sample is None else _interval(sample)
    if sample is None or low is None or high is None:
        return contrast(reason="the values are too large to distinguish")
    state = Contrast.NOT_SHOWN if low <= 0 <= high else Contrast.DIFFERENT
    return contrast(state=state, difference=sample.mean, low=low, high=high)


def _last(run: StudyRun, metric: str) -> Point | None:
    return next((value.point for value in run.values if value.metric == metric), None)


def _first_step(left: Points, right: Points) -> int | None:
    """Return the first step with different bits, or that only one of the two has."""
    if left == right:
        return None
    pairs = dict(left.pairs()), dict(right.pairs())
    steps = sorted(pairs[0].keys() | pairs[1].keys())
    return next((step for step in steps if _bits(pairs[0], step) != _bits(pairs[1], step)), None)


def _bits(series: dict[int, float], step: int) -> str:
    return series[step].hex() if step in series else ""
