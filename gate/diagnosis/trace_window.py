"""How far a diagnostic run has to go, whether it repeated its model, and what a trace adds.

A diagnostic run repeats a training with a trace or a changed setting. It stops as soon as the first
difference is in it, because tracing is slow.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from gate.comparison.differences import Comparison, Event, EventKind
from gate.diagnosis.causes import DRIFT, OF_ITSELF, OF_THE_RUN, last_recorded
from gate.diagnosis.diagnosis import CauseClass, Diagnosis
from gate.diagnosis.trace_alignment import OTHER_RANKS
from gate.evidence.run_evidence import MetricSeries, RunEvidence
from gate.evidence.trace import Claim, Phase, TraceFinding
from gate.training.runs import EarlyEnd

# This near to the start, the trace begins with the process, so it includes what happens before step
# 1.
NEAR_THE_START: Final = 3
# The script decides when it writes these, most often after the step that they count.
WRITTEN: Final = (EventKind.METRIC, EventKind.METRIC_MISSING)
METRICS: Final = (*WRITTEN, EventKind.LOSS)
# The captured state also shows these, where no fingerprint of the step was taken.
IN_THE_STATE: Final = (
    *(EventKind.BACKWARD, EventKind.GRADIENTS, EventKind.PARAMETERS, EventKind.OPTIMIZER),
)
# These claims prove a cause, so they replace the diagnosis's guess.
SHOWN: Final = frozenset(
    (Claim.UNINITIALISED, Claim.NONDETERMINISTIC_OPERATOR, Claim.ARRIVAL, Claim.COLLECTIVE)
)
# A loader's work comes after these, or they describe it themselves.
BEFORE_DATA: Final = OF_ITSELF | {EventKind.RANDOM, EventKind.BATCH}
# The fingerprint that precedes the event and shows that backward gave equal gradients.
AFTER_BACKWARD: Final = {
    EventKind.GRADIENTS: "backward",
    EventKind.PARAMETERS: "gradients",
    EventKind.OPTIMIZER: "gradients",
}
# A comment has no room for a longer cause beside its other answers.
MOST_CAUSE_WORDS: Final = 20
OPTIMIZER: Final = re.compile(r"state(?:\.rank(\d{1,6}))?/optimizer/(\d{1,6})/", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """How far a run has to go to include the first difference.

    The trace begins with step `first`, and the difference is visible by step `last`. `written`: the
    script writes what differs only after that step. `whole`: only a whole run shows the difference.
    """

    first: int
    last: int
    written: bool = False
    whole: bool = False

    def end(self, plain: RunEvidence | None) -> EarlyEnd | None:
        """Return where to stop such a run, None for a whole run.

        `plain` is a whole run of the same training, from which the number of optimizers is taken.
        """
        if self.whole:
            return None
        optimizers = (1,) if plain is None else optimizers_of(plain)
        return EarlyEnd(step=self.last, optimizers=optimizers, written=self.written)


def reach_of(comparison: Comparison, runs: tuple[RunEvidence, ...]) -> Reach:
    """Return how far runs must go to show the first difference; `runs` are those already made.

    They go from the last step seen equal to the first that differs. Differences without a step,
    such as one in the end state, need the last step.
    """
    total = max(1, comparison.steps_expected, comparison.steps_observed)
    event = comparison.first
    written = event is not None and event.kind in WRITTEN
    if event is not None and written:
        first, last = _steps_of_metric(event, runs, total)
    else:
        last = min(comparison.first_step or total, total)
        seen = [
            event.equal_until
            for event in comparison.events
            if event.equal_until is not None and event.equal_until < last
        ]
        first = min([*seen, last - 1]) + 1
        if comparison.unrecorded_from is not None:
            first = min(first, comparison.unrecorded_from)
    return Reach(
        first=1 if last <= NEAR_THE_START else max(1, first),
        last=last,
        written=written,
        whole=last >= total,
    )


def _steps_of_metric(event: Event, runs: tuple[RunEvidence, ...], total: int) -> tuple[int, int]:
    """Return the steps between a metric's last equal number and its first different one.

    If a metric counts something other than steps, such as epochs, the steps are estimated: its rows
    are assumed to come at regular intervals.
    """
    series = [
        series_found for run in runs if (series_found := _series(event.name, run)) is not None
    ]
    rows = sorted({step for series_item in series for step in series_item.points.steps})
    if event.own_step is None or not rows:
        return 1, total
    place = bisect_left(rows, event.own_step)
    if event.step is None:
        first = total * place // len(rows) + 1
        last = -(-total * (place + 1) // len(rows))
    else:
        last = event.step
        first = rows[place - 1] + event.step - event.own_step + 1 if place else 1
    last = max(1, min(last, total))
    return min(first, last), last


def _series(name: str, run: RunEvidence) -> MetricSeries | None:
    return next((series for series in run.metrics if series.name == name), None)


def optimizers_of(run: RunEvidence) -> tuple[int, ...]:
    """Return the number of optimizers of each rank, at least 1, read from the captured state."""
    optimizers: dict[int, set[str]] = {}
    for tensor in run.checkpoint.tensors:
        if match := OPTIMIZER.match(tensor.name):
            optimizers.setdefault(int(match[1] or 0), set()).add(match[2])
    ranks = range(max(optimizers, default=0) + 1)
    return tuple(len(optimizers.get(rank, ())) or 1 for rank in ranks)


def shown_by(event: Event, run: RunEvidence) -> str | None:
    """Return a run's value of the thing that differs, as text to compare; None where it is unknown.

    It is unknown where the run ended earlier, or did not observe that step.
    """
    if event.kind in METRICS:
        return _of_metric(event, run)
    if event.kind is EventKind.STATE:
        tensors = run.checkpoint.tensors
        kept = next((tensor.sha256 for tensor in tensors if tensor.name == event.name), "absent")
        return None if run.run.partial else kept
    if event.kind is EventKind.STEPS:
        return None if run.run.partial else str(len(run.steps))
    digests = (digest.with_parameters for digest in run.steps.observed if digest.step == event.step)
    return next(digests, {}).get(event.name)


def _of_metric(event: Event, run: RunEvidence) -> str | None:
    series = _series(event.name, run)
    if event.own_step is None:
        return None if series is None else series.dtype
    values = {} if series is None else dict(series.points.pairs())
    if event.own_step in values:
        return values[event.own_step].hex()
    # Only a whole run, or one that went past the step, proves that the number is missing.
    past = not run.run.partial or (event.step is not None and len(run.steps) > event.step)
    return "absent" if event.kind is EventKind.METRIC_MISSING and past else None


def same_thing(event: Event, first: RunEvidence, second: RunEvidence) -> bool | None:
    """Return whether two runs agree in the thing that differs elsewhere.

    None where the evidence of one run does not show it.
    """
    left, right = shown_by(event, first), shown_by(event, second)
    if left is not None and right is not None:
        return left == right
    # Both ended at the same step, and the captured state of each is known.
    at_one_step = len(first.steps) == len(second.steps)
    if event.kind in IN_THE_STATE and at_one_step:
        return first.checkpoint.root == second.checkpoint.root
    return None


def behind_equal_gradients(comparison: Comparison) -> bool:
    """Return whether backward gave equal gradients, so the difference arose after it.

    Fingerprints must show it, with none missing before the difference.
    """
    first = comparison.first
    seen = AFTER_BACKWARD.get(first.kind) if first is not None else None
    return seen in comparison.compared_fingerprints and comparison.unrecorded_from is None


def same_until(plain: RunEvidence, traced: RunEvidence, last: int) -> bool:
    """Return whether the parameters agree at every step up to `last` that both runs observed."""
    before = {step.step: step.parameters for step in plain.steps.observed if step.parameters}
    return all(
        before.get(step.step, step.parameters) == step.parameters
        for step in traced.steps.observed
        if step.parameters and step.step <= last
    )


def what_explains(diagnosis: Diagnosis | None) -> str:
    """Return a clause for what explains all of a first difference, "" where nothing is known to.

    Settings of an optimizer explain it where nothing before its update differs. A different number
    of steps, samples or passes explains it alone. So do optimizers that take turns in a different
    order, or get different parameters.
    """
    if diagnosis is None:
        return ""
    if diagnosis.kind is EventKind.STRUCTURE:
        return "other parameters of the optimizer explain"
    updated = diagnosis.kind in {EventKind.PARAMETERS, EventKind.WEIGHTS}
    optimizer = updated and bool(diagnosis.optimizer_settings)
    explained = optimizer or diagnosis.kind in OF_THE_RUN
    return "settings of the run explain" if explained else ""


def with_trace(
    diagnosis: Diagnosis | None, trace: TraceFinding | None, *, drift: bool
) -> Diagnosis | None:
    """Return the diagnosis with what the traced runs show; a line known otherwise keeps its remedy.

    In a drift each commit repeats its own results, so the step at which two traces diverge is the
    step at which the commits diverge. Two runs of one commit may diverge elsewhere each time.
    """
    if diagnosis is None or trace is None:
        return diagnosis
    if drift:
        diagnosis = _led_by_code(_begun_at(diagnosis, trace), trace)
    elif trace.names_a_call and trace.claim in SHOWN:
        cause = diagnosis.cause.removesuffix(f": {diagnosis.guess}")
        diagnosis = diagnosis.model_copy(update={"cause": cause, "guess": ""})
    known = diagnosis.suspects or diagnosis.optimizer_settings
    remedy = diagnosis.remedy
    if trace.names_a_call and trace.remedy and not known:
        remedy = f"{trace.remedy} If that is not it: {remedy[:1].lower()}{remedy[1:]}"
    traced = diagnosis.model_copy(update={"trace": trace, "remedy": remedy})
    return _with_message(traced, trace)


def _begun_at(diagnosis: Diagnosis, trace: TraceFinding) -> Diagnosis:
    """Return the diagnosis from the trace's step on, if fingerprints left the first step open."""
    begin, seen, step = diagnosis.unrecorded_from, diagnosis.first_step, trace.step
    if begin is None or seen is None or step is None or not trace.names_a_call:
        return diagnosis
    if not begin <= step <= seen:
        return diagnosis
    cause = diagnosis.cause.removesuffix(last_recorded(begin))
    shown = "agree before it" if step == seen else f"differ from step {step} on"
    update: dict[str, object] = {"first_step": step}
    if trace.phase is Phase.DATA and diagnosis.kind not in BEFORE_DATA:
        # A loader works before the loss is computed, and its fingerprint was missing at that step.
        shown = f"part in the data of step {step}"
        remedy = DRIFT[EventKind.BATCH].remedy
        update |= {"kind": EventKind.BATCH, "subject": "batch", "remedy": remedy}
    return diagnosis.model_copy(
        update={**update, "cause": f"{cause}, and the operator traces {shown}"}
    )


