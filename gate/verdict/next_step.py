"""What a person should do next for each outcome: fix the cause first, then accept a result."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gate.baseline.entry import PROPOSED_BASELINE
from gate.comparison.differences import NotFinite, OtherSetting
from gate.data.data_sets import REPEAT_PREPROCESSING
from gate.diagnosis.diagnosis import Diagnosis
from gate.diagnosis.killed_saves import WRITE_BESIDE
from gate.errors import (
    CancelledError,
    GateError,
    InternalError,
    OutputError,
    RunError,
    RunTimeoutError,
)
from gate.evidence.trace import HowKnown, ShownChange
from gate.settings.gate_settings import FILE_NAME
from gate.system.gate_names import OUTPUT_FOLDER
from gate.verdict.reasons import settings_words
from gate.verdict.request import GateRequest
from gate.verdict.verdict import DRIFTS, NextStep, NotFiniteResult, Outcome, led_by_settings

REVIEW = "Review the new baseline as code: merge only if the new result is what you want."
LOOK_OUTSIDE = (
    "Check the hardware and the data outside the repository. Declare that data in repro-gate.yml "
    "(`data:`): then the gate reports when it changes."
)
LOOK_AT_ENTRY = (
    "Check that the entry was recorded from the right code and data. Another machine moves only "
    "the last digits."
)
OTHER_THRESHOLD = "If intended: change policy.thresholds in a separate pull request."
ANOTHER_RESULT = "The result differs from the baseline: merge only if that is intended."
INTENDED, UNINTENDED = "If intended", "If unintended"
TYPED_DIGITS = 8
UNWRITTEN = (
    "The runs start from different weights: memory may be read before it is written "
    "(`torch.empty`, `to_empty`). Set `determinism.fill_uninitialized_memory: true`, and run again."
)
LOOK_FOR_NAN = (
    "Find where it begins: look for a division by zero, a logarithm or a root of a negative "
    "number, a learning rate that is too high, and loss scaling."
)
NO_ENTRY = "No baseline can be recorded of this result."
MAX_LINES_LENGTH = 1500
SHORT_COMMIT = 12
FEW_PINS = 3
SAVE_LINES = "docs/resume.md has the lines to copy."
RESUME_LIST = "See docs/resume.md for what a checkpoint has to hold and in which order to load it."
# What the reader should know where the change shown is not the only candidate.
OPEN: Final = {
    HowKnown.EITHER: "Each may be the cause; other changes are not ruled out.",
    HowKnown.EITHER_OF_ALL: "Either may be the cause.",
    HowKnown.SCHEDULE: "It creates the schedule; other changes are not ruled out.",
    HowKnown.READ_AMONG: "The training reads it; other changes are not ruled out.",
}
LOOK = "Find out what this change does to the training, and undo it."


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderPlace:
    """Where the reader is: files and commits as the reader can name them.

    `config`, `out` and `baseline` are paths of the settings file, the output folder and the entry.
    `on_runner`: the output folder is gone after the job, except for what the workflow uploads.
    `run` is the id of the workflow run with these artifacts, empty where there is none. `artifact`
    is the name of the upload, empty for the usual one.

    `change` is the part of the change that is shown first. `not_its_own`: the base commit gives the
    same result here, so this pull request did not move it. `pins` are packages at their former
    version, `name==version`. `missed`: a threshold is missed, which no new baseline fixes.
    `recorded_from` is the commit of the entry, empty if it is the one that was trained. `renamed`
    is the number of renamed tensors where nothing but names differs. `preprocessed`: the only data
    that moved is the output of preprocessing.
    """

    config: str
    out: str
    baseline: str
    base_commit: str
    on_runner: bool
    run: str = ""
    artifact: str = ""
    not_its_own: bool = False
    change: ShownChange | None = None
    pins: tuple[str, ...] = ()
    missed: bool = False
    recorded_from: str = ""
    renamed: int = 0
    preprocessed: bool = False


def reader_place(request: GateRequest, proposed: str = "") -> ReaderPlace:
    """Return where a request's reports are read; `proposed` is the proposed entry's file."""
    return ReaderPlace(
        config=request.repository_path(request.config_name)
        if request.on_runner
        else request.typed_config or FILE_NAME,
        out=request.typed_out or OUTPUT_FOLDER,
        baseline=f"{request.repository_path(request.settings.baseline.path)}/{proposed}",
        base_commit=request.base_commit or "",
        on_runner=request.on_runner,
        # The URL of a workflow run ends with its id: .../actions/runs/4711
        run=request.run_url.rpartition("/")[2] if request.on_runner else "",
        artifact=request.artifact,
    )


def next_steps(
    outcome: Outcome,
    place: ReaderPlace,
    *,
    passes: bool,
    over_budget: bool = False,
    proposed: bool = True,
    diagnosis: Diagnosis | None = None,
) -> tuple[NextStep, ...]:
    """Return the steps in the order in which to try them; a pass needs at most a review.

    `proposed`: this call proposed a baseline that could be accepted.
    """
    if passes:
        return _after_pass(outcome)
    # The result is fine, so only the cost of determinism needs work.
    if over_budget:
        return (_step("See which setting costs it:", f"repro-gate cost --attribute{_at(place)}"),)
    steps = _STEPS[outcome](place, diagnosis)
    # Never tell somebody to commit a file that this call did not write.
    offered = tuple(step for step in steps if (proposed and not place.missed) or not step.accepts)
    return (*offered, _step(OTHER_THRESHOLD)) if place.missed else offered


def where_nothing_moved(place: ReaderPlace) -> tuple[NextStep, ...]:
    """Return the steps where both code and environment are the baseline's."""
    return _step(LOOK_OUTSIDE), *_accept(place, INTENDED, "new data or hardware", own=True)


