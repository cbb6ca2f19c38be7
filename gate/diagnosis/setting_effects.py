"""Which settings of optimizers explain a first difference, and which only changed beside it.

What no update had shown before cannot come from a setting: where the weights that an optimizer
updates were equal up to the difference, its settings had no effect until then.
"""

from __future__ import annotations

import math

from gate.comparison.differences import Comparison, Event, EventKind, OptimizerSettingChange
from gate.diagnosis.causes import OF_AN_OPTIMIZER, UPDATED, between_passes
from gate.evidence.step_columns import PARAMETERS, optimizer_of


def explaining(first: Event, comparison: Comparison) -> tuple[OptimizerSettingChange, ...]:
    """The settings of optimizers that may have made the first divergence.

    A setting acts when its optimizer updates: it explains what the update changes, what stands
    behind it in that step, and every later step, unless the parameters that it updates were seen
    equal all the same. What it explains not, it may follow from: a scheduler that waits for the
    loss.
    """
    return tuple(
        change
        for change in comparison.optimizer_settings
        if _explains(change, first, comparison) and not _without_effect(change, first, comparison)
    )


def beside(first: Event, comparison: Comparison) -> tuple[OptimizerSettingChange, ...]:
    """Those that are no cause of it and differ as early: changes of their own."""
    if _renumbered(first, comparison):
        return ()
    explained = explaining(first, comparison)
    return tuple(
        change
        for change in comparison.optimizer_settings
        if change.step is not None
        and (first.step is None or change.step <= first.step)
        and change not in explained
    )


def _explains(change: OptimizerSettingChange, first: Event, comparison: Comparison) -> bool:
    if first.step is None:
        return True
    # where a setting is not seen at each step, it may differ from the one on that was not looked at
    earliest = (change.equal_until or 0) + 1
    # a script may log what its schedule has set for the next update
    if first.kind is EventKind.METRIC and first.step == earliest - 1:
        return _is_of_the_setting(change, first, comparison)
    if first.step != earliest:
        return first.step > earliest
    return _is_updated(first) or optimizer_of(first.name) > change.optimizer


def _is_updated(first: Event) -> bool:
    return first.kind in UPDATED or between_passes(first)


def _without_effect(change: OptimizerSettingChange, first: Event, comparison: Comparison) -> bool:
    """Whether the parameters of its optimizer were seen equal up to where the results part.

    Nothing stands before the first divergence: where they differ behind it, and were seen in the
    step before that, no update until then was another one.
    """
    own = f"{PARAMETERS}.{change.optimizer}"
    compared = comparison.compared_fingerprints
    name = own if own in compared else PARAMETERS
    if name not in compared or comparison.unrecorded_from is not None:
        return False
    if _is_of_the_setting(change, first, comparison):
        return False
    of_its_update = first.kind is not EventKind.METRIC and _is_updated(first)
    if of_its_update and (name != own or optimizer_of(first.name) == change.optimizer):
        return False
    differing = [
        fingerprint for fingerprint in comparison.fingerprints if fingerprint.fingerprint == name
    ]
    # what a script writes of a step it may compute behind the next update
    late = (first.step or math.inf) + 1 if first.kind is EventKind.METRIC else 0
    return all(
        (series.equal_until or 0) == series.first_step - 1 and series.first_step > late
        for series in differing
    )


def _is_of_the_setting(
    change: OptimizerSettingChange, first: Event, comparison: Comparison
) -> bool:
    """Whether what differs is the setting itself, as a script logs it and a state holds it."""
    if first.kind is EventKind.STATE:
        return OF_AN_OPTIMIZER in first.name
    return first.kind is EventKind.METRIC and any(
        (_number(delta.expected), _number(delta.observed))
        == (_number(change.before), _number(change.after))
        for delta in comparison.metrics
        if delta.metric == first.name and delta.step == first.own_step
    )


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _renumbered(first: Event, comparison: Comparison) -> bool:
    """Whether optimizers or their groups may only have each other's numbers.

    Optimizers are numbered as they make their first step, groups as they are given.
    """
    if first.kind not in {EventKind.TURNS, EventKind.STRUCTURE}:
        return False
    settings = comparison.optimizer_settings
    before, after = (
        sorted((setting.name.rpartition("/")[2], getattr(setting, side)) for setting in settings)
        for side in ("before", "after")
    )
    others = any(event.kind is EventKind.STRUCTURE for event in comparison.events)
    return before == after or (first.kind is EventKind.TURNS and others)
