"""Makes two equal runs, then one run for each thing that must not matter, and compares them.

No baseline judges. A shaken run is isolated like every other training. Nothing of it is kept,
because the code can find out that the run is a shaken one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from gate.comparison.measurements import (
    MAX_TEXT,
    ReadingLine,
    ShakenThing,
    ShakenTraining,
    ShakeResult,
    provenance_of,
)
from gate.diagnosis.growth import reading_lines, varied_words
from gate.errors import EvidenceError, GateError, RunError, SettingsError
from gate.evidence.run_evidence import RunEvidence
from gate.isolation.modes import Isolation
from gate.pipelines.adapters import Adapters
from gate.pipelines.comparisons import against_run
from gate.pipelines.prepared import prepare
from gate.pipelines.trainings import Trainings
from gate.settings.gate_settings import GateSettings
from gate.settings.variations import BY_NAME, GPU_INDEX, VARIATIONS, Variation
from gate.system.machine import GpusSeen
from gate.training.plan import plan_record, plan_shaken
from gate.training.runs import PlannedRun, RunMode, label_of
from gate.verdict.request import GateRequest

SEPARATOR = ","
LIST_HINT = "`repro-gate shake --list` lists all names."
SHOWN_CHARACTERS = 60
VISIBLE = "CUDA_VISIBLE_DEVICES"
PAIR = 2
# a number, or the identifier of a GPU or of a MIG instance; other names are not reordered
CARD = re.compile(r"[0-9]{1,3}|(?:GPU|MIG)-[0-9a-f-]{1,60}", re.ASCII)


def chosen_variations(only: str | None, skip: str | None) -> tuple[Variation, ...]:
    """Return all variations, or those that the two options leave, in the order of the list.

    Raises `SettingsError` for both options together, for an unknown name, and if none is left.
    """
    if only is not None and skip is not None:
        raise SettingsError(
            "--only and --skip cannot be combined", hint="Name what is left with --only."
        )
    if only is not None:
        named = _names("--only", only)
        return tuple(variation for variation in VARIATIONS if variation.name in named)
    left_out = frozenset[str]() if skip is None else _names("--skip", skip)
    chosen = tuple(variation for variation in VARIATIONS if variation.name not in left_out)
    if not chosen:
        raise SettingsError("--skip names every variation: nothing is left", hint=LIST_HINT)
    return chosen


def _names(option: str, text: str) -> frozenset[str]:
    names = [name.strip() for name in text.split(SEPARATOR)]
    if not any(names):
        raise SettingsError(f"{option} names no variation", hint=LIST_HINT)
    for name in filter(None, names):
        if name not in BY_NAME:
            near = get_close_matches(name, BY_NAME, n=1)
            meant = f"Did you mean {near[0]}? " if near else ""
            raise SettingsError(
                f"{option} {name[:SHOWN_CHARACTERS]}: there is no such variation",
                hint=f"{meant}{LIST_HINT}",
            )
    return frozenset(filter(None, names))


def checked_budget(seconds: float | None) -> float | None:
    """Return the budget as given; raise `SettingsError` if it is not a positive number."""
    if seconds is not None and not 0 < seconds < float("inf"):
        raise SettingsError(
            f"--budget {seconds:g}: must be more than 0 seconds",
            hint="Leave it out to try everything.",
        )
    return seconds


def why_not(variation: Variation, settings: GateSettings, reference: RunEvidence) -> str:
    """Return why the thing cannot be varied for this training, or an empty text.

    The harness may find further reasons.
    """
    train = settings.train
    for name in variation.owned_by_user:
        for key, names in (("train.env", train.env), ("train.pass_env", train.pass_env)):
            if name in names:
                return f"{key} sets {name}, so it is part of the training"
    if variation.on_gpu and not reference.environment.on_gpu:
        return "the training ran on the CPU"
    return ""


def cards_of(gpus: GpusSeen, isolation: Isolation, host: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs of a run, as CUDA_VISIBLE_DEVICES names them; see `why_one_order`."""
    if isolation.in_container:
        return ()
    named = host.get(VISIBLE)
    if named is None:
        return tuple(map(str, range(len(gpus.gpus))))
    cards = tuple(card.strip() for card in named.split(SEPARATOR))
    return cards if all(map(CARD.fullmatch, cards)) else ()


def why_one_order(variation: Variation, cards: tuple[str, ...], gpus: GpusSeen) -> str:
    """Return why the GPUs cannot be listed in a different order, or an empty text."""
    if variation.name != GPU_INDEX:
        return ""
    if len(cards) < PAIR:
        return "the training is given one GPU, or its container chooses"
    if len(set(gpus.names)) > 1:
        return "the machine's GPUs are of different models"
    return ""