def where_provisional(
    place: ReaderPlace, *, repeated: bool, proposed: bool
) -> tuple[NextStep, ...]:
    """Return the steps for an entry far from its peers; `repeated`: this run gives its bits."""
    steps = [_step(LOOK_AT_ENTRY)]
    if proposed:
        when = "To confirm the entry" if repeated else "To record this result in its place"
        reason = "recorded again, same bits" if repeated else "recorded again, new result"
        steps += _accept(place, when, reason)
    return tuple(steps)


def where_preprocessing_differs() -> tuple[NextStep, ...]:
    """Return the step where preprocessing wrote different data the second time."""
    return (_step(f"{REPEAT_PREPROCESSING} The trainings are judged after that."),)


def where_settings_differ(
    place: ReaderPlace, settings: tuple[OtherSetting, ...], *, proposed: bool
) -> tuple[NextStep, ...]:
    """Return the steps where the entry was recorded with different training settings."""
    undo = _step(f"{UNINTENDED}: undo the change to {settings_words(settings)}.")
    return (undo, *_accept(place, INTENDED, "new settings")) if proposed else (undo,)


def after_missed_threshold() -> tuple[NextStep, ...]:
    """Return the steps for a missed threshold, which no new baseline fixes."""
    return _step(_look(None)), _step(OTHER_THRESHOLD)


def after_entropy(call: str, place: str) -> tuple[NextStep, ...]:
    """Return the step where a draw of entropy stops a pass: a new baseline would be random too."""
    return (_step(f"Seed the draw from {call} in {place} with a constant, or remove it."),)


def where_not_finite(
    place: ReaderPlace, result: NotFiniteResult, *, own_settings: bool
) -> tuple[NextStep, ...]:
    """Return the steps for NaN or infinity; `own_settings`: this commit's own settings decide."""
    change = place.change
    steps = []
    if result.starts_differ:
        steps.append(_step(UNWRITTEN))
    if change is not None and change.how is HowKnown.RAN_BEFORE_NAN:
        steps.append(_step(f"Look at {change.places} first, the nearest changed line. {NO_ENTRY}"))
    elif change is not None:
        steps.append(_step(f"Undo the change to {change.places}. {NO_ENTRY}"))
    else:
        steps.append(_step(f"{LOOK_FOR_NAN} {NO_ENTRY}"))
        steps += _with_a_base(place)
    # Only a tensor may be meant to contain NaN or infinity; a metric never is.
    if result.number.step is None:
        where = "repro-gate.yml" if own_settings else "repro-gate.yml of the base branch"
        steps.append(
            _step(
                f"If the tensor is intended to hold it, such as a mask or a bound, add to {where}:",
                _allowing(result.number),
            )
        )
    return tuple(steps)


