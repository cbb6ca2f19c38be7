"""Measure how far a result is from the entry that it replaces, and from its peers.

Peers are entries of the same training in other environments. A different machine gives different
last digits, but not a different training. A result that is far off comes from a different program
or different data, or is not the result of a training at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from gate.baseline.acceptance import FarFromPeers, Movement
from gate.baseline.entry import BaselineEntry
from gate.comparison.differences import Comparison, MetricDelta
from gate.comparison.metric_differences import last_step, tolerance_at, tolerances_for
from gate.evidence.run_evidence import MetricSeries
from gate.settings.levels import Tolerance


def movement_of(
    comparison: Comparison,
    tolerances: tuple[Tolerance, ...],
    *,
    replaced: tuple[MetricSeries, ...],
    commit: str,
    outcome: str = "",
) -> Movement | None:
    """Return the largest difference from the replaced entry, or None where nothing differs.

    `replaced` are the metrics of the replaced entry, and `commit` is its commit.

    The largest difference is the one farthest beyond its tolerance. Without a tolerance it is the
    largest relative one; a difference without a finite size counts as infinite.
    """
    if comparison.numerically_equal:
        return None
    structure = not comparison.comparable or bool(comparison.retyped)
    weights_equal = not comparison.tensors and not comparison.step_faults
    ends = {series.name: last_step(series) for series in replaced}

    def multiple_of(delta: MetricDelta) -> float | None:
        rules = tolerances_for(delta.metric, tolerances)
        return _multiple(delta, tolerance_at(delta.step, ends.get(delta.metric, 0), rules))

    worst = max(
        comparison.metrics,
        key=lambda delta: _severity(delta, multiple_of(delta)),
        default=None,
    )
    if worst is None:
        return Movement(
            commit=commit, outcome=outcome, weights_equal=weights_equal, structure=structure
        )
    return Movement(
        commit=commit,
        outcome=outcome,
        metric=worst.metric,
        step=worst.step,
        before=worst.expected,
        after=worst.observed,
        relative=worst.relative,
        ulp=worst.ulp,
        tolerances=multiple_of(worst),
        weights_equal=weights_equal,
        structure=structure,
    )


def _severity(delta: MetricDelta, multiple: float | None) -> tuple[float, float]:
    relative = math.inf if delta.relative is None else delta.relative
    # A metric without a tolerance has to be equal, so any difference exceeds all limits.
    return math.inf if multiple is None else multiple, relative


def _multiple(delta: MetricDelta, rule: Tolerance | None) -> float | None:
    """Return the difference in multiples of its tolerance; the widest limit counts.

    A tolerance is met if any of its limits is. None without a tolerance or a finite difference.
    """
    if rule is None or delta.absolute is None:
        return None
    pairs = (
        (delta.absolute, rule.absolute),
        (delta.relative, rule.relative),
        (delta.ulp, rule.ulp),
    )
    multiples = [
        movement / limit for movement, limit in pairs if movement is not None and limit > 0
    ]
    return min((multiple for multiple in multiples if math.isfinite(multiple)), default=None)


# A share of the largest value of a peer's metric. In a smoke training, rounding errors of a machine
# are far below it. A wrong alarm costs no more than a second recording.
MARGIN: Final = 0.01


def far_from_peers(
    entry: BaselineEntry, peers: Sequence[BaselineEntry], tolerances: tuple[Tolerance, ...]
) -> FarFromPeers | None:
    """Return where the entry is farthest from its peers, or None if it is near all of them.

    A number is far if it is outside the peers' range by more than the widest of three limits. These
    are that range itself, what the tolerance allows, and 1 % of the metric's largest value. The
    range grows with every peer. With a single peer it is empty, and the other two decide.

    The range alone would say far much too often: if results are equally distributed, the next one
    is outside the range of n others with probability 2 / (n + 1).
    """
    if not peers:
        return None
    worst, farthest = 1.0, None
    # Only metrics that all peers have are compared: one peer's own metric shows nothing.
    for name in sorted(set.intersection(*(_names(peer) for peer in peers))):
        own = _series(entry, name)
        others = [series for peer in peers if (series := _series(peer, name)) is not None]
        # A metric that every peer has and this entry lacks is as far as can be.
        if own is None:
            return FarFromPeers(peers=len(peers), metric=name)
        rules = tolerances_for(name, tolerances)
        for share, movement in _points(own, others, rules, len(peers)):
            if share > worst:
                worst, farthest = share, movement
    return farthest


def _names(entry: BaselineEntry) -> set[str]:
    return {series.name for series in entry.metrics}


def _series(entry: BaselineEntry, name: str) -> MetricSeries | None:
    return next((series for series in entry.metrics if series.name == name), None)


def _points(
    own: MetricSeries,
    others: list[MetricSeries],
    rules: tuple[Tolerance, ...],
    peers: int,
) -> Iterator[tuple[float, FarFromPeers]]:
    """Yield each common step: how far outside it is, in multiples of the room, and its record."""
    values = [dict(series.points.pairs()) for series in others]
    largest = max((abs(value) for side in values for value in side.values()), default=0.0)
    here = dict(own.points.pairs())
    for step in sorted(set.intersection(*(set(side) for side in values))):
        value = here.get(step)
        if value is None:
            yield math.inf, FarFromPeers(peers=peers, metric=own.name, step=step)
            continue
        there = [side[step] for side in values]
        rule = tolerance_at(step, last_step(own), rules)
        least, most = min(there), max(there)
        room = max(most - least, _allowed(rule, there), MARGIN * largest)
        outside = max(value - most, least - value, 0.0)
        point = own.name, step, value
        yield _share(outside, room), _far(point, (least, most, room), peers)


def _far(
    movement: tuple[str, int, float], range_and_room: tuple[float, float, float], peers: int
) -> FarFromPeers:
    metric, step, value = movement
    least, most, room = range_and_room
    return FarFromPeers(
        peers=peers,
        metric=metric,
        step=step,
        value=repr(value),
        least=least,
        most=most,
        room=room,
    )


def _share(outside: float, room: float) -> float:
    if outside <= 0:
        return 0.0
    return outside / room if room > 0 else math.inf


def _allowed(rule: Tolerance | None, values: list[float]) -> float:
    if rule is None:
        return 0.0
    return max(rule.absolute, rule.relative * max(map(abs, values)))
