"""What each tolerance of the settings decides, and the smallest change that it would catch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from gate.comparison.metrics import tolerance_at, tolerances_for
from gate.comparison.tolerance_factor import misfit
from gate.comparison.ulp import FRACTION_BITS
from gate.records.comparison import LeastChange, ToleranceUse
from gate.records.observed.evidence import MetricSeries, Point, RunEvidence
from gate.records.sections.tolerances import Improvement, Tolerance


def tolerance_uses(run: RunEvidence, tolerances: tuple[Tolerance, ...]) -> tuple[ToleranceUse, ...]:
    """One row for each tolerance, in the order of the settings."""
    return tuple(_use(run, rule, tolerances) for rule in tolerances)


def _use(run: RunEvidence, rule: Tolerance, tolerances: tuple[Tolerance, ...]) -> ToleranceUse:
    named = [series for series in run.metrics if tolerances_for(series.name, (rule,))]
    rules = {series.name: tolerances_for(series.name, tolerances) for series in named}
    decided = {
        series.name: [
            point for point in series.points if tolerance_at(point.step, rules[series.name]) is rule
        ]
        for series in named
    }
    covers = any(rule.decides(point.step) for series in named for point in series.points)
    changes = chain.from_iterable(_least(series, decided[series.name], rule) for series in named)
    return ToleranceUse(
        pattern=rule.metric,
        steps=rule.steps,
        limits=tuple(_limits(rule)),
        one_sided=rule.improvement is Improvement.PASS,
        derived=rule.derived,
        metrics=tuple(name for name, points in decided.items() if points),
        shadowed=covers and not any(decided.values()),
        named=bool(named),
        least=min(changes, key=lambda change: change.share, default=None),
        misfit=misfit(rule),
    )


def _least(series: MetricSeries, decided: list[Point], rule: Tolerance) -> Iterator[LeastChange]:
    """How far each judged point may move."""
    fraction_bits, _ = FRACTION_BITS[series.dtype]
    last = series.points[-1].step if series.points else 0
    for point in decided:
        size = abs(point.value)
        if size and rule.judges(point.step, last):
            # a tolerance holds where any one limit does, so the widest of them is what
            # it lets through; a unit in the last place is at most this part of a value
            share = max(rule.absolute / size, rule.relative, rule.ulp * 2.0**-fraction_bits)
            yield LeastChange(
                metric=series.name, step=point.step, share=share, absolute=share * size
            )


def _limits(rule: Tolerance) -> Iterator[str]:
    if rule.absolute:
        yield f"absolute {rule.absolute:g}"
    if rule.relative:
        yield f"relative {rule.relative * 100:.3g} %"
    if rule.ulp:
        yield f"{rule.ulp:,} ULP"