def _allowing(number: NotFinite) -> str:
    """Return the lines of settings that let these tensors contain NaN or infinity."""
    lines = ["compare:", "  allow_not_finite:"]
    for name in (number.name, *number.others):
        rule = f"    - {{pattern: {json.dumps(name)}, reason: a constant mask or bound}}"
        # Half a block of YAML would mean something different, so it ends with a whole line.
        if sum(map(len, (*lines, rule))) > MAX_LINES_LENGTH:
            break
        lines.append(rule)
    return "\n".join(lines)


def _after_pass(outcome: Outcome) -> tuple[NextStep, ...]:
    if outcome is Outcome.BASELINE_CHANGE:
        return (_step(REVIEW),)
    # It passes at a lower level. The next change would be compared with an outdated result.
    drifted = outcome in DRIFTS
    return (_step(ANOTHER_RESULT),) if drifted else ()


def _step(text: str, command: str = "", *, accepts: bool = False) -> NextStep:
    return NextStep(text=text, command=command, accepts=accepts)


def _at(place: ReaderPlace) -> str:
    """Return the option for the settings file, with a leading space; "" for the default."""
    return "" if place.config == FILE_NAME else f" --config {shlex.quote(place.config)}"


def _accept(
    place: ReaderPlace, when: str, reason: str, *, own: bool = False
) -> tuple[NextStep, ...]:
    """Return how to accept the new result: by command, and on a pull request without a clone too.

    `own`: this pull request did not move the result, so the entry belongs in a separate one.
    """
    if not place.on_runner:
        # The reader types this where this call was typed, with the same options.
        out = "" if place.out == OUTPUT_FOLDER else f" --out {shlex.quote(place.out)}"
        command = f"repro-gate baseline accept{_at(place)}{out} --reason {shlex.quote(reason)}"
        text = f"{when}: accept it as the new baseline, and commit it."
        return (_step(text, command, accepts=True),)
    # On a runner the output folder is gone after the job, so the entry comes from its artifacts.
    where = "a pull request of its own" if own else "this pull request"
    source = f"artifact {place.artifact}" if place.artifact else "artifacts"
    download = (
        f"download {PROPOSED_BASELINE} from this run's {source}, and commit it as "
        f"{place.baseline} in {where}."
    )
    merged = " Once that is merged, this one passes." if own else ""
    if not place.run:
        return (_step(f"{when}: {download}{merged}", accepts=True),)
    artifact = f"--artifact {shlex.quote(place.artifact)} " if place.artifact else ""
    command = (
        f"repro-gate baseline accept{_at(place)} --run {place.run} {artifact}"
        f"--reason {shlex.quote(reason)}"
    )
    record = f"{when}, record it in {where}:"
    return (
        _step(record, command, accepts=True),
        _step(f"Without a clone: {download}{merged}", accepts=True),
    )


def _look(diagnosis: Diagnosis | None, change: ShownChange | None = None) -> str:
    """Return what to undo or look at if the change is unintended: a known line or setting first."""
    if change is not None:
        return f"{UNINTENDED}: {_look_at(change)}"
    if diagnosis is None:
        return f"{UNINTENDED}: {_within_sentence(LOOK)}"
    changes = diagnosis.optimizer_settings
    known = [
        f"{change.name}{change.of_optimizer} back to {change.revert_to}"
        for change in changes
        if change.revert_to and _is_typed(change.revert_to)
    ]
    remedy = _within_sentence(diagnosis.remedy)
    if not known:
        return f"{UNINTENDED}: {remedy}"
    back = f"{UNINTENDED}: set {', '.join(known)}."
    return back if len(known) == len(changes) else f"{back} If that is not it: {remedy}"


