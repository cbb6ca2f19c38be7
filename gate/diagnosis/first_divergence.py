"""Diagnose where two results first differ, and which class of cause that points to.

The comparison has sorted all differences: the earliest optimizer step first, and within a step
cause before effect. `causes.py` says what each kind of event points to. Suspected lines are added
to it: an override or a generator without a seed is a better answer than a class.

Fingerprints cannot prove uninitialised memory, one operator, a race of threads, a kernel or a
collective. Only a run that is made for it can. In those cases the class is None here, and an
operator trace may supply it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from gate.comparison.differences import Comparison, Event, EventKind, WorkKind
from gate.data.declared import data_names, entries_for
from gate.diagnosis.causes import (
    DRIFT,
    OF_THE_RUN,
    Cause,
    CauseQuestion,
    cause_of,
    reordered,
    starts_later,
)
from gate.diagnosis.diagnosis import CauseClass, Diagnosis, Suspect, SuspectKind
from gate.diagnosis.setting_effects import beside, explaining
from gate.diagnosis.suspects import NOTHING_KNOWN, ORIGINS, KnownLines, suspects_of
from gate.evidence.observations import Source, library_frame
from gate.evidence.trace import ChangedNumber, Claim

DATA: Final = (EventKind.BATCH, EventKind.INPUT)
DRAWN_DATA: Final = (EventKind.RANDOM, *DATA)
# A difference in an earlier step shows up in these too.
FOLLOWING: Final = frozenset((
    EventKind.WEIGHTS, EventKind.LOSS, EventKind.BACKWARD, EventKind.GRADIENTS,
    EventKind.PARAMETERS, EventKind.OPTIMIZER, EventKind.METRIC, EventKind.METRIC_MISSING,
))  # fmt: skip
PRECISION_KNOBS: Final = ("fp32_", "reduced_")
MESSAGES: Final = "torch.distributed."
# Scripts draw identifiers to sort or name by, never to compute with. They change an order.
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
# A commit that changes the computation changed its code. Batch and input are missing here: a digest
# does not show whether a batch has different data or the same data in a different order.
BY_DRIFT: Final = BY_EVENT | {
    EventKind.STEPS: CauseClass.RUN_SETTINGS,
    EventKind.SAMPLES: CauseClass.RUN_SETTINGS,
    EventKind.ROWS: CauseClass.RUN_SETTINGS,
    EventKind.PASSES: CauseClass.RUN_SETTINGS,
    EventKind.TURNS: CauseClass.RUN_SETTINGS,
    EventKind.WEIGHTS: CauseClass.CODE,
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
    Claim.ARRIVAL: CauseClass.MESSAGE_RACE,
    Claim.COLLECTIVE: CauseClass.COLLECTIVE,
}


def cause_class(
    first: Event, comparison: Comparison, suspects: tuple[Suspect, ...], *, drift: bool
) -> CauseClass | None:
    """Return the class of cause, or None where several classes remain open."""
    likely = [suspect for suspect in suspects if not suspect.possible]
    if likely:
        # `suspects_of` puts the origin of a seed before the seed itself; both together are a seed.
        made = likely[0].kind in ORIGINS and any(
            suspect.kind is SuspectKind.SEED for suspect in likely
        )
        return CauseClass.SEED if made else _of_suspect(likely[0], first)
    if drift and explaining(first, comparison):
        return CauseClass.OPTIMIZER
    # Fewer samples and different draws both explain this, so no class is claimed.
    if (
        drift
        and first.kind in DRAWN_DATA
        and comparison.steps_expected != comparison.steps_observed
    ):
        return None
    unseen = not {"gradients", "backward"} & set(comparison.compared_fingerprints)
    skipped = comparison.unrecorded_from is not None
    # Something that was not recorded may have differed first, as may updates by other optimizers.
    unknown = (first.kind is EventKind.PARAMETERS and unseen) or (
        first.kind in FOLLOWING and skipped
    )
    if unknown or starts_later(first, comparison):
        return None
    if first.kind is EventKind.STATE and not drift and reordered(comparison):
        return CauseClass.STRUCTURE
    return (BY_DRIFT if drift else BY_EVENT).get(first.kind)


def of_environment(comparison: Comparison) -> CauseClass:
    """Return `DEPENDENCY` if installed software changed, else `ENVIRONMENT`: the machine did."""
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
        return CauseClass.MESSAGE_RACE
    loaded = first.kind is EventKind.BATCH or suspect.call.endswith("imap_unordered")
    return CauseClass.DATA_ORDER if loaded else CauseClass.THREAD_RACE


# The harness's name for a reinforcement-learning environment, which has its own generator.
OF_AN_ENVIRONMENT = "gymnasium.Env.reset"
FROM_ANY_RANK = ("torch.distributed.recv", "torch.distributed.irecv")
# Elements without their own hash are ordered by address, which differs in each process.
SETS = ("set", "frozenset")
# asyncio continues with the results of threads in order of completion.
AS_DONE = "asyncio."
KEEP_STILL = "Change nothing on the machine while the gate runs, and check what the script sets."
GO_BACK = "Go back to the environment of the baseline, or commit a new baseline with the update."
SHOWN_EVENTS = 6
WHY_SETTINGS = {
    "cudnn_benchmark": "cuDNN then picks the algorithm that it measured as fastest, again in "
    "each run",
    "attention_cudnn": "the backward pass of cuDNN's attention adds in no fixed order",
}
SHOWN_SETTINGS = 4


def diagnose_repeat(
    comparison: Comparison, known: KnownLines, *, one_cpu_thread: bool
) -> Diagnosis | None:
    """Diagnose the first divergence of two runs of one commit, or return None when they are equal.

    `known` contains the script's lines that may explain it. `one_cpu_thread` as in `CauseQuestion`.
    """
    if not comparison.differs:
        return None
    # The two runs of one call had different machines or drivers. No line of the script explains
    # that.
    if comparison.environment:
        return _environment(comparison, "between the runs", KEEP_STILL)
    return _diagnosis(comparison, CauseQuestion(drift=False, one_cpu_thread=one_cpu_thread), known)


def diagnose_drift(comparison: Comparison, known: KnownLines = NOTHING_KNOWN) -> Diagnosis | None:
    """Diagnose where a commit first diverges from its reference; return None when they are equal.

    `known` contains what the commit's own run does and the reference's does not, line by line.
    """
    if not comparison.differs:
        return None
    if not comparison.environment:
        return _diagnosis(comparison, CauseQuestion(drift=True), known)
    moved = _environment(comparison, "since the baseline was recorded", GO_BACK)
    # No machine or package sets the settings of a run. A person changed them, so they come first.
    if not _settings_differ(comparison):
        return moved
    diagnosis = _diagnosis(comparison, CauseQuestion(drift=True), known)
    if diagnosis is None:
        return moved
    # The environment moved as well, so it is named too: either may contribute.
    beside = f"Besides, {moved.cause}."
    return diagnosis.model_copy(update={"details": f"{diagnosis.details} {beside}".strip()})


def _settings_differ(comparison: Comparison) -> bool:
    """Return whether settings of the run or of optimizers explain the first difference."""
    first = comparison.first
    if first is None:
        return False
    return first.kind in OF_THE_RUN or bool(explaining(first, comparison))


def _environment(comparison: Comparison, when: str, remedy: str) -> Diagnosis:
    return Diagnosis(
        first_step=comparison.first_step,
        kind=EventKind.ENVIRONMENT,
        cause_class=of_environment(comparison),
        subject=comparison.environment[0].part,
        cause=f"the environment moved {when}: {', '.join(comparison.moved[:SHOWN_EVENTS])}",
        remedy=remedy,
    )


def _diagnosis(
    comparison: Comparison, question: CauseQuestion, known: KnownLines
) -> Diagnosis | None:
    first = comparison.first
    if first is None:
        return None
    cause = cause_of(first, comparison, question)
    known = replace(known, sources=tuple(_at_work(known.sources, first, comparison)))
    suspects = suspects_of(
        first,
        known,
        numbers_differ=bool(comparison.optimizer_settings),
        ranks=comparison.first_ranks,
        later=starts_later(first, comparison),
    )
    settings = explaining(first, comparison)[:SHOWN_SETTINGS] if question.drift else ()
    others = beside(first, comparison)[:SHOWN_SETTINGS] if question.drift else ()
    if settings:
        # No matter which quantity shows the difference first, the author changed these settings.
        cause = replace(cause, remedy=DRIFT[EventKind.PARAMETERS].remedy)
    return Diagnosis(
        first_step=first.step,
        unrecorded_from=comparison.unrecorded_from,
        kind=first.kind,
        subject=first.name,
        cause=cause.with_guess,
        guess=cause.guess,
        cause_class=cause_class(first, comparison, suspects, drift=question.drift),
        details=_afterwards(comparison),
        remedy=_remedy(cause, suspects, first),
        suspects=suspects,
        decides=_decides(suspects),
        optimizer_settings=settings,
        settings_beside=others,
        work=tuple(
            ChangedNumber(before=str(change.before), after=str(change.after))
            for change in comparison.work
            if first.kind in OF_THE_RUN
            and change.step == first.step
            and (change.every or change.kind is WorkKind.TURNS)
        ),
        ranks=comparison.first_ranks,
    )


def _at_work(sources: tuple[Source, ...], first: Event, comparison: Comparison) -> Iterator[Source]:
    """Yield the sources, without lines that build a set unless an order of tensors differs first.

    Scripts build sets all the time; a set matters only where its iteration order shows.
    """
    ordered = first.kind is EventKind.STRUCTURE or (
        first.kind is EventKind.STATE and reordered(comparison)
    )
    yield from (source for source in sources if ordered or source.call not in SETS)


def _remedy(cause: Cause, suspects: tuple[Suspect, ...], first: Event) -> str:
    """Return the remedy for the first suspect, followed by the general one of the cause."""
    if not suspects:
        return cause.remedy
    suspect = suspects[0]
    # A clock that is only written down controls nothing, so counting steps instead would not help.
    written = WRITTEN.get(first.kind) if suspect.kind is SuspectKind.CLOCK else None
    known = f"{(written or REMEDIES[suspect.kind])(suspect)}."
    return f"{known} If that is not it: {cause.remedy[:1].lower()}{cause.remedy[1:]}"


def _decides(suspects: tuple[Suspect, ...]) -> str:
    """Return what would distinguish the first two suspects, or "" where there is nothing to decide.

    A seed and its origin are one cause. A likely and a possible suspect are already ranked.
    """
    two = suspects[:2]
    kinds = {suspect.kind for suspect in two}
    chain = SuspectKind.SEED in kinds and bool(kinds & ORIGINS)
    if len(two) != 2 or chain or two[0].possible != two[1].possible:  # noqa: PLR2004 - two are told apart
        return ""
    change = REMEDIES[two[0].kind](two[0])
    return f"{change}, and run again. If the runs still differ, it is {two[1].place}."


def _leave(suspect: Suspect) -> str:
    why = f": {WHY_SETTINGS[suspect.call]}" if suspect.call in WHY_SETTINGS else ""
    return f"Leave {suspect.call} {suspect.before} at {suspect.place}{why}"


def _seeded_at(suspect: Suspect) -> str:
    """Return the line that gives a seed; for an installed package, also the line inside it.

    The user cannot edit the package, but has to read it to see which argument takes the seed.
    """
    library = library_frame(suspect.stack, suspect.place)
    return f"what {suspect.place} calls ({library})" if library else suspect.place


def _let_wait(suspect: Suspect) -> str:
    if suspect.call.startswith(AS_DONE):
        return f"Take the results at {suspect.place} in submission order, not as they complete"
    if suspect.call.startswith(MESSAGES):
        return f"Call wait() on what {suspect.call}() returns at {suspect.place}"
    return (
        f"Let the training wait for the thread that {suspect.place} starts, and give it generators "
        "of its own"
    )


REMEDIES: Final[dict[SuspectKind, Callable[[Suspect], str]]] = {
    SuspectKind.UNSEEDED: lambda suspect: (
        f"Pass seed= to reset() at {suspect.place}, or to the model that calls it"
        if suspect.call == OF_AN_ENVIRONMENT
        else f"Give {_seeded_at(suspect)} a constant seed"
    ),
    SuspectKind.SEED: lambda suspect: (
        f"Seed {suspect.call} with {suspect.before} again at {suspect.place}"
        if suspect.after
        else f"Give {_seeded_at(suspect)} a constant seed"
    ),
    SuspectKind.ENTROPY: lambda suspect: (
        f"Draw from a generator with a constant seed instead of {suspect.call}() at {suspect.place}"
    ),
    SuspectKind.DRAW: lambda suspect: (
        f"Either give the thread at {suspect.place} a seeded generator of its own, or take what "
        "threads hand over in a fixed order"
        if suspect.possible
        else f"Give the thread at {suspect.place} a seeded generator of its own"
    ),
    SuspectKind.COMPLETION: lambda suspect: (
        f"Receive from each rank by its number (src=) at {suspect.place}, in a fixed order"
        if suspect.call in FROM_ANY_RANK
        else f"Take the results at {suspect.place} in submission order, not as they complete"
    ),
    SuspectKind.ORDER: lambda suspect: f"Sort what {suspect.call}() lists at {suspect.place}",
    SuspectKind.PRECISION: lambda suspect: (
        f"Keep {suspect.call} {suspect.before} for the whole training at {suspect.place}"
    ),
    SuspectKind.READ: lambda suspect: (
        f"Declare {suspect.call} (`{entries_for(data_names((suspect.call,)))}`), "
        "and let nothing change it while the gate runs"
    ),
    SuspectKind.SETTING: _leave,
    SuspectKind.PROCESS: lambda suspect: f"Do not use {suspect.call}() at {suspect.place}",
    SuspectKind.ADDRESS: lambda suspect: (
        f"Sort what the {suspect.call} at {suspect.place} holds, or use a list"
        if suspect.call in SETS
        else "Sort by something that is equal in each run, "
        f"and not by {suspect.call}() at {suspect.place}"
    ),
    SuspectKind.THREAD: _let_wait,
    SuspectKind.CHILD: lambda suspect: (
        f"Start `{suspect.call}` at {suspect.place} with the environment that the script itself has"
    ),
    SuspectKind.CLOCK: lambda suspect: (
        f"Count steps instead of asking {suspect.call}() at {suspect.place}"
    ),
}


WRITTEN: Final[dict[EventKind, Callable[[Suspect], str]]] = {
    EventKind.STATE: lambda suspect: (
        f"Save no time: leave out what {suspect.place} takes from {suspect.call}(), "
        "or exclude it with train.checkpoint_exclude"
    ),
    EventKind.METRIC: lambda suspect: (
        f"Compare no time: leave what {suspect.place} takes from {suspect.call}() "
        "out of the metrics"
    ),
}


def _afterwards(comparison: Comparison) -> str:
    """Return a sentence listing what differed after the first event, in causal order, or ""."""
    later = [event for event in comparison.events[1:] if event.kind is not EventKind.STATE]
    events = [f"{event.name} {event.where}" for event in later[:SHOWN_EVENTS]]
    return f"After it: {', '.join(events)}." if events else ""