# room for a machine that is kept busy as a variation, and for the start, which takes a while anyway
TIMES_AS_LONG = 10.0
LEAST_SECONDS = 120.0
OUT_OF_BUDGET = "out of budget: --budget leaves no time for another run"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The arguments of a call; without a budget all variations are tried."""

    variations: tuple[Variation, ...]
    budget_seconds: float | None = None


def shake(request: GateRequest, adapters: Adapters, asked: Asked) -> ShakenTraining:
    """Train twice, then once for each variation; a run that differs from the first depends on it.

    Raises the error of a failed run without a variation, because then there is no reference.
    """
    with prepare(request, adapters) as prepared:
        trainings = Trainings(prepared)
        shaking = _Shaking(trainings, asked)
        pair = tuple(trainings.run(planned) for planned in plan_record(PAIR))
        between = against_run(pair[0], pair[1], request.settings)
        repeatable = between.numerically_equal
        # if two plain runs differ, no difference can be attributed to a variation
        things = shaking.things(pair[0]) if repeatable else ()
        runs = pair
        if any(thing.depends for thing in things):
            # one more run without a variation: a training that rarely differs by itself must not be
            # taken for one that depends on the thing varied at that time
            runs = (*pair, trainings.run(_plain(len(pair) + 1)))
            between = against_run(pair[0], runs[-1], request.settings)
            repeatable = between.numerically_equal
        evidence = trainings.ended.evidence(runs)
        isolation = trainings.ended.isolation.described
    return ShakenTraining(
        provenance=provenance_of(evidence, isolation),
        repeatable=repeatable,
        first=None if repeatable else between.first,
        things=things,
        budget_seconds=asked.budget_seconds,
    )


def _plain(number: int) -> PlannedRun:
    return PlannedRun(label=label_of(RunMode.STRICT, number), mode=RunMode.STRICT)


class _Shaking:
    """The shaken runs of one call, within its budget of time."""

    def __init__(self, trainings: Trainings, asked: Asked) -> None:
        self._trainings = trainings
        self._asked = asked
        self._clock = trainings.prepared.adapters.clock
        self._began = self._clock.now()

    def things(self, reference: RunEvidence) -> tuple[ShakenThing, ...]:
        """Return the result of each variation."""
        adapters = self._trainings.prepared.adapters
        gpus = adapters.gpus() if reference.environment.on_gpu else GpusSeen()
        return tuple(
            self._thing(variation, reference, gpus) for variation in self._asked.variations
        )

    def _thing(self, variation: Variation, reference: RunEvidence, gpus: GpusSeen) -> ShakenThing:
        prepared = self._trainings.prepared
        settings = prepared.request.settings
        cards = cards_of(gpus, prepared.isolation, prepared.adapters.host)
        reason = why_not(variation, settings, reference) or why_one_order(variation, cards, gpus)
        if not reason and not self._time_for(reference):
            reason = OUT_OF_BUDGET
        if reason:
            return _thing(variation, ShakeResult.NOT_TRIED, reason=reason)
        try:
            planned = plan_shaken(variation, settings, cards, _most_seconds(reference))
            run = self._trainings.run(planned)
        # a failure under a variation is a dependency too, because plain runs succeed
        except (RunError, EvidenceError) as fault:
            readings = _raised(fault)
            return _thing(variation, ShakeResult.FAILS, reason=fault.message, readings=readings)
        return self._compared(variation, reference, run)

    def _time_for(self, reference: RunEvidence) -> bool:
        budget = self._asked.budget_seconds
        spent = (self._clock.now() - self._began).total_seconds()
        return budget is None or spent + reference.run.wall_seconds <= budget

    def _compared(
        self, variation: Variation, reference: RunEvidence, run: RunEvidence
    ) -> ShakenThing:
        varied, why = varied_words(variation, run)
        comparison = against_run(reference, run, self._trainings.prepared.request.settings)
        # the harness has to confirm the variation; an equal result proves nothing without it
        if not varied:
            return _thing(variation, ShakeResult.NOT_TRIED, reason=why, run=run)
        # an environment that moved may explain a difference, so the variation is not blamed
        if comparison.environment:
            why = f"the run had a different environment: {', '.join(comparison.moved)}"
            return _thing(variation, ShakeResult.NOT_TRIED, reason=why, run=run)
        if comparison.numerically_equal:
            return _thing(variation, ShakeResult.EQUAL, varied=varied, run=run)
        readings = reading_lines(variation, run, comparison.first)
        return _thing(
            variation, ShakeResult.DIFFERS, varied=varied, run=run, readings=readings
        ).model_copy(update={"first": comparison.first})


def _most_seconds(reference: RunEvidence) -> float:
    """Return the time limit of a shaken run, because a training can hang under a variation."""
    return max(LEAST_SECONDS, TIMES_AS_LONG * reference.run.wall_seconds)


def _raised(fault: GateError) -> tuple[ReadingLine, ...]:
    """Return the line that raised in a failed run, if it is known."""
    if not isinstance(fault, RunError) or not fault.file:
        return ()
    return (ReadingLine(place=f"{fault.file}:{fault.line}", call="", step=1),)


def _thing(
    variation: Variation,
    result: ShakeResult,
    *,
    varied: str = "",
    reason: str = "",
    readings: tuple[ReadingLine, ...] = (),
    run: RunEvidence | None = None,
) -> ShakenThing:
    return ShakenThing(
        name=variation.name,
        changes=variation.changes,
        varied=varied,
        result=result,
        readings=readings,
        reason=reason[:MAX_TEXT],
        remedy=variation.remedy,
        wall_seconds=None if run is None else run.run.wall_seconds,
    )
