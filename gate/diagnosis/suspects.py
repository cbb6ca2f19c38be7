"""Rank the lines of the training that would explain the first divergence, likeliest first.

Three rules decide:

- A line that ran after the first difference cannot have caused it.
- A line must be able to change what differs: a switch of arithmetic cannot change a batch.
- A line that gives a different answer in each run ranks before one that may give the same twice.

Where two lines fit, both are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gate.comparison.differences import Event, EventKind
from gate.diagnosis.causes import OF_THE_RUN
from gate.diagnosis.diagnosis import CodePlace, Suspect, SuspectKind
from gate.evidence.observations import (
    Override,
    OverrideKind,
    Source,
    SourceKind,
    UnattestedChild,
    WeakerChild,
)
from gate.evidence.step_columns import optimizer_of

SHOWN_SUSPECTS: Final = 3
# The harness writes this word for a seed that was taken from the time.
CLOCK: Final = "clock"
# A setting of strict mode changes arithmetic, so it can change these. Anything earlier in a step
# has a different cause.
ARITHMETIC: Final = (
    EventKind.WEIGHTS,
    EventKind.LOSS,
    EventKind.BACKWARD,
    EventKind.GRADIENTS,
    EventKind.PARAMETERS,
    EventKind.OPTIMIZER,
    EventKind.METRIC,
    EventKind.STATE,
)
# The order of a directory listing can change these without any random draw.
ORDERED: Final = (
    EventKind.STRUCTURE,
    EventKind.INITIAL,
    EventKind.RANDOM,
    EventKind.BATCH,
    EventKind.INPUT,
    EventKind.WEIGHTS,
    EventKind.LOSS,
    EventKind.METRIC,
    EventKind.STATE,
)
EVERY: Final = frozenset(EventKind)
AT_WORK: Final = EVERY - OF_THE_RUN
CAN_CHANGE: Final = {
    SuspectKind.SETTING: frozenset(ARITHMETIC),
    SuspectKind.PRECISION: frozenset(ARITHMETIC),
    # Addresses can change anything here: a script may add, clip or update in their order.
    SuspectKind.ADDRESS: AT_WORK,
    SuspectKind.ORDER: frozenset(ORDERED),
    SuspectKind.COMPLETION: AT_WORK - {EventKind.INITIAL, EventKind.STRUCTURE},
    SuspectKind.CHILD: AT_WORK,
    SuspectKind.READ: (AT_WORK - {EventKind.RANDOM}) | {EventKind.SAMPLES, EventKind.ROWS},
    SuspectKind.THREAD: AT_WORK,
}
# A changed seed shows first in these. Later in a step, too many other changes explain as much.
DRAWN: Final = (EventKind.INITIAL, EventKind.RANDOM, EventKind.BATCH, EventKind.INPUT)
GENERATORS: Final = {"random.python": "random.", "random.numpy": "numpy.random."}
TIMED: Final = OF_THE_RUN | {EventKind.METRIC}
UPDATES: Final = frozenset((EventKind.PARAMETERS, EventKind.OPTIMIZER))
SEEDS: Final = frozenset((SuspectKind.UNSEEDED, SuspectKind.SEED))
# A script may compute its seed from these.
ORIGINS: Final = frozenset(
    (SuspectKind.ENTROPY, SuspectKind.PROCESS, SuspectKind.ADDRESS, SuspectKind.CLOCK)
)
# These may give the same answer in two runs, so on their own they are only possible causes.
POSSIBLE: Final = frozenset(
    (SuspectKind.ADDRESS, SuspectKind.THREAD, SuspectKind.CHILD, SuspectKind.CLOCK)
)
ORDER: Final = tuple(SuspectKind)
# The harness reports the order of arrival at a queue only at some counts of pieces. A report may
# therefore be up to `TOLD_LATE` steps later than the piece that changed the order.
ARRIVALS: Final = frozenset(("queue.Queue.get", "multiprocessing.Queue.get"))
TOLD_LATE: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownLines:
    """The lines that the evidence names: overrides, seeds, sources and started processes.

    `changed_seeds` are the seeds to which a commit gives a different number from its base. The
    former value of each is the base's number.
    """

    overrides: tuple[Override, ...] = ()
    changed_seeds: tuple[Override, ...] = ()
    sources: tuple[Source, ...] = ()
    children: tuple[UnattestedChild | WeakerChild, ...] = ()


NOTHING_KNOWN: Final = KnownLines()


def suspects_of(
    first: Event,
    known: KnownLines,
    *,
    numbers_differ: bool,
    ranks: tuple[int, ...] = (),
    later: bool = False,
) -> tuple[Suspect, ...]:
    """Return at most `SHOWN_SUSPECTS` lines that would explain the event `first`, likeliest first.

    Lines that are only possible causes appear where no better ones are known. `ranks` are those
    that differ first. Their lines rank before other ranks' lines, which may have sent them the
    difference. `numbers_differ` says that numeric settings of an optimizer differ, which the script
    computed. `later` says that the initial weights may belong to an optimizer that starts after
    others stepped, so any line that ran before may explain them.
    """
    # Stopping rules, speeds and schedules use the clock, so there it is a likely cause. Elsewhere a
    # script mostly reads the clock to measure a duration.
    timed = first.kind in TIMED or (numbers_differ and first.kind in UPDATES)
    every = (
        *_of_overrides(first, known.overrides),
        *_of_changed_seeds(first, known.changed_seeds),
        *_of_sources(first, known.sources, timed=timed),
        *_of_children(first, known.children),
    )
    fitting = [candidate for candidate in every if _fits(candidate, first)]
    if later:
        open_ = {"possible": True, "used": USED_LATER}
        fitting = [candidate.model_copy(update=open_) for candidate in fitting]
    fitting = [candidate for candidate in fitting if not _is_part_of_another(candidate, fitting)]
    ranked = sorted(dict.fromkeys(fitting), key=lambda candidate: _rank(candidate, first, ranks))
    likely = [candidate for candidate in ranked if not candidate.possible]
    likely = [*_leading_to_a_seed(ranked), *likely]
    if any(candidate.kind is SuspectKind.SEED for candidate in likely):
        # A seed that differs was computed from one of these, so they belong beside it.
        likely += [
            candidate for candidate in ranked if candidate.possible and candidate.kind in ORIGINS
        ]
    places: dict[tuple[SuspectKind, str], Suspect] = {}
    for suspect in likely or ranked:
        places.setdefault((suspect.kind, suspect.place), suspect)
    return tuple(places.values())[:SHOWN_SUSPECTS]


def _leading_to_a_seed(ranked: list[Suspect]) -> list[Suspect]:
    """Return the origins of seeds in lines that call the function in which a seed is given.

    Such a line computes the seed and passes it on, so it is no longer only a possible cause.
    """
    callers = {
        frame.partition(" ")[0]
        for suspect in ranked
        if suspect.kind is SuspectKind.SEED
        for frame in suspect.stack
    }
    return [
        suspect.model_copy(update={"possible": False})
        for suspect in ranked
        if suspect.kind in ORIGINS and suspect.place in callers
    ]


def used_in(event: Event) -> str:
    """Return where the effect of a line shows first, such as `step 1's batch`."""
    what = USES[event.kind]
    if event.kind in {EventKind.STRUCTURE, EventKind.INITIAL, EventKind.STEPS}:
        return what
    return what if event.step is None else f"step {event.step}'s {what}"


USED_LATER: Final = "weights that an optimizer starts from"
USES: Final = {
    EventKind.ENVIRONMENT: "the environment",
    EventKind.STEPS: "the number of steps",
    EventKind.SAMPLES: "number of samples",
    EventKind.ROWS: "number of rows",
    EventKind.TURNS: "order of updates",
    EventKind.PASSES: "number of backward passes",
    EventKind.STRUCTURE: "the optimizer's parameters",
    EventKind.INITIAL: "the initial weights",
    EventKind.RANDOM: "random state",
    EventKind.BATCH: "batch",
    EventKind.INPUT: "input of the model",
    EventKind.WEIGHTS: "weights",
    EventKind.LOSS: "forward pass",
    EventKind.BACKWARD: "backward pass",
    EventKind.GRADIENTS: "gradients",
    EventKind.PARAMETERS: "update",
    EventKind.OPTIMIZER: "optimizer state",
    EventKind.METRIC: "metric",
    EventKind.METRIC_MISSING: "metric",
    EventKind.STATE: "the final state",
}


def _of_overrides(first: Event, overrides: Iterable[Override]) -> Iterator[Suspect]:
    for override in overrides:
        if override.seeds:
            unseeded = override.kind is OverrideKind.ENTROPY
            kind = SuspectKind.UNSEEDED if unseeded else SuspectKind.SEED
            yield _of_override(first, override, kind, override.before, "")
        else:
            before, after = override.before or "unset", override.after or "unset"
            yield _of_override(first, override, SuspectKind.SETTING, before, after)


def _of_changed_seeds(first: Event, seeds: Iterable[Override]) -> Iterator[Suspect]:
    if first.kind in DRAWN:
        for seed in seeds:
            yield _of_override(first, seed, SuspectKind.SEED, seed.before, seed.after)


def _of_override(
    first: Event, override: Override, kind: SuspectKind, before: str, after: str
) -> Suspect:
    return Suspect(
        place=override.place,
        kind=kind,
        call=override.name,
        step=override.step,
        before=before,
        after=after,
        used=used_in(first),
        stack=override.stack,
        code_place=CodePlace.known(override.file, override.line),
        rank=override.rank,
    )


def _of_sources(first: Event, sources: Iterable[Source], *, timed: bool) -> Iterator[Suspect]:
    clocks = [source for source in sources if source.kind is SourceKind.CLOCK]
    others = (source for source in sources if source.kind is not SourceKind.CLOCK)
    # A duration is measured by two lines. The later one is nearer to its use, so clocks are
    # reversed.
    for source in (*others, *reversed(clocks)):
        kind = SuspectKind(source.kind.value)
        clock = kind is SuspectKind.CLOCK and timed
        turned = source.kind in {SourceKind.PRECISION, SourceKind.READ}
        yield Suspect(
            place=source.place,
            kind=kind,
            call=source.call,
            step=source.step,
            before=source.before if turned else "",
            after=source.after if turned else "",
            used=used_in(first),
            possible=(kind in POSSIBLE and not clock) or _is_open(source, first),
            stack=source.stack,
            code_place=CodePlace.known(source.file, source.line),
            rank=source.rank,
        )


def _is_open(source: Source, first: Event) -> bool:
    """Return whether the line may have done the same in both runs at the first difference.

    A thread that draws is no difference by itself: with one generator state, the results may still
    arrive in a different order. An order of completion that is reported after the first difference
    may have diverged only then.
    """
    if source.kind is SourceKind.DRAW:
        return first.kind is not EventKind.RANDOM
    late = first.step is not None and source.step > first.step
    return late and source.kind is SourceKind.COMPLETION


def _of_children(
    first: Event, children: Iterable[UnattestedChild | WeakerChild]
) -> Iterator[Suspect]:
    for child in children:
        yield Suspect(
            place=child.place,
            kind=SuspectKind.CHILD,
            call=child.command,
            step=1,
            used=used_in(first),
            possible=True,
            code_place=CodePlace.known(child.file, child.line),
            rank=child.rank,
        )


def _fits(suspect: Suspect, first: Event) -> bool:
    """Return whether the line ran early enough, and can change this kind of event at all."""
    # A script may compute a step's metric after that step's update, hence one step later.
    late = 1 if first.kind is EventKind.METRIC else 0
    if suspect.kind is SuspectKind.COMPLETION and suspect.call in ARRIVALS:
        late = TOLD_LATE
    if first.step is not None and suspect.step > first.step + late:
        return False
    kind = suspect.kind
    if first.kind not in CAN_CHANGE.get(kind, EVERY):
        return False
    if kind is SuspectKind.DRAW and first.kind is EventKind.RANDOM:
        # A draw changes the state of its own generator only.
        generator = first.name.removesuffix(f".{optimizer_of(first.name)}")
        return suspect.call.startswith(GENERATORS.get(generator, "-"))
    return True


def _is_part_of_another(suspect: Suspect, fitting: list[Suspect]) -> bool:
    """Return whether a different suspect already covers this one, with more detail.

    A seed and its origin are often in one line. A thread that draws implies the line that starts
    it.
    """
    if suspect.kind in ORIGINS:
        return any(other.kind in SEEDS and other.place == suspect.place for other in fitting)
    drawing = any(other.kind is SuspectKind.DRAW for other in fitting)
    return suspect.kind is SuspectKind.THREAD and drawing


def _rank(suspect: Suspect, first: Event, ranks: tuple[int, ...]) -> tuple[object, ...]:
    kinds = list(ORDER)
    if first.kind in TIMED:
        kinds = [SuspectKind.CLOCK, *kinds]
    elif first.kind in ARITHMETIC:
        # Here a change of arithmetic is a more direct cause than a random draw.
        kinds = [SuspectKind.SETTING, SuspectKind.PRECISION, *kinds]
    elif first.kind is EventKind.RANDOM:
        kinds = [SuspectKind.DRAW, *kinds]
    if suspect.changed_file and first.kind not in {EventKind.INITIAL, EventKind.STRUCTURE}:
        # This is no guess: the file that the line read was different in each run.
        kinds = [SuspectKind.READ, *kinds]
    # Among lines of one kind, the one that ran last before the difference is the nearest to it.
    elsewhere = bool(ranks) and suspect.rank not in ranks
    return suspect.possible, elsewhere, kinds.index(suspect.kind), -suspect.step
