"""Interrupts one run and resumes another from its checkpoint; kills further runs while they save.

Nothing here judges. The runs become evidence, and so does the reason why one could not be made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import PurePosixPath

from gate.diagnosis.resume_causes import saved_at
from gate.errors import EvidenceError, RunError
from gate.evidence.observations import (
    KilledSave,
    Kills,
    LeftBy,
    ResumeAttempt,
    ResumeFault,
    SourceKind,
)
from gate.evidence.ranks import NO_STEP
from gate.evidence.resume_evidence import CheckpointLook, carried_digest, left_by_kill
from gate.evidence.run_evidence import RunEvidence
from gate.pipelines.fresh_process import ANY_FAULT
from gate.pipelines.trainings import Trainings
from gate.pipelines.turns import Begun
from gate.settings.train_sections import ResumeSettings
from gate.settings.variations import KillPoint
from gate.text.phrases import count
from gate.training.plan import plan_interrupted, plan_killed, plan_resumed
from gate.training.runs import CarriedCheckpoint

MAX_MESSAGE = 1000
MAX_HINT = 2000
MAX_DETAILS = 200
WAIT_FOR_SAVE = (
    "Wait for the save to end before the next step, or in the handler of SIGTERM: a preemption "
    "does not wait for it. Write to a temporary name in the same folder, and rename it when it is "
    "complete."
)


def run_resumed(trainings: Trainings, first: RunEvidence) -> tuple[RunEvidence, ...]:
    """Make the interrupted and the resumed run; return those that did not fail.

    `first` is the uninterrupted run. Call it only if the strict runs are equal: otherwise a resume
    proves nothing.
    """
    resume = trainings.prepared.request.settings.resume
    if resume is None:
        return ()
    made: list[RunEvidence] = []
    # set before the first run, so that a fault is recorded with what was attempted
    trainings.ended.resume = ResumeAttempt(checkpoint=resume.checkpoint, at_step=resume.at_step)
    try:
        _make(trainings, resume, first, made)
    except (RunError, EvidenceError) as fault:
        resume_fault = ResumeFault(
            message=fault.message[:MAX_MESSAGE],
            hint=fault.hint[:MAX_HINT],
            details=fault.details[:MAX_DETAILS],
        )
        trainings.ended.resume = trainings.ended.resume.model_copy(update={"fault": resume_fault})
    return tuple(made)


def _make(
    trainings: Trainings, resume: ResumeSettings, whole: RunEvidence, made: list[RunEvidence]
) -> None:
    train = trainings.prepared.request.settings.train
    # each refusal comes as early as its facts are known, to save the runs after it
    refuse_no_step_left(whole, resume)
    interrupted = trainings.run(plan_interrupted(resume))
    made.append(interrupted)
    step = len(interrupted.steps)
    # the number of recorded steps: a handler of SIGTERM may go on for up to two
    attempt = ResumeAttempt(checkpoint=resume.checkpoint, at_step=resume.at_step, step=step)
    trainings.ended.resume = attempt
    refuse_other_end(step, resume, train.max_steps)
    refuse_unfinished(interrupted, resume)
    carried = trainings.ended.carry(resume.checkpoint, step)
    if not carried.files:
        raise missing_checkpoint(whole, interrupted, resume)
    # read now, because the next run takes the place of these files
    complete = _complete(trainings, resume) if resume.kill_while_saving else None
    attempt = attempt.model_copy(
        update={
            "files": len(carried.files),
            "size_bytes": sum(file.size_bytes for file in carried.files),
            "sha256": carried_digest(carried),
        }
    )
    trainings.ended.resume = attempt
    readable = complete is not None and not complete.problem
    # if even the complete checkpoint is unreadable, a torn one cannot be recognised
    killed = plan_killed(resume) if readable else ()
    try:
        resumed, ended = trainings.resumed(plan_resumed(resume, carried, train), killed)
    except EvidenceError as fault:
        raise _without_step(fault, len(whole.steps) - step) from fault
    # stops the killed runs that are not needed any more, after a fault too
    with closing(ended):
        made.append(resumed)
        refuse_other_start(whole, interrupted, resumed, carried)
        if complete is not None:
            kills = _kills(trainings, resume, complete, ended)
            trainings.ended.resume = attempt.model_copy(update={"kills": kills})


def _complete(trainings: Trainings, resume: ResumeSettings) -> CheckpointLook:
    """Return the interrupted run's checkpoint, with the problem if the gate cannot read it."""
    try:
        return trainings.ended.checkpoint(resume.checkpoint)
    except ANY_FAULT as fault:
        return CheckpointLook(problem=fault.message[:MAX_MESSAGE])


def _kills(
    trainings: Trainings, resume: ResumeSettings, complete: CheckpointLook, ended: Iterator[Begun]
) -> Kills:
    """Return what runs leave that are killed inside a save; stop at an uninformative one."""
    if complete.problem:
        why = f"the gate cannot read a complete one: {complete.problem}"
        return (_unchecked(KillPoint.FIRST, why),)
    kills: list[KilledSave] = []
    # in the order of `KillPoint`, in which the runs were planned
    for point, begun in zip(KillPoint, ended, strict=False):
        failure = trainings.how_it_ended(begun)
        try:
            look = trainings.ended.checkpoint(resume.checkpoint, complete)
            kills.append(left_by_kill(point, look, failure))
        except ANY_FAULT as fault:
            kills.append(_unchecked(point, f"what it left cannot be read: {fault.message}"))
        if kills[-1].left in {LeftBy.NOT_CHECKED, LeftBy.NOTHING_YET}:
            break
    return tuple(kills)


