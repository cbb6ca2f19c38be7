"""What each tolerance of the settings decides, and the smallest change that it would catch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from gate.comparison.differences import LeastChange, ToleranceUse
from gate.comparison.metrics import tolerance_at, tolerances_for
from gate.comparison.tolerances import misfit
from gate.comparison.ulp import FRACTION_BITS
from gate.evidence.run_evidence import MetricSeries, RunEvidence
from gate.settings.tolerances import Improvement, Tolerance

# a step and its number; a share of it, the change itself, and whose
Pair = tuple[int, float]
Change = tuple[float, float, str, int]


def tolerance_uses(run: RunEvidence, tolerances: tuple[Tolerance, ...]) -> tuple[ToleranceUse, ...]:
    """One row for each tolerance, in the order of the settings."""
    decided: list[list[tuple[MetricSeries, list[Pair]]]] = [[] for _ in tolerances]
    # each point is looked at once, however many tolerances there are: a training chose how many
    for series in run.metrics:
        for place, points in _by_rule(series, tolerances).items():
            decided[place].append((series, points))
    return tuple(_use(run, rule, points) for rule, points in zip(tolerances, decided, strict=True))


def _by_rule(series: MetricSeries, tolerances: tuple[Tolerance, ...]) -> dict[int, list[Pair]]:
    """The points of a metric by the place of the tolerance that decides them."""
    rules = tolerances_for(series.name, tolerances)
    places = {id(rule): place for place, rule in enumerate(tolerances)}
    found: dict[int, list[Pair]] = {}
    for step, value in series.points.pairs() if rules else ():
        rule = tolerance_at(step, rules)
        if rule is not None:
            found.setdefault(places[id(rule)], []).append((step, value))
    return found


def _use(
    run: RunEvidence, rule: Tolerance, decided: list[tuple[MetricSeries, list[Pair]]]
) -> ToleranceUse:
    named = [series for series in run.metrics if tolerances_for(series.name, (rule,))]
    covers = any(rule.decides(step) for series in named for step in series.points.steps)
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
    """How far each judged point may move."""
    fraction_bits, _ = FRACTION_BITS[series.dtype]
    last = series.points[-1].step if series.points else 0
    for step, value in decided:
        size = abs(value)
        if size and rule.judges(step, last):
            # a tolerance holds where any one limit does, so the widest of them is what
            # it lets through; a unit in the last place is at most this part of a value
            share = max(rule.absolute / size, rule.relative, rule.ulp * 2.0**-fraction_bits)
            yield share, share * size, series.name, step


def _share(change: Change) -> float:
    return change[0]


def _change(found: Change | None) -> LeastChange | None:
    if found is None:
        return None
    share, absolute, metric, step = found
    return LeastChange(metric=metric, step=step, share=share, absolute=absolute)


def _limits(rule: Tolerance) -> Iterator[str]:
    if rule.absolute:
        yield f"absolute {rule.absolute:g}"
    if rule.relative:
        yield f"relative {rule.relative * 100:.3g} %"
    if rule.ulp:
        yield f"{rule.ulp:,} ULP"
