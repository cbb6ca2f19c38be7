"""How far a result is from the entry that it replaces: what a reviewer has to see of it."""

from __future__ import annotations

import math

from gate.baseline.acceptance import Movement
from gate.comparison.differences import Comparison, MetricDelta
from gate.comparison.metrics import tolerance_at, tolerances_for
from gate.settings.tolerances import Tolerance


def movement_of(
    comparison: Comparison,
    tolerances: tuple[Tolerance, ...],
    *,
    commit: str,
    outcome: str = "",
) -> Movement | None:
    """The worst of what differs; `commit` is the replaced entry's. None where nothing does.

    The worst is the farthest beyond its tolerance, where there is one, and else by relative size;
    a difference without a finite size is as large as can be.
    """
    if comparison.numerically_equal:
        return None
    structure = not comparison.comparable or bool(comparison.retyped)
    weights_equal = not comparison.tensors and not comparison.step_faults
    worst = max(comparison.metrics, key=lambda delta: _severity(delta, tolerances), default=None)
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
        tolerances=_multiple(worst, tolerances),
        weights_equal=weights_equal,
        structure=structure,
    )


def _severity(delta: MetricDelta, tolerances: tuple[Tolerance, ...]) -> tuple[float, float]:
    multiple = _multiple(delta, tolerances)
    relative = math.inf if delta.relative is None else delta.relative
    # what no tolerance covers has to be equal: any difference is beyond all limits
    return math.inf if multiple is None else multiple, relative


def _multiple(delta: MetricDelta, tolerances: tuple[Tolerance, ...]) -> float | None:
    """The difference in multiples of its tolerance; of several limits the widest, as any will do.

    None where there is no tolerance, or no finite difference.
    """
    rule = tolerance_at(delta.step, tolerances_for(delta.metric, tolerances))
    if rule is None or delta.absolute is None:
        return None
    pairs = (
        (delta.absolute, rule.absolute),
        (delta.relative, rule.relative),
        (delta.ulp, rule.ulp),
    )
    multiples = [found / limit for found, limit in pairs if found is not None and limit > 0]
    return min((one for one in multiples if math.isfinite(one)), default=None)