def _unchecked(point: KillPoint, why: str) -> KilledSave:
    return KilledSave(point=point, left=LeftBy.NOT_CHECKED, why=why[:MAX_MESSAGE])


def refuse_no_step_left(whole: RunEvidence, resume: ResumeSettings) -> None:
    """Raise `RunError` if the uninterrupted run has no step after the interruption."""
    last = len(whole.steps)
    if last <= resume.at_step:
        raise RunError(
            f"the training ends by itself after step {last}, and resume.at_step is "
            f"{resume.at_step}: no step is left for the resumed run",
            hint=f"Set resume.at_step below {last}.",
        )


def refuse_other_end(step: int, resume: ResumeSettings, last: int) -> None:
    """Raise `RunError` if a run of `last` steps was not interrupted between two steps."""
    if step < resume.at_step:
        raise RunError(
            f"the training ended by itself after step {step}, before it could be interrupted after "
            f"step {resume.at_step} (resume.at_step)",
            hint=f"Set resume.at_step below {step}.",
        )
    # it went on to its last step after SIGTERM, so no step is left to resume
    if step >= last:
        raise RunError(
            f"the run was sent SIGTERM after step {resume.at_step}, and went on to its last step "
            f"({last}) without a checkpoint",
            hint="The script has a handler for SIGTERM: let it save and end within two steps, or "
            "lower resume.at_step.",
        )


def refuse_unfinished(interrupted: RunEvidence, resume: ResumeSettings) -> None:
    """Raise `RunError` if the checkpoint was open for writing when the run was killed."""
    # asynchronous saves are the usual reason: the process was killed while a thread still wrote
    writing = [name for boundary in interrupted.boundaries for name in boundary.writing]
    if writing:
        raise RunError(
            f"the checkpoint {resume.checkpoint} (resume.checkpoint) was still being written when "
            f"the run was killed ({writing[0]!a})",
            hint=WAIT_FOR_SAVE,
        )


def missing_checkpoint(
    whole: RunEvidence, interrupted: RunEvidence, resume: ResumeSettings
) -> RunError:
    """Return the error for an interrupted run without a checkpoint."""
    place = PurePosixPath(resume.checkpoint).name
    step = len(interrupted.steps)
    saved, instead = _saved(whole), _saved(interrupted)
    if any(place in PurePosixPath(name).parts for name in saved):
        return RunError(
            f"the checkpoint {resume.checkpoint} (resume.checkpoint) is written only later: the "
            f"run that was interrupted after step {step} left none",
            hint=f"Save it at step {resume.at_step} or on SIGTERM, or set resume.at_step to a step "
            "after which it is written.",
        )
    hint = (
        "Name the file or folder that the script saves, relative to train.workdir. It saved "
        f"{instead[0]!a}."
        if instead
        else "The run saved nothing below the project by then: let it save at step "
        f"{resume.at_step} or on SIGTERM, into train.workdir."
    )
    hint = _cut_save(interrupted) or hint
    return RunError(
        f"the checkpoint {resume.checkpoint} (resume.checkpoint) never appears: the run that was "
        f"interrupted after step {step} left no file there",
        hint=hint,
    )


def _cut_save(interrupted: RunEvidence) -> str:
    """Return advice if another file was being written when the run was killed, else empty."""
    names = [name for boundary in interrupted.boundaries for name in boundary.beside]
    return (
        f"{names[0]!a} was being written when the run was killed. {WAIT_FOR_SAVE}" if names else ""
    )


def _saved(run: RunEvidence) -> tuple[str, ...]:
    """Return the paths of files that a run saved into the commit's tree."""
    return tuple(source.call for source in run.sources if source.kind is SourceKind.SAVED)


def _without_step(fault: EvidenceError, left: int) -> RunError | EvidenceError:
    """Return the fault of a resumed run; a run without a step gets words about the resume."""
    if fault.message != NO_STEP:
        return fault
    return RunError(
        f"the resumed run ended by itself without a step, and {count(left, 'step')} "
        f"{'was' if left == 1 else 'were'} left",
        hint="Check how the script counts the steps that it has left after a resume; the details "
        "show what it printed last.",
        details=fault.details,
    )


def refuse_other_start(
    whole: RunEvidence,
    interrupted: RunEvidence,
    resumed: RunEvidence,
    carried: CarriedCheckpoint,
) -> None:
    """Raise `RunError` if a resumed run starts at another step, or ends before the last."""
    left = len(whole.steps) - carried.step
    begun = saved_at(whole, resumed)
    # None is unknown; 0 means that the checkpoint was ignored, which the comparison reports
    if begun not in {None, 0, carried.step}:
        raise RunError(
            f"the checkpoint is of step {begun}, and the run was interrupted after step "
            f"{carried.step}",
            hint=_cut_save(interrupted)
            or f"Save at step {carried.step}, or set resume.at_step: {begun}.",
        )
    if len(resumed.steps) < left:
        raise RunError(
            f"the resumed run took {len(resumed.steps)} of the {left} steps that were left",
            hint="The script ends before train.max_steps steps are taken: check how it counts the "
            "steps that it has left after a resume.",
        )