def _look_at(change: ShownChange) -> str:
    """Return `undo` for a change that is the cause, and `look at` for one that only may be."""
    if change.how in OPEN:
        return f"look at {change.places} first. {OPEN[change.how]}"
    if change.candidates:
        return f"look at {change.places} first, changed lines that ran before it."
    if change.how is HowKnown.RAN:
        return f"look at {change.places} first, the nearest changed line."
    return f"undo the change to {change.places}."


def _is_typed(number: str) -> bool:
    """Return whether a person may have typed the number: a computed one has sixteen digits."""
    digits = number.partition("e")[0].replace(".", "").lstrip("-0")
    return len(digits) <= TYPED_DIGITS or not digits.isdigit()


def _within_sentence(sentence: str) -> str:
    return f"{sentence[:1].lower()}{sentence[1:]}"


def _no_baseline(place: ReaderPlace, _: Diagnosis | None) -> tuple[NextStep, ...]:
    return _accept(place, "To keep this result", "first baseline")


def _code_drift(place: ReaderPlace, diagnosis: Diagnosis | None) -> tuple[NextStep, ...]:
    intended = _accept(place, INTENDED, "intended change of the result")
    return (_step(_look(diagnosis, place.change)), *_with_a_base(place), *intended)


def _with_a_base(place: ReaderPlace) -> tuple[NextStep, ...]:
    """Return how to see the changed lines if this call had no commit to compare with."""
    # On a pull request the base commit is known. An entry of this commit itself is no base.
    if place.base_commit or place.on_runner or not place.recorded_from:
        return ()
    command = f"repro-gate gate{_at(place)} --base {place.recorded_from[:SHORT_COMMIT]}"
    return (_step("To see which changed line it is, compare with the baseline's commit:", command),)


def _environment_drift(place: ReaderPlace, diagnosis: Diagnosis | None) -> tuple[NextStep, ...]:
    steps = []
    if led_by_settings(Outcome.ENVIRONMENT_DRIFT, diagnosis):
        steps.append(_step(_look(diagnosis, place.change)))
    if not place.base_commit:
        how = "check out with fetch-depth: 0" if place.on_runner else "name the base with --base"
        steps.append(
            _step(
                f"To distinguish code from environment: {how}, so that the base commit can run "
                "here too."
            )
        )
    steps.append(
        _step(f"{UNINTENDED}: {_pinned(place)}restore the baseline's packages, driver or image.")
    )
    return (*steps, *_accept(place, INTENDED, "new packages or machine", own=place.not_its_own))


def _pinned(place: ReaderPlace) -> str:
    """Return the packages to pin if there are few enough to type, else ""."""
    few = 0 < len(place.pins) <= FEW_PINS
    return f"pin {', '.join(place.pins)}, or " if few else ""


def _dependency_drift(place: ReaderPlace, _: Diagnosis | None) -> tuple[NextStep, ...]:
    return (
        _step(f"{UNINTENDED}: {_pinned(place)}go back to the base commit's packages or image."),
        *_accept(place, INTENDED, "new packages or image"),
    )


def _data_drift(place: ReaderPlace, _: Diagnosis | None) -> tuple[NextStep, ...]:
    undo = "restore the data that the baseline was recorded with"
    if place.preprocessed:
        undo = (
            "undo the change to code, packages or input that made the preprocessing write other "
            "data"
        )
    return (
        _step(f"{UNINTENDED}: {undo}."),
        *_accept(place, INTENDED, "new data", own=place.not_its_own),
    )


def _not_comparable(place: ReaderPlace, _: Diagnosis | None) -> tuple[NextStep, ...]:
    if place.renamed:
        what = "the tensor" if place.renamed == 1 else f"the {place.renamed:,} tensors"
        return (
            _step(f"{UNINTENDED}: rename {what} back."),
            *_accept(place, INTENDED, "new names of tensors"),
        )
    return (
        _step(
            _look(None, place.change)
            if place.change is not None
            else f"{UNINTENDED}: revert what changed the settings, steps, metrics or tensors."
        ),
        *_with_a_base(place),
        *_accept(place, INTENDED, "new settings, steps, metrics or tensors"),
    )


