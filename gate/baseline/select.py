"""Which entry of a baseline judges a run: the one whose environment is nearest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gate.records.baseline import Baseline, BaselineEntry
from gate.records.observed.environment import Environment


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The chosen entry, or why there is none to choose.

    `nearest` is an entry that cannot judge a run here, since it was recorded on another kind of
    accelerator; None where one was chosen, or there is none.
    """

    entry: BaselineEntry | None
    same_training: bool
    other_settings: tuple[str, ...] = ()
    nearest: BaselineEntry | None = None


def select_entry(
    baseline: Baseline | None,
    environment: Environment,
    training: Mapping[str, str],
    comparable: tuple[str, ...],
) -> Selection:
    """Choose by training first (another experiment is never compared), environment second.

    Among equally near entries the one with the fewest moved parts wins, then the newest. A result
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
    newest_first = sorted(candidates, key=lambda entry: entry.recorded_at, reverse=True)
    chosen = min(newest_first, key=lambda entry: _distance(entry, environment, comparable))
    if fitting and environment.parts and chosen.environment.on_gpu != environment.on_gpu:
        return Selection(entry=None, same_training=True, nearest=chosen)
    others = () if fitting else _differing_keys(chosen.training, training)
    return Selection(entry=chosen, same_training=bool(fitting), other_settings=others)


def _differing_keys(recorded: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, ...]:
    names = sorted(recorded.keys() | here.keys())
    return tuple(name for name in names if recorded.get(name) != here.get(name))


def _distance(
    entry: BaselineEntry, environment: Environment, comparable: tuple[str, ...]
) -> tuple[bool, bool, int]:
    """The lowest is nearest: another accelerator, more than comparable parts moved, how many."""
    moved = entry.environment.moved(environment)
    another = entry.environment.on_gpu != environment.on_gpu
    return another, not set(comparable).issuperset(moved), len(moved)
