"""Where two runs part first, and what class of cause that order of events points to.

Each observed stream has a first step at which it differs. The earliest step counts, and within it
the order in which one stream causes the next: structure, initial weights, random states, batch,
loss, gradients, parameters, the optimizer's state. `causes.py` says what each of them points to.
"""

from __future__ import annotations

from gate.diagnosis.causes import Event, cause_of
from gate.records.comparison import Comparison
from gate.records.verdict import Diagnosis

SHOWN_EVENTS = 6


def diagnose(comparison: Comparison) -> Diagnosis | None:
    """The first divergence of two strict runs, or None when they are equal."""
    if not comparison.differs:
        return None
    if comparison.environment:
        return _environment(comparison)
    if any("optimizer steps" in fault for fault in comparison.step_faults):
        return _step_count(comparison)
    events = _events(comparison)
    return _at_step(comparison, events) if events else _end_state(comparison)


def _environment(comparison: Comparison) -> Diagnosis:
    change = comparison.environment[0]
    return Diagnosis(
        first_step=comparison.first_step,
        stream="environment",
        subject=change.part,
        cause=f"the environment moved between the runs: {change.part} {change.expected} became "
        f"{change.observed}",
        remedy="Keep the machine to itself while the gate runs, and check what the script sets.",
    )


def _step_count(comparison: Comparison) -> Diagnosis:
    return Diagnosis(
        first_step=comparison.first_step,
        stream="steps",
        subject=comparison.step_faults[0],
        cause="the runs did not take the same number of optimizer steps",
        remedy="Look for a stopping rule that depends on time, or on a metric that differs.",
    )


def _end_state(comparison: Comparison) -> Diagnosis:
    names = [delta.name for delta in comparison.tensors]
    names += [fault.metric for fault in comparison.series]
    subject = names[0]
    return Diagnosis(
        first_step=None,
        stream="state",
        subject=subject,
        cause="every observed step is equal, but the state at the end is not",
        remedy="Look at what runs after the last step: averaging, evaluation, writing the file.",
    )


def _at_step(comparison: Comparison, events: tuple[Event, ...]) -> Diagnosis:
    first = min(events, key=lambda event: (event.step, event.place))
    cause = cause_of(first, events, comparison.compared_streams)
    return Diagnosis(
        first_step=first.step,
        stream=first.kind,
        subject=first.name,
        cause=cause.sentence + _afterwards(first, events) + _unobserved(first, events),
        remedy=cause.remedy,
    )


def _afterwards(first: Event, events: tuple[Event, ...]) -> str:
    """What followed, in causal order: a cause explains what comes after it."""
    later = sorted(events, key=lambda event: (event.step, event.place))
    told = [f"{event.name} at step {event.step}" for event in later if event != first]
    return f". After it: {', '.join(told[:SHOWN_EVENTS])}" if told else ""


def _unobserved(first: Event, events: tuple[Event, ...]) -> str:
    """Whether thinning leaves room for an earlier divergence of a stream that came before."""
    seen = [
        event.equal_until
        for event in events
        if event.equal_until is not None and event.equal_until < first.step - 1
    ]
    if not seen:
        return ""
    return (
        f". Some streams were last observed at step {min(seen)}; a higher record.overhead_budget "
        "observes more steps"
    )


def _events(comparison: Comparison) -> tuple[Event, ...]:
    """Where each stream first differs; losses and other metrics are streams too."""
    found = [
        Event(name=stream.stream, step=stream.first_step, equal_until=stream.equal_until)
        for stream in comparison.streams
    ]
    steps: dict[str, int] = {}
    for delta in comparison.metrics:
        steps[delta.metric] = min(delta.step, steps.get(delta.metric, delta.step))
    found += [Event(name=name, step=step) for name, step in steps.items()]
    return tuple(found)