def _nondeterministic(place: ReaderPlace, diagnosis: Diagnosis | None) -> tuple[NextStep, ...]:
    steps = [_step(diagnosis.remedy if diagnosis is not None else LOOK)]
    if place.base_commit:
        steps.append(
            _step(
                "To see whether the base commit differs as well, gate it:",
                f"repro-gate gate{_at(place)} --commit {place.base_commit[:SHORT_COMMIT]}",
            )
        )
    return tuple(steps)


def _within(place: ReaderPlace, _: Diagnosis | None) -> tuple[NextStep, ...]:
    return (_step(_look(None)), *_accept(place, INTENDED, "intended change of the result"))


def _baseline_change(_place: ReaderPlace, _: Diagnosis | None) -> tuple[NextStep, ...]:
    return (
        _step(
            "The policy requires new baselines to be separate from other changes: "
            "policy.allow_baseline_change."
        ),
    )


def _error(place: ReaderPlace, _: Diagnosis | None) -> tuple[NextStep, ...]:
    return (_step("To see what is missing on this machine:", f"repro-gate doctor{_at(place)}"),)


def _resume_differs(_place: ReaderPlace, diagnosis: Diagnosis | None) -> tuple[NextStep, ...]:
    remedy = diagnosis.remedy if diagnosis is not None else ""
    steps = (_step(remedy),) if remedy else ()
    # The fix for a torn save is a few lines to copy; any other needs the list of what to save.
    return (*steps, _step(SAVE_LINES if remedy == WRITE_BESIDE else RESUME_LIST))


def after_unchecked_resume(hint: str) -> tuple[NextStep, ...]:
    """Return the step where no resumed run could be judged."""
    return (_step(hint),) if hint else (_step(RESUME_LIST),)


def hint_of(fault: GateError) -> tuple[NextStep, ...]:
    """Return the fault's own hint as a step; nothing else is known."""
    # Some hints have lines to copy below the sentence.
    sentence, _, lines = fault.hint.partition("\n")
    return (_step(sentence, lines.rstrip()),) if sentence else ()


def after_fault(fault: GateError, place: ReaderPlace) -> tuple[NextStep, ...]:
    """Return the steps after a failed check: the fault's own hint, then `repro-gate doctor`.

    The doctor checks the machine. It cannot help where the script raised or wrote something else
    than the settings say, time ran out, the call was cancelled, or the gate has a bug.
    """
    hint = hint_of(fault)
    raised = isinstance(fault, RunError) and fault.file
    not_the_machine = RunTimeoutError | InternalError | CancelledError | OutputError
    elsewhere = raised or isinstance(fault, not_the_machine)
    return hint if hint and elsewhere else (*hint, *_error(place, None))


def _reproduced(_place: ReaderPlace, _: Diagnosis | None) -> tuple[NextStep, ...]:
    return ()


Steps = Callable[[ReaderPlace, Diagnosis | None], tuple[NextStep, ...]]
_STEPS: dict[Outcome, Steps] = {
    Outcome.REPRODUCED: _reproduced,
    Outcome.WITHIN_TOLERANCE: _within,
    Outcome.CODE_DRIFT: _code_drift,
    Outcome.ENVIRONMENT_DRIFT: _environment_drift,
    Outcome.DEPENDENCY_DRIFT: _dependency_drift,
    Outcome.DATA_DRIFT: _data_drift,
    Outcome.BASELINE_CHANGE: _baseline_change,
    Outcome.NO_BASELINE: _no_baseline,
    Outcome.NOT_COMPARABLE: _not_comparable,
    Outcome.NONDETERMINISTIC: _nondeterministic,
    Outcome.RESUME_DIFFERS: _resume_differs,
    Outcome.ERROR: _error,
}
