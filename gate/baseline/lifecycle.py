"""What becomes of an entry on its way into the baseline, and whether it may judge yet."""

from __future__ import annotations

from gate.baseline.entry import Baseline, BaselineEntry
from gate.data.data_sets import same_data
from gate.training.environment import Environment


def replaced_by(baseline: Baseline | None, entry: BaselineEntry) -> BaselineEntry | None:
    """The entry of the same environment and training, whose place a new one takes."""
    return next(
        (one for one in _of_training(baseline, entry) if not _elsewhere(one, entry)),
        None,
    )


def peers_of(baseline: Baseline | None, entry: BaselineEntry) -> tuple[BaselineEntry, ...]:
    """Those of the same training and data in other environments; provisional ones do not count."""
    return tuple(
        one
        for one in _of_training(baseline, entry)
        if _elsewhere(one, entry) and same_data(one.data, entry.data) and not one.provisional
    )


def judging_entries(baseline: Baseline | None, environment: Environment) -> Baseline | None:
    """The baseline without the provisional entries of other environments.

    One of this environment stays: that it does not judge yet has to be said.
    """
    if baseline is None:
        return None
    entries = tuple(
        one
        for one in baseline.entries
        if not one.provisional or not one.environment.moved(environment)
    )
    return Baseline(entries=entries)


def _of_training(baseline: Baseline | None, entry: BaselineEntry) -> tuple[BaselineEntry, ...]:
    entries = baseline.entries if baseline else ()
    return tuple(one for one in entries if one.training == entry.training)


def _elsewhere(one: BaselineEntry, other: BaselineEntry) -> bool:
    return bool(one.environment.moved(other.environment))
