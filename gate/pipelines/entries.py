"""Chooses the baseline entry that judges a run, and compares a new entry with the known ones."""

from __future__ import annotations

from dataclasses import replace

from gate.baseline.acceptance import FarFromPeers, Movement, ProvisionalEntry
from gate.baseline.entry import Baseline, BaselineEntry, Baselines
from gate.baseline.movement import far_from_peers, movement_of
from gate.baseline.record import with_entry
from gate.baseline.select import Selection, judging_entries, peers_of, replaced_by, select_entry
from gate.comparison.compare import Comparisons
from gate.comparison.differences import BASELINE_SIDE
from gate.data.data_sets import DataSets
from gate.evidence.run_evidence import RunEvidence
from gate.settings.gate_settings import GateSettings
from gate.settings.load import training_settings

NEW = "new entry"


def selected(
    settings: GateSettings, run: RunEvidence, baseline: Baseline | None, data: DataSets
) -> Selection:
    """Return the entry that judges a run; none if its environment's entry is provisional.

    `data` is the declared data that the run found.
    """
    nearest = _nearest(settings, run, baseline, data)
    if nearest.entry is not None and nearest.same_training and nearest.entry.provisional:
        return replace(nearest, entry=None)
    return nearest


def recorded_data(settings: GateSettings, baseline: Baseline | None) -> DataSets:
    """Return the data of the newest entry of this training; all its entries have the same data."""
    training = training_settings(settings)
    entries = baseline.entries if baseline is not None else ()
    fitting = [entry for entry in entries if entry.training == training]
    newest = max(fitting, key=lambda entry: entry.recorded_at, default=None)
    return newest.data if newest is not None else ()


def provisional_entry(
    settings: GateSettings,
    run: RunEvidence,
    baselines: Baselines,
    data: DataSets,
    compared: Comparisons,
) -> ProvisionalEntry | None:
    """Return the provisional entry of this environment, or None.

    A pull request's entry counts only if this run reproduces it. Otherwise it is a mere claim, and
    the base's entry decides.
    """
    trusted = baselines.base
    # head first: a run that reproduces the entry of head is the second call that confirms it
    for baseline in (baselines.head, trusted):
        nearest = _nearest(settings, run, baseline, data)
        entry = nearest.entry
        if entry is None or entry.far is None or not (entry.provisional and nearest.same_training):
            continue
        names = (BASELINE_SIDE, run.run.label)
        repeated = compared.of(entry, run, names).numerically_equal
        if repeated or baseline is trusted:
            return ProvisionalEntry(
                far=entry.far, repeated=repeated, brought=baseline is not trusted
            )
    return None


def _nearest(
    settings: GateSettings, run: RunEvidence, baseline: Baseline | None, data: DataSets
) -> Selection:
    comparable = settings.compare.comparable_environment
    training = training_settings(settings)
    entries = judging_entries(baseline, run.environment)
    return select_entry(entries, run.environment, training, comparable, data)


def compared_entry(
    entry: BaselineEntry,
    baseline: Baseline | None,
    settings: GateSettings,
    *,
    outcome: str = "",
    also: Baseline | None = None,
) -> BaselineEntry:
    """Return the entry with its movement, its distance from peers and its number of recordings.

    The digest is not renewed here: `successor` computes it once after all changes.

    `outcome` is the gate's verdict on the result. `also` is a baseline of the pull request, whose
    earlier recording counts too. Nothing is taken from the entry itself, because a proposal may
    come from anywhere.

    Only an entry of a new environment is compared with its peers. An entry that replaces another
    was moved on purpose, while its peers may not have been moved yet. Then `moved` says how far it
    moved.
    """
    replaced = replaced_by(baseline, entry)
    compared = Comparisons(settings.compare)
    # equal bits in the same environment: this is a further recording and not a new result
    earlier = _earlier(entry, (replaced, replaced_by(also, entry)), compared)
    if earlier is not None:
        # accepting the result of one call twice counts as one recording
        again = earlier.recorded_at != entry.recorded_at
        content: dict[str, object] = {
            "far": earlier.far,
            "recordings": earlier.recordings + again,
            "moved": earlier.moved,
        }
    else:
        content = {
            "far": _far(entry, replaced, baseline, settings),
            "recordings": 1,
            "moved": _moved(entry, replaced, settings, compared, outcome),
        }
    return entry.model_copy(update=content)


def _far(
    entry: BaselineEntry,
    replaced: BaselineEntry | None,
    baseline: Baseline | None,
    settings: GateSettings,
) -> FarFromPeers | None:
    # an entry that replaces a confirmed one was moved on purpose, so peers prove nothing
    if replaced is not None and not replaced.provisional:
        return None
    tolerances = settings.compare.tolerances
    return far_from_peers(entry, peers_of(baseline, entry), tolerances)


def _moved(
    entry: BaselineEntry,
    replaced: BaselineEntry | None,
    settings: GateSettings,
    compared: Comparisons,
    outcome: str,
) -> Movement | None:
    if replaced is None:
        return None
    return movement_of(
        compared.of(replaced, entry, (BASELINE_SIDE, NEW)),
        settings.compare.tolerances,
        replaced=replaced.metrics,
        commit=replaced.commit,
        outcome=outcome,
    )


def with_compared(
    entry: BaselineEntry,
    baseline: Baseline | None,
    settings: GateSettings,
    *,
    outcome: str = "",
    also: Baseline | None = None,
) -> Baseline:
    """Return the baseline with this entry, compared as in `compared_entry`."""
    return with_entry(
        baseline, compared_entry(entry, baseline, settings, outcome=outcome, also=also)
    )


def _earlier(
    entry: BaselineEntry, known: tuple[BaselineEntry | None, ...], compared: Comparisons
) -> BaselineEntry | None:
    """Return the recording with equal bits in the same environment that has the most recordings."""
    equal = (
        candidate
        for candidate in known
        if candidate is not None
        and compared.of(candidate, entry, (BASELINE_SIDE, NEW)).numerically_equal
    )
    return max(equal, key=lambda candidate: candidate.recordings, default=None)
