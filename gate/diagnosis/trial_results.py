"""What settings that were tried say of the cause: which class they prove, and whom they acquit."""

from __future__ import annotations

from typing import Final

from gate.comparison.differences import EventKind
from gate.diagnosis.determinism_causes import CauseClass
from gate.diagnosis.diagnosis import Diagnosis, Suspect, SuspectKind
from gate.evidence.tried import FILLS, TriedSetting, TriedSettings
from gate.settings.trials import Setting

WORKERS: Final = (Setting.ONE_WORKER, Setting.NO_LOADER_WORKERS)
RACES: Final = (Setting.ONE_THREAD, Setting.ONE_WORKER, Setting.LAUNCH_BLOCKING)
DATA: Final = (EventKind.BATCH, EventKind.INPUT)
ARITHMETIC: Final = (EventKind.LOSS, EventKind.BACKWARD, EventKind.GRADIENTS, EventKind.PARAMETERS)
OTHERWISE: Final = " If that is not it: "
REMEDIES: Final = {
    Setting.ONE_THREAD: (
        "Set determinism.threads to 1 in repro-gate.yml, or add in a fixed order in what runs in "
        "several threads."
    ),
    Setting.ONE_WORKER: (
        "Take results of a pool in the order in which they were asked for (map), and not as they "
        "are done (as_completed, imap_unordered, a shared sum)."
    ),
    Setting.NO_LOADER_WORKERS: (
        "Seed what a worker draws from by its own number (worker_init_fn), and share nothing "
        "between workers."
    ),
    Setting.LAUNCH_BLOCKING: (
        "Let a stream wait for the one whose results it reads (wait_stream, record_stream)."
    ),
}
WRITE_FIRST: Final = (
    "Write memory before it is read: zeros or full instead of empty. A fill only hides this."
)


def proved_by(
    tried: TriedSettings, diagnosis: Diagnosis, *, threads_alive: bool
) -> CauseClass | None:
    """The class that one setting proves, where chance hardly makes it look so; else None.

    `threads_alive`: the script's own threads ran in the first step that differs. Then the order of
    data and a race of threads both fit what differs in a model's input.
    """
    one, kind = tried.helping, diagnosis.kind
    if one is None or not tried.is_certain(one):
        return None
    if one.setting in FILLS:
        return CauseClass.UNINITIALISED_MEMORY if one.follows else None
    if one.setting not in RACES:
        return None
    if kind in ARITHMETIC:
        return CauseClass.THREAD_RACE
    ordered = one.setting is Setting.ONE_WORKER and kind in DATA and not threads_alive
    return CauseClass.DATA_ORDER if ordered else None


def with_tried(
    diagnosis: Diagnosis, tried: TriedSettings, *, threads_alive: bool = False
) -> Diagnosis:
    """The diagnosis with what was tried.

    Where workers that cannot overtake each other make runs agree, a line that draws from entropy or
    a clock has set their pace, and no more: it stays as a possible one. A line that takes results
    as they are done is what the workers race for.
    """
    one = tried.helping
    update: dict[str, object] = {"tried": tried}
    if one is None or not tried.is_certain(one):
        return diagnosis.model_copy(update=update)
    proved = proved_by(tried, diagnosis, threads_alive=threads_alive)
    raced = any(suspect.kind is SuspectKind.COMPLETION for suspect in diagnosis.likely)
    acquits = one.setting in WORKERS and bool(diagnosis.likely)
    if acquits:
        suspects = tuple(map(_acquitted, diagnosis.suspects))
        left = tuple(sorted(suspects, key=lambda suspect: suspect.possible))
        kept = diagnosis.cause_class if raced else None
        update |= {"suspects": left, "decides": "", "cause_class": kept or proved}
    elif diagnosis.cause_class in {None, CauseClass.OPERATOR} and (
        one.setting is not Setting.ONE_THREAD or diagnosis.cause_class is None
    ):
        # a tensor that another thread changes looks like an operator that is nondeterministic
        update["cause_class"] = proved or diagnosis.cause_class
    remedy = remedy_of(one)
    if remedy and (acquits or not diagnosis.likely):
        # the likeliest of the rest: a third guess helps nobody
        rest = diagnosis.remedy.partition(OTHERWISE)[0]
        update["remedy"] = f"{remedy}{OTHERWISE}{rest[:1].lower()}{rest[1:]}"
    return diagnosis.model_copy(update=update)


def _acquitted(suspect: Suspect) -> Suspect:
    raced = suspect.kind is SuspectKind.COMPLETION
    return suspect if raced else suspect.model_copy(update={"possible": True})


def remedy_of(one: TriedSetting) -> str:
    """What to do about a cause that this setting shows; empty where nothing is known."""
    if one.setting in FILLS:
        return WRITE_FIRST if one.follows else ""
    return REMEDIES.get(one.setting, "")
