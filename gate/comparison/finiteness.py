"""The first number of a run that is NaN or infinite: of a metric, or in its state."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Final

from gate.checkpoint.exclusions import compiled
from gate.comparison.check_records import NotFinite
from gate.comparison.differences import EventKind
from gate.comparison.first_difference import Numbering, kind_of_metric
from gate.evidence.run_evidence import NotFiniteTensor, RunEvidence
from gate.settings.gate_settings import NotFiniteAllowed

MAX_OTHERS: Final = 9


def first_not_finite(
    runs: Iterable[RunEvidence], allowed: tuple[NotFiniteAllowed, ...]
) -> NotFinite | None:
    """The earliest such metric of the runs, the loss before others of one step, else a tensor.

    `allowed` are the tensors that the settings let hold them, such as a mask of minus infinity.
    """
    for run in runs:
        number = _metric(run) or _tensor(run, allowed)
        if number is not None:
            return number
    return None


def never_passes(strict: tuple[RunEvidence, ...], allowed: tuple[NotFiniteAllowed, ...]) -> bool:
    """Whether strict runs hold a number that never passes, so that no further run changes that.

    One run says so. Of a number that is there from the first step a second one says more: where two
    runs start from different weights, memory may be read before it is written.
    """
    number = first_not_finite(strict, allowed)
    from_the_start = number is not None and number.step is not None and number.step <= 1
    return number is not None and len(strict) > from_the_start


def _metric(run: RunEvidence) -> NotFinite | None:
    numbering = Numbering(run.metrics, len(run.steps))
    points = [
        (_place(numbering, series.name, step), series.name, step, value)
        for series in run.metrics
        for step, value in series.points.pairs()
        if not math.isfinite(value)
    ]
    if not points:
        return None
    _, name, step, value = min(points, key=lambda row: row[:2])
    values = next(series.points for series in run.metrics if series.name == name)
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
    found = [
        leaf
        for leaf in run.not_finite
        if not any(pattern.fullmatch(leaf.name) for pattern in patterns)
    ]
    if not found:
        return None
    # what holds NaN goes first: an infinity beside it may be a constant
    first = min(found, key=lambda leaf: not leaf.nan)
    others = tuple(leaf.name for leaf in found if leaf is not first)
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
