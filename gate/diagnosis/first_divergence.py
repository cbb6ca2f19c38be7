"""Where two results first differ, and what class of cause that points to.

The comparison has put everything that differs into one order: the earliest optimizer step counts,
and within it the order in which one thing causes the next. `causes.py` says what each points to,
for two runs of one commit and for a commit against a baseline. What is known of lines is joined to
it: one that gave no seed, or that overrode a setting, is a better answer than a class.
"""

from __future__ import annotations

from gate.diagnosis.causes import Cause, Question, cause_of
from gate.records.comparison import Comparison, EventKind
from gate.records.observed.overrides import Override
from gate.records.verdict import CodePlace, Diagnosis, Suspect, SuspectKind

KEEP_STILL = "Change nothing on the machine while the gate runs, and check what the script sets."
GO_BACK = "Go back to the environment of the baseline, or commit a new baseline with the update."
SHOWN_EVENTS = 6
SHOWN_SUSPECTS = 3
# what a setting of strict mode changes; what comes before it has other causes
ARITHMETIC = (
    EventKind.LOSS,
    EventKind.GRADIENTS,
    EventKind.PARAMETERS,
    EventKind.OPTIMIZER,
    EventKind.METRIC,
    EventKind.STATE,
)
WHY_SETTINGS = {
    "cudnn_benchmark": "cuDNN then picks the algorithm that it measured as fastest, anew in each "
    "run",
    "attention_cudnn": "the backward pass of cuDNN's attention adds in no fixed order",
}
SHOWN_SETTINGS = 4


def diagnose_repeat(
    comparison: Comparison, overrides: tuple[Override, ...], *, one_cpu_thread: bool
) -> Diagnosis | None:
    """The first divergence of two runs of one commit, or None when they are equal.

    `overrides` are what the script did that may explain it, each with its line: settings
    overridden, and seeds that the runs do not share or that came from outside.
    """
    if not comparison.differs:
        return None
    # two runs of one call on another machine or driver: no line of the script explains that
    if comparison.environment:
        return _environment(comparison, "between the runs", KEEP_STILL)
    question = Question(drift=False, one_cpu_thread=one_cpu_thread)
    return _diagnosis(comparison, question, _suspects(comparison, overrides))


def diagnose_drift(comparison: Comparison) -> Diagnosis | None:
    """The first divergence of a commit from what it is judged by, or None when they are equal."""
    if not comparison.differs:
        return None
    if comparison.environment:
        return _environment(comparison, "since the baseline was recorded", GO_BACK)
    return _diagnosis(comparison, Question(drift=True), ())


def _environment(comparison: Comparison, when: str, remedy: str) -> Diagnosis:
    return Diagnosis(
        first_step=comparison.first_step,
        kind=EventKind.ENVIRONMENT,
        subject=comparison.environment[0].part,
        cause=f"the environment moved {when}: {', '.join(comparison.moved[:SHOWN_EVENTS])}",
        remedy=remedy,
    )


def _diagnosis(
    comparison: Comparison, question: Question, suspects: tuple[Suspect, ...]
) -> Diagnosis | None:
    first = comparison.first
    if first is None:
        return None
    cause = cause_of(first, comparison, question)
    settings = comparison.optimizer_settings[:SHOWN_SETTINGS] if question.drift else ()
    return Diagnosis(
        first_step=first.step,
        kind=first.kind,
        subject=first.name,
        cause=cause.sentence,
        details=" ".join(filter(None, (_afterwards(comparison), _gap(comparison)))),
        remedy=_remedy(cause, suspects),
        suspects=suspects,
        optimizer_settings=settings,
    )


def _remedy(cause: Cause, suspects: tuple[Suspect, ...]) -> str:
    """A known line goes before a list of what to look for."""
    if not suspects:
        return cause.remedy
    first = suspects[0]
    known = f"Give {first.place} a constant seed."
    if first.kind is SuspectKind.SETTING:
        why = f": {WHY_SETTINGS[first.call]}" if first.call in WHY_SETTINGS else ""
        known = f"Leave {first.call} {first.before} at {first.place}{why}."
    return f"{known} If that is not it: {cause.remedy[:1].lower()}{cause.remedy[1:]}"


def _afterwards(comparison: Comparison) -> str:
    """What followed, in causal order: a cause explains what comes after it."""
    later = [event for event in comparison.events[1:] if event.kind is not EventKind.STATE]
    events = [f"{event.name} {event.where}" for event in later[:SHOWN_EVENTS]]
    return f"After it: {', '.join(events)}." if events else ""


def _gap(comparison: Comparison) -> str:
    """Whether an earlier divergence may lie between sampled steps."""
    first = comparison.first
    step = None if first is None else first.step
    seen = [
        event.equal_until
        for event in comparison.events
        if event.equal_until is not None and step is not None and event.equal_until < step - 1
    ]
    if not seen:
        return ""
    return (
        f"Some fingerprints were last recorded at step {min(seen)}; a higher "
        "record.overhead_budget records more."
    )


def _suspects(comparison: Comparison, overrides: tuple[Override, ...]) -> tuple[Suspect, ...]:
    """The lines that did it, up to the first divergence; settings explain arithmetic alone."""
    first = comparison.first
    if first is None or first.kind is EventKind.STEPS:
        return ()
    # a line that ran after the first difference cannot have caused it
    before = [
        override for override in overrides if first.step is None or override.step <= first.step
    ]
    # a switch of arithmetic cannot change a batch or a random state, so it does not explain them
    settings = [override for override in before if not override.seeds and first.kind in ARITHMETIC]
    suspects = dict.fromkeys(
        map(_suspect, (*settings, *(override for override in before if override.seeds)))
    )
    return tuple(suspects)[:SHOWN_SUSPECTS]


def _suspect(override: Override) -> Suspect:
    place = CodePlace.known(override.file, override.line)
    if override.seeds:
        return Suspect(
            place=override.place,
            kind=SuspectKind.SEED,
            call=override.name,
            step=override.step,
            code_place=place,
        )
    return Suspect(
        place=override.place,
        kind=SuspectKind.SETTING,
        call=override.name,
        step=override.step,
        before=override.before or "unset",
        after=override.after or "unset",
        code_place=place,
    )
