"""Decide which optimizer settings explain a first difference, and which merely changed beside it.

A setting has an effect only through an update. If the weights that an optimizer updates were equal
up to the difference, its settings had no effect until then and cannot be the cause.
"""

from __future__ import annotations

import math

from gate.comparison.differences import Comparison, Event, EventKind, OptimizerSettingChange
from gate.diagnosis.causes import OF_AN_OPTIMIZER, UPDATED, between_passes
from gate.evidence.step_columns import PARAMETERS, optimizer_of


def explaining(first: Event, comparison: Comparison) -> tuple[OptimizerSettingChange, ...]:
    """Return the optimizer settings that may have caused the first divergence.

    A setting acts when its optimizer updates. It explains what that update changes, what follows it
    in the same step, and every later step. It does not if the parameters that it updates were seen
    equal anyway. A setting that explains nothing may itself be an effect: a scheduler may depend on
    the loss.
    """
    return tuple(
        change
        for change in comparison.optimizer_settings
        if _explains(change, first, comparison) and not _without_effect(change, first, comparison)
    )


def beside(first: Event, comparison: Comparison) -> tuple[OptimizerSettingChange, ...]:
    """Return the settings that differ as early as the first divergence but do not cause it.

    They are changes of their own.
    """
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
    # A setting is not observed at each step. It may differ from the step after the last one at
    # which it was seen equal.
    earliest = (change.equal_until or 0) + 1
    # A script may log the value that its schedule has set for the next update, one step early.
    if first.kind is EventKind.METRIC and first.step == earliest - 1:
        return _is_of_the_setting(change, first, comparison)
    if first.step != earliest:
        return first.step > earliest
    return _is_updated(first) or optimizer_of(first.name) > change.optimizer


def _is_updated(first: Event) -> bool:
    return first.kind in UPDATED or between_passes(first)


def _without_effect(change: OptimizerSettingChange, first: Event, comparison: Comparison) -> bool:
    """Return whether its optimizer's parameters were seen equal up to the first divergence.

    If they first differ later, and were seen equal in the step just before that, then no earlier
    update differed.
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
    # A script may compute a step's metric after the next update, hence one step more.
    late = (first.step or math.inf) + 1 if first.kind is EventKind.METRIC else 0
    return all(
        (series.equal_until or 0) == series.first_step - 1 and series.first_step > late
        for series in differing
    )


def _is_of_the_setting(
    change: OptimizerSettingChange, first: Event, comparison: Comparison
) -> bool:
    """Return whether the setting itself is what differs, as logged or in the captured state."""
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
    """Return whether optimizers or their groups may merely have exchanged their numbers.

    Optimizers are numbered in the order of their first step, groups in the order they are given.
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
