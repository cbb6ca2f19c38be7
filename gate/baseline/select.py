"""Choose the entry of a baseline that judges a run, and decide whether it may judge yet."""

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
    """Return the entry of the same environment and training, which a new one replaces."""
    return next(
        (
            candidate
            for candidate in _of_training(baseline, entry)
            if not _elsewhere(candidate, entry)
        ),
        None,
    )


def peers_of(baseline: Baseline | None, entry: BaselineEntry) -> tuple[BaselineEntry, ...]:
    """Return entries of the same training and data in other environments.

    Provisional ones do not count.
    """
    return tuple(
        candidate
        for candidate in _of_training(baseline, entry)
        if _elsewhere(candidate, entry)
        and same_data(candidate.data, entry.data)
        and not candidate.provisional
    )


def may_stand_alone(entry: BaselineEntry, data: DataSets, settings: GateSettings) -> bool:
    """Return whether an entry may replace runs that a call does not make.

    Nothing about the entry may be open. A quarantine rule counts even after its last day.
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
    """Return the baseline without the provisional entries of other environments.

    One of this environment stays, because the report has to say that it does not judge yet.
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


# The ordered key of an entry, starting with what changes a result most. `device` is a GPU's model,
# architecture and count. `packages` and the parts around it are the image or the lock file.
# `variables` are those that choose algorithms; the rest of the determinism profile belongs to the
# training. Parts that are not named here come last, sorted by name.
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

    `nearest` is an entry that cannot judge a run here, because it was recorded on a different kind
    of accelerator. It is None where one was chosen, or there is none.
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
    """Choose an entry by training first, then by environment.

    A different training is a different experiment and never compared. A GPU's result never judges a
    CPU's, and vice versa. Among the rest, entries are preferred in this order:

    - the same `data`;
    - exactly this environment, then one in which only `comparable` parts moved;
    - the nearest environment, whose first different part in `KEY` comes latest; if that is the same
      part, the next different one decides;
    - the newest entry.

    If no entry has this training, `other_settings` are the settings in which the chosen one
    differs.
    """
    entries = baseline.entries if baseline else ()
    if not entries:
        return Selection(entry=None, same_training=True)
    fitting = [entry for entry in entries if entry.training == training]
    # No entry has this training. The nearest is still named, because its settings are the answer.
    candidates = fitting or list(entries)
    # `min` returns the first of equal elements, so the newest of equally near entries wins.
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
    """Return a sort key, lowest nearest: accelerator, data, incomparable parts, which parts."""
    moved = entry.environment.moved(environment)
    another = entry.environment.on_gpu != environment.on_gpu
    other_data = not same_data(entry.data, data)
    return another, other_data, not set(comparable).issuperset(moved), _lateness(moved)


def _lateness(moved: tuple[str, ...]) -> tuple[float, ...]:
    """Return the places of the parts that differ, negated: a later first place sorts lower.

    The end counts as the latest place of all, so of two with the same start the shorter is nearer.
    """
    return (*(-float(key_place(part)[0]) for part in sorted(moved, key=key_place)), -math.inf)


def key_place(part: str) -> tuple[int, str]:
    """Return a part's place in the ordered key, for sorting."""
    return _PLACES.get(part, len(KEY)), part
