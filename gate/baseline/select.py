"""Which entry of a baseline judges a run, and whether it may judge yet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gate.baseline.entry import Baseline, BaselineEntry, entry_name
from gate.comparison.checks import threshold_results
from gate.comparison.differences import OtherSetting
from gate.data.data_sets import DataSets, same_data
from gate.settings.gate_settings import GateSettings
from gate.training.environment import CPU, DEVICE, NODES, PACKAGES, Environment


def replaced_by(baseline: Baseline | None, entry: BaselineEntry) -> BaselineEntry | None:
    """The entry of the same environment and training, whose place a new one takes."""
    return next(
        (
            candidate
            for candidate in _of_training(baseline, entry)
            if not _elsewhere(candidate, entry)
        ),
        None,
    )


def peers_of(baseline: Baseline | None, entry: BaselineEntry) -> tuple[BaselineEntry, ...]:
    """Those of the same training and data in other environments; provisional ones do not count."""
    return tuple(
        candidate
        for candidate in _of_training(baseline, entry)
        if _elsewhere(candidate, entry)
        and same_data(candidate.data, entry.data)
        and not candidate.provisional
    )


def may_stand_alone(entry: BaselineEntry, data: DataSets, settings: GateSettings) -> bool:
    """Whether an entry may stand for runs that a call does not make: nothing about it is open.

    A rule of the quarantine counts after its last day, too.
    """
    rules, parts = settings.baseline, entry.environment.parts
    return (
        not entry.provisional
        and entry.equal_runs >= rules.record_repeats
        and same_data(entry.data, data)
        and not any(rule.covers(parts) for rule in rules.quarantine)
        and all(
            threshold_result.met
            for threshold_result in threshold_results(entry, settings.policy.thresholds)
        )
    )


def judging_entries(baseline: Baseline | None, environment: Environment) -> Baseline | None:
    """The baseline without the provisional entries of other environments.

    One of this environment stays: that it does not judge yet has to be said.
    """
    if baseline is None:
        return None
    entries = tuple(
        entry
        for entry in baseline.entries
        if not entry.provisional or not entry.environment.moved(environment)
    )
    return Baseline(entries=entries)


def _of_training(baseline: Baseline | None, entry: BaselineEntry) -> tuple[BaselineEntry, ...]:
    entries = baseline.entries if baseline else ()
    return tuple(candidate for candidate in entries if candidate.training == entry.training)


def _elsewhere(left: BaselineEntry, right: BaselineEntry) -> bool:
    return bool(left.environment.moved(right.environment))


# The ordered key of an entry, from what moves a result most. `device` holds a GPU's model,
# architecture and count; `packages` and what stands beside it are the image or the lock;
# `variables` are those that choose algorithms (the rest of the determinism profile is part of the
# training). A part that is not named here comes after all of them, by its name.
KEY: Final = (
    DEVICE,
    "driver",
    "cuda",
    "cudnn",
    "cublas",
    "nccl",
    "torch",
    PACKAGES,
    "numpy",
    "python",
    "os",
    "variables",
    NODES,
    "world_size",
    "threads",
    "cpu_capability",
    CPU,
)
_PLACES: Final = {part: place for place, part in enumerate(KEY)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The chosen entry, or why there is none to choose.

    `nearest` is an entry that cannot judge a run here, since it was recorded on another kind of
    accelerator; None where one was chosen, or there is none.
    """

    entry: BaselineEntry | None
    same_training: bool
    other_settings: tuple[OtherSetting, ...] = ()
    nearest: BaselineEntry | None = None


def select_entry(
    baseline: Baseline | None,
    environment: Environment,
    training: Mapping[str, str],
    comparable: tuple[str, ...],
    data: DataSets = (),
) -> Selection:
    """Choose by training first (another experiment is never compared), environment second.

    Of those of one kind of accelerator, an entry of this very `data` goes first. After that, an
    entry of this very environment goes first, then one of which only `comparable` parts moved;
    among those the nearest: whose first different place in `KEY` comes latest. Where that is the
    same place, the next different one decides, and in the end the newest entry. A result
    of a GPU never judges one of a CPU, nor the other way round. Where no
    entry is of this training, `other_settings` names what the chosen one was recorded with a
    different value of.
    """
    entries = baseline.entries if baseline else ()
    if not entries:
        return Selection(entry=None, same_training=True)
    fitting = [entry for entry in entries if entry.training == training]
    # none of this training: the nearest is still named, since its other settings are the answer
    candidates = fitting or list(entries)
    # `min` takes the first of equals, so order decides between entries that are equally near
    newest_first = sorted(
        candidates, key=lambda entry: (entry.recorded_at, entry_name(entry)), reverse=True
    )
    chosen = min(newest_first, key=lambda entry: _distance(entry, environment, comparable, data))
    if fitting and environment.parts and chosen.environment.on_gpu != environment.on_gpu:
        return Selection(entry=None, same_training=True, nearest=chosen)
    others = () if fitting else _differing(chosen.training, training)
    return Selection(entry=chosen, same_training=bool(fitting), other_settings=others)


def _differing(recorded: Mapping[str, str], here: Mapping[str, str]) -> tuple[OtherSetting, ...]:
    names = sorted(recorded.keys() | here.keys())
    return tuple(
        OtherSetting(key=name, before=recorded.get(name, ""), after=here.get(name, ""))
        for name in names
        if recorded.get(name) != here.get(name)
    )


def _distance(
    entry: BaselineEntry, environment: Environment, comparable: tuple[str, ...], data: DataSets
) -> tuple[bool, bool, bool, tuple[float, ...]]:
    """The lowest is nearest: another accelerator, other data, more than comparable parts, which."""
    moved = entry.environment.moved(environment)
    another = entry.environment.on_gpu != environment.on_gpu
    other_data = not same_data(entry.data, data)
    return another, other_data, not set(comparable).issuperset(moved), _lateness(moved)


def _lateness(moved: tuple[str, ...]) -> tuple[float, ...]:
    """The places that differ, from the first, negated: a later first place is a lower value.

    The end counts as the latest place of all, so that of two with the same beginning the one that
    ends is nearer.
    """
    return (*(-float(key_place(part)[0]) for part in sorted(moved, key=key_place)), -math.inf)


def key_place(part: str) -> tuple[int, str]:
    """Where a part of the environment is in the ordered key; for sorting."""
    return _PLACES.get(part, len(KEY)), part
