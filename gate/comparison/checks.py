"""Checks beside a comparison: finite numbers, thresholds, and planted faults (the self-test).

A comparator that has gone blind (a renamed field, an empty list, a bad merge) would call everything
equal. So `run_self_test` damages copies of this run's own evidence, and each damage must show.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from gate.checkpoint.parts import compiled
from gate.comparison.compare import Result, compare_results
from gate.comparison.differences import EventKind, NotFinite, SelfTestProbe, ThresholdResult
from gate.comparison.first_difference import (
    Numbering,
    kind_of_metric,
    numbering_of,
    renamed_series,
)
from gate.evidence.run_evidence import MetricSeries, NotFiniteTensor, RunEvidence
from gate.settings.gate_settings import ComparisonSettings, NotFiniteAllowed
from gate.settings.levels import Threshold
from gate.training.environment import Environment

MAX_OTHERS: Final = 9


def first_not_finite(
    runs: Iterable[RunEvidence], allowed: tuple[NotFiniteAllowed, ...]
) -> NotFinite | None:
    """Return the earliest NaN or infinity in a metric of the runs, else in a tensor, else None.

    Within a step the loss comes before other metrics. `allowed` are tensors that may contain such
    values by the settings, such as a mask of minus infinity.
    """
    for run in runs:
        number = _metric(run) or _tensor(run, allowed)
        if number is not None:
            return number
    return None


def never_passes(strict: tuple[RunEvidence, ...], allowed: tuple[NotFiniteAllowed, ...]) -> bool:
    """Return whether the strict runs contain a number that never passes, so that no run can help.

    One run is enough for that. If the number is there from the first step, a second run tells more:
    if two runs start from different weights, memory may be read before it is written.
    """
    number = first_not_finite(strict, allowed)
    from_the_start = number is not None and number.step is not None and number.step <= 1
    return number is not None and len(strict) > from_the_start


def _metric(run: RunEvidence) -> NotFinite | None:
    every = tuple(renamed_series(run))
    # Scripts number their own metrics differently, so points are ordered by optimizer step.
    numbering = numbering_of(every, len(run.steps))
    points = [
        (_place(numbering, series.name, step), series.name, step, value)
        for series in every
        # Nearly all series are finite. This check skips them without a look at each point.
        if not all(map(math.isfinite, series.points.values))
        for step, value in series.points.pairs()
        if not math.isfinite(value)
    ]
    if not points:
        return None
    _, name, step, value = min(points, key=lambda row: row[:2])
    values = next(series.points for series in every if series.name == name)
    later = [number for own_step, number in values.pairs() if own_step >= step]
    return NotFinite(
        run=run.run.label,
        name=name,
        step=step,
        value=repr(value),
        lasting=len(later) > 1 and not any(map(math.isfinite, later)),
        infinite=math.isinf(value),
    )


def _place(numbering: Numbering, name: str, own_step: int) -> tuple[float, bool]:
    step = numbering.step(name, own_step)
    return math.inf if step is None else step, kind_of_metric(name) is not EventKind.LOSS


def _tensor(run: RunEvidence, allowed: tuple[NotFiniteAllowed, ...]) -> NotFinite | None:
    patterns = [re.compile(compiled(rule.pattern), re.DOTALL) for rule in allowed]
    plants = [
        leaf
        for leaf in run.not_finite
        if not any(pattern.fullmatch(leaf.name) for pattern in patterns)
    ]
    if not plants:
        return None
    # A tensor with NaN comes first: an infinity in a different one may be a constant.
    first = min(plants, key=lambda leaf: not leaf.nan)
    others = tuple(leaf.name for leaf in plants if leaf is not first)
    return NotFinite(
        run=run.run.label,
        name=first.name,
        step=None,
        value=_counted(first),
        infinite=not first.nan,
        others=others[:MAX_OTHERS],
    )


def _counted(leaf: NotFiniteTensor) -> str:
    parts = ((leaf.nan, "NaN"), (leaf.infinite, "infinite"))
    return " and ".join(f"{count:,} {word}" for count, word in parts if count)


def threshold_results(
    run: Result, thresholds: Mapping[str, Threshold]
) -> tuple[ThresholdResult, ...]:
    """Return one row per threshold, sorted by metric name; a missing metric meets none."""
    by_name = {series.name: series for series in run.metrics}
    return tuple(_result(name, by_name.get(name), thresholds[name]) for name in sorted(thresholds))


def _result(name: str, series: MetricSeries | None, threshold: Threshold) -> ThresholdResult:
    last = series.points[-1] if series is not None and series.points else None
    # Comparisons with NaN are false, so it would violate no bound without this check.
    finite = last is not None and math.isfinite(last.value)
    return ThresholdResult(
        metric=name,
        least=threshold.min,
        most=threshold.max,
        step=last.step if last is not None else None,
        value=last.decimal if last is not None else "",
        met=finite and last is not None and _inside(last.value, threshold),
    )


def _inside(value: float, threshold: Threshold) -> bool:
    above = threshold.min is None or value >= threshold.min
    return above and (threshold.max is None or value <= threshold.max)


RENAMED = "(self_test)"


def run_self_test(evidence: RunEvidence, settings: ComparisonSettings) -> tuple[SelfTestProbe, ...]:
    """Damage copies of `evidence` and report which damage the comparators saw.

    The untouched copy is a probe too: a comparator that always finds a difference is broken as
    well. Where there is nothing to damage, the probe counts as missed.
    """
    probes = {
        "untouched copy is equal": _differs(evidence, evidence, settings) is False,
        "one flipped bit in a metric": _differs(evidence, _flip_metric(evidence), settings),
        "one flipped bit in a tensor": _differs(evidence, _flip_tensor(evidence), settings),
        "one missing step": _differs(evidence, _drop_step(evidence), settings),
        "one renamed tensor": _differs(evidence, _rename_tensor(evidence), settings),
        "one altered environment part": not compare_results(
            evidence, _move_environment(evidence), settings, ("original", "copy")
        ).same_environment,
    }
    return tuple(SelfTestProbe(name=name, caught=caught) for name, caught in probes.items())


def _differs(original: RunEvidence, copy: RunEvidence, settings: ComparisonSettings) -> bool:
    comparison = compare_results(original, copy, settings, ("original", "copy"))
    return not comparison.numerically_equal


def _flip_metric(evidence: RunEvidence) -> RunEvidence:
    """Move the last point of the first metric that has points by one float64 ULP."""
    ordered = sorted(evidence.metrics, key=lambda series: not series.points)
    if not ordered or not ordered[0].points:
        return evidence
    first, *others = ordered
    last = first.points.values[-1]
    # Towards zero (upwards from zero), so that the largest float does not become infinity.
    moved = math.nextafter(last, -math.inf if last > 0 else math.inf)
    changed = first.model_copy(update={"points": first.points.with_last(moved)})
    return evidence.model_copy(update={"metrics": (changed, *others)})


def _flip_tensor(evidence: RunEvidence) -> RunEvidence:
    if not evidence.checkpoint.tensors:
        return evidence
    *tensors, last = evidence.checkpoint.tensors
    # The lowest bit of the digest: a comparison of only a prefix would miss this.
    flipped = f"{int(last.sha256, 16) ^ 1:064x}"
    return _with_tensors(evidence, (*tensors, last.model_copy(update={"sha256": flipped})))


def _drop_step(evidence: RunEvidence) -> RunEvidence:
    return evidence.model_copy(update={"steps": evidence.steps[:-1]})


def _rename_tensor(evidence: RunEvidence) -> RunEvidence:
    if not evidence.checkpoint.tensors:
        return evidence
    *tensors, last = evidence.checkpoint.tensors
    renamed = last.model_copy(update={"name": last.name + RENAMED})
    return _with_tensors(evidence, (*tensors, renamed))


def _move_environment(evidence: RunEvidence) -> RunEvidence:
    parts = {**evidence.environment.parts, "python": RENAMED}
    return evidence.model_copy(update={"environment": Environment(parts=parts)})


def _with_tensors(evidence: RunEvidence, tensors: tuple[object, ...]) -> RunEvidence:
    manifest = evidence.checkpoint.model_copy(update={"tensors": tensors})
    return evidence.model_copy(update={"checkpoint": manifest})
