"""What a reader is told of a checkpoint that no training can go on from exactly."""

from __future__ import annotations

from evidence_cases import evidence_of

from gate.evidence.observations import CheckpointLack, Resumability
from gate.verdict.findings import checkpoint_incomplete, checkpoint_overwritten
from gate.verdict.verdict import Finding, Severity

SCHEDULER = CheckpointLack(
    part="scheduler", what="scheduler", known=True, why="StepLR sets the rate", file="train.py",
    line=7,
)  # fmt: skip
STEP = CheckpointLack(part="step or epoch", what="step or epoch", known=True)
HIDDEN = CheckpointLack(
    part="random state of NumPy", what="random state of NumPy", known=False,
    why="/rng has an unknown form",
)  # fmt: skip


def _finding(*lacks: CheckpointLack, model_alone: bool = False) -> Finding:
    found = Resumability(lacks=lacks, model_alone=model_alone, file="train.py", line=20)
    run = evidence_of().model_copy(update={"resumability": found})
    (finding,) = checkpoint_incomplete(run, "last.pt")
    return finding


def test_each_part_is_named_with_the_line_that_uses_it() -> None:
    finding = _finding(SCHEDULER, STEP)
    assert (finding.code, finding.severity) == ("checkpoint-incomplete", Severity.NOTICE)
    assert finding.message == (
        "last.pt cannot be resumed exactly: it lacks the scheduler (StepLR sets the rate, "
        "train.py:7) and the step or epoch"
    )
    assert finding.code_place is not None
    assert (finding.code_place.file, finding.code_place.line) == ("train.py", 7)


def test_weights_alone_may_be_meant_so_and_no_tensor_is_taken_for_a_model() -> None:
    finding = _finding(STEP, model_alone=True)
    assert finding.message == (
        "last.pt contains no training state except tensors such as weights: a resume lacks the "
        "step or epoch"
    )
    assert finding.remedy.startswith("No action needed if it only serves inference.")


def test_what_cannot_be_told_is_said_so() -> None:
    assert _finding(HIDDEN).message == (
        "it is unknown whether last.pt contains the random state of NumPy (/rng has an unknown "
        "form)"
    )
    assert (
        "lacks the step or epoch; it is unknown whether last.pt" in _finding(STEP, HIDDEN).message
    )


def test_a_save_over_the_last_one_is_told_with_its_line() -> None:
    found = Resumability(overwritten=True, file="train.py", line=20)
    (finding,) = checkpoint_overwritten(
        evidence_of().model_copy(update={"resumability": found}), "last.pt"
    )
    assert finding.message == (
        "train.py:20 saves last.pt over the previous save: a process that is killed "
        "during a save leaves no complete checkpoint"
    )
    assert checkpoint_overwritten(evidence_of(), "last.pt") == ()


def test_a_complete_checkpoint_and_none_at_all_are_no_finding() -> None:
    run = evidence_of().model_copy(update={"resumability": Resumability()})
    assert checkpoint_incomplete(run, "last.pt") == ()
    assert checkpoint_incomplete(evidence_of(), None) == ()