def _led_by_code(diagnosis: Diagnosis, trace: TraceFinding) -> Diagnosis:
    """Return the diagnosis with changed code as its cause, where that explains a generator's state.

    Code that draws as often can still leave a different state, for example dropout over tensors of
    a different shape. States are recorded after a step's update, so what two traces show within
    that step comes first. So does a batch that a worker made.
    """
    step, seen = trace.step, diagnosis.first_step
    is_open = not (diagnosis.likely or diagnosis.optimizer_settings or trace.changed_seeds)
    follows = diagnosis.kind is EventKind.RANDOM and bool(diagnosis.guess) and is_open
    computed = trace.phase in {Phase.FORWARD, Phase.BACKWARD} and not trace.draws
    leads = computed and trace.claim is Claim.CODE_PATH
    in_time = step is not None and seen is not None and step <= seen
    fits = len(trace.sentence.split()) <= MOST_CAUSE_WORDS
    by_worker = trace.claim is Claim.OUTSIDE_VALUE and trace.phase is Phase.DATA and trace.elsewhere
    if follows and by_worker and in_time:
        batch = DRIFT[EventKind.BATCH]
        known = {"cause": batch.sentence, "remedy": batch.remedy, "guess": "", "cause_class": None}
        return diagnosis.model_copy(update={**known, "kind": EventKind.BATCH, "subject": "batch"})
    if not (follows and leads and in_time and fits):
        return diagnosis
    update = {"cause": trace.sentence, "guess": "", "traced": True, "cause_class": CauseClass.CODE}
    return diagnosis.model_copy(update=update)


def _with_message(diagnosis: Diagnosis, trace: TraceFinding) -> Diagnosis:
    """Return the diagnosis with an unawaited message as its cause, if the value came by a message.

    Otherwise the message's line stays only possible, even if a traced run gave one more result. A
    traced run has different timing, so that does not rule out other races.
    """
    messages = [suspect for suspect in diagnosis.suspects if suspect.begins_a_message]
    by_message = trace.operator.partition("::")[0] in OTHER_RANKS
    came = by_message and trace.claim in {Claim.OUTSIDE_VALUE, Claim.COLLECTIVE}
    if diagnosis.likely or not messages or not came:
        return diagnosis
    certain = tuple(message.model_copy(update={"possible": False}) for message in messages)
    others = (suspect for suspect in diagnosis.suspects if not suspect.begins_a_message)
    place, call = certain[0].place, certain[0].call
    return diagnosis.model_copy(
        update={
            "suspects": (*certain, *others),
            "cause_class": CauseClass.MESSAGE_RACE,
            "remedy": f"Call wait() on what {call}() returns at {place}, before the tensor is used "
            "or changed.",
        }
    )
