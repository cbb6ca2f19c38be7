"""The class of a cause, as far as recorded fingerprints and known lines prove it.

A class that only a run made for it can prove (uninitialised memory, one operator, a race of
threads, a kernel, a collective) is never taken from fingerprints: there the answer is None, and an
operator trace may give it.
"""

from __future__ import annotations

from typing import Final

from gate.comparison.differences import Comparison, Event, EventKind
from gate.diagnosis.causes import explaining, reordered
from gate.diagnosis.determinism_causes import CauseClass
from gate.diagnosis.diagnosis import Suspect, SuspectKind
from gate.diagnosis.suspects import ORIGINS
from gate.evidence.trace import Claim

DATA: Final = (EventKind.BATCH, EventKind.INPUT)
DRAWN_DATA: Final = (EventKind.RANDOM, *DATA)
PRECISION_KNOBS: Final = ("fp32_", "reduced_")
MESSAGES: Final = "torch.distributed."
# an identifier is drawn to sort or to name by, never to compute with
IDENTIFIERS: Final = "uuid."
BY_EVENT: Final = {
    EventKind.STEPS: CauseClass.OPTIMIZER,
    EventKind.STRUCTURE: CauseClass.STRUCTURE,
    EventKind.INITIAL: CauseClass.SEED,
    EventKind.RANDOM: CauseClass.RANDOM_STATE,
    EventKind.PARAMETERS: CauseClass.OPTIMIZER,
    EventKind.OPTIMIZER: CauseClass.OPTIMIZER,
    EventKind.STATE: CauseClass.CHECKPOINT,
}
# what a commit changes in the computation itself is its code; whether a batch holds other data or
# the same in another order, its digest does not tell
BY_DRIFT: Final = BY_EVENT | {
    EventKind.STEPS: CauseClass.RUN_SETTINGS,
    EventKind.SAMPLES: CauseClass.RUN_SETTINGS,
    EventKind.ROWS: CauseClass.RUN_SETTINGS,
    EventKind.PASSES: CauseClass.RUN_SETTINGS,
    EventKind.TURNS: CauseClass.RUN_SETTINGS,
    EventKind.LOSS: CauseClass.CODE,
    EventKind.BACKWARD: CauseClass.CODE,
    EventKind.GRADIENTS: CauseClass.CODE,
    EventKind.METRIC: CauseClass.CODE,
    EventKind.METRIC_MISSING: CauseClass.CODE,
}

BY_SUSPECT: Final = {
    SuspectKind.UNSEEDED: CauseClass.SEED,
    SuspectKind.SEED: CauseClass.SEED,
    SuspectKind.PRECISION: CauseClass.PRECISION,
    SuspectKind.READ: CauseClass.DATA,
}

BY_CLAIM: Final = {
    Claim.UNINITIALISED: CauseClass.UNINITIALISED_MEMORY,
    Claim.RANDOM_STATE: CauseClass.RANDOM_STATE,
    Claim.ARRIVAL: CauseClass.COLLECTIVE,
}


def class_of(
    first: Event, comparison: Comparison, suspects: tuple[Suspect, ...], *, drift: bool
) -> CauseClass | None:
    """The class, or None where several are open."""
    likely = [suspect for suspect in suspects if not suspect.possible]
    if likely:
        # what leads to a seed stands before it
        made = likely[0].kind in ORIGINS and any(one.kind is SuspectKind.SEED for one in likely)
        return CauseClass.SEED if made else _of_suspect(likely[0], first)
    if drift and explaining(first, comparison):
        return CauseClass.OPTIMIZER
    # of fewer samples as well as of other draws
    if (
        drift
        and first.kind in DRAWN_DATA
        and comparison.steps_expected != comparison.steps_observed
    ):
        return None
    unseen = not {"gradients", "backward"} & set(comparison.compared_fingerprints)
    if first.kind is EventKind.PARAMETERS and unseen:
        return None
    if first.kind is EventKind.STATE and not drift and reordered(comparison):
        return CauseClass.STRUCTURE
    return (BY_DRIFT if drift else BY_EVENT).get(first.kind)


def of_environment(comparison: Comparison) -> CauseClass:
    """Of parts that moved: what can be installed, or the machine."""
    installed = comparison.software_moved
    return CauseClass.DEPENDENCY if installed else CauseClass.ENVIRONMENT


def _of_suspect(suspect: Suspect, first: Event) -> CauseClass | None:
    if first.kind in {EventKind.STEPS, EventKind.STRUCTURE}:
        return BY_EVENT[first.kind]
    if suspect.kind is SuspectKind.SETTING:
        known = suspect.call.startswith(PRECISION_KNOBS)
        return CauseClass.PRECISION if known else None
    if suspect.kind is SuspectKind.CLOCK:
        return BY_EVENT.get(first.kind)
    if suspect.kind is SuspectKind.COMPLETION:
        return _of_completion(suspect, first)
    ordering = suspect.kind is SuspectKind.ORDER or suspect.call.startswith(IDENTIFIERS)
    if ordering and first.kind in DATA:
        return CauseClass.DATA_ORDER
    drawn = CauseClass.SEED if first.kind is EventKind.INITIAL else CauseClass.RANDOM_STATE
    return BY_SUSPECT.get(suspect.kind, drawn)


def _of_completion(suspect: Suspect, first: Event) -> CauseClass:
    if suspect.call.startswith(MESSAGES):
        return CauseClass.COLLECTIVE
    loaded = first.kind is EventKind.BATCH or suspect.call.endswith("imap_unordered")
    return CauseClass.DATA_ORDER if loaded else CauseClass.THREAD_RACE
