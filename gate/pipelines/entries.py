"""The entry that judges a run, and what a run becomes beside the entries that are there."""

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
    """The entry that judges a run; none where the one of its environment may not do so yet.

    `data` is the declared data that the run found.
    """
    nearest = _nearest(settings, run, baseline, data)
    if nearest.entry is not None and nearest.same_training and nearest.entry.provisional:
        return replace(nearest, entry=None)
    return nearest


def recorded_data(settings: GateSettings, baseline: Baseline | None) -> DataSets:
    """The data of the newest entry of this training: all entries are recorded with the same."""
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
    """The entry of this environment where it may not judge yet.

    One that a pull request brings counts where this run repeats it; else it is no more than a
    claim, and what decides is the base's.
    """
    trusted = baselines.base
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
    """The entry with what a baseline says of it: its movement, its peers, its recordings.

    Its digest is that of before: `successor` makes it, once for all that moves.

    `outcome` is what the gate said of the result. `also` is a baseline that a pull request brings:
    an earlier recording in it counts. None of it is taken from the entry itself: a proposal may
    come from anywhere.

    Only an entry of a new environment is compared with its peers. One that replaces another was
    moved on purpose, as those beside it were not yet: there `moved` says how far.
    """
    replaced = replaced_by(baseline, entry)
    compared = Comparisons(settings.compare)
    earlier = _earlier(entry, (replaced, replaced_by(also, entry)), compared)
    if earlier is not None:
        # the same call accepted twice is one recording
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
    """The baseline with this entry, which says how it came to be there; arguments as above."""
    return with_entry(
        baseline, compared_entry(entry, baseline, settings, outcome=outcome, also=also)
    )


def _earlier(
    entry: BaselineEntry, known: tuple[BaselineEntry | None, ...], compared: Comparisons
) -> BaselineEntry | None:
    """The recording of the very same bits in the same environment that counts most calls."""
    equal = (
        candidate
        for candidate in known
        if candidate is not None
        and compared.of(candidate, entry, (BASELINE_SIDE, NEW)).numerically_equal
    )
    return max(equal, key=lambda candidate: candidate.recordings, default=None)
