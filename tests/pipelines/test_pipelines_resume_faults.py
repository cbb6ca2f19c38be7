"""Why no resumed run can be judged: one clear fault for each cause, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from resume_cases import AT, STEPS, Lack, boundary, digest, interrupted, resumed, whole

from gate.errors import RunError
from gate.evidence.observations import Source, SourceKind
from gate.evidence.resume_evidence import carried_digest, carry_checkpoint
from gate.evidence.run_evidence import RunEvidence
from gate.pipelines.resume_runs import (
    missing_checkpoint,
    refuse_no_step_left,
    refuse_other_end,
    refuse_other_start,
    refuse_unfinished,
)
from gate.settings.train_sections import ResumeSettings
from gate.system.files.files import LocalFiles
from gate.training.runs import CarriedCheckpoint

RESUME = ResumeSettings(checkpoint="out/last.pt", at_step=AT)
CARRIED = CarriedCheckpoint(place="out/last.pt", step=AT, files=())
FILES = LocalFiles()


def _saving(run: RunEvidence, *paths: str) -> RunEvidence:
    about = {"before": "", "after": "", "file": "", "line": 0, "stack": (), "rank": 0}
    said = {"step": 1, "kind": SourceKind.SAVED, "worker": False, "thread": False}
    sources = tuple(Source.model_validate(about | said | {"call": path}) for path in paths)
    return run.model_copy(update={"sources": sources})


def test_a_checkpoint_that_never_appears_says_what_was_saved_instead() -> None:
    fault = missing_checkpoint(whole(), _saving(interrupted(AT), "models/5.ckpt"), RESUME)
    assert fault.message == (
        "the checkpoint out/last.pt (resume.checkpoint) never appears: the run that was "
        "interrupted after step 5 left no file there"
    )
    assert fault.hint.endswith("It saved 'models/5.ckpt'.")
    nothing = missing_checkpoint(whole(), interrupted(AT), RESUME)
    assert nothing.hint == (
        "The run saved nothing below the project by then: let it save at step 5 or on SIGTERM, "
        "into train.workdir."
    )


def test_a_checkpoint_that_appears_only_at_the_end_is_another_fault() -> None:
    fault = missing_checkpoint(_saving(whole(), "out/last.pt"), interrupted(AT), RESUME)
    assert "is written only later: the run that was interrupted after step 5" in fault.message
    assert fault.hint.startswith("Save it at step 5 or on SIGTERM")


def test_an_asynchronous_save_that_was_cut_is_named() -> None:
    border = boundary(AT, writing=("last.pt.part",))
    cut = interrupted(AT).model_copy(update={"boundaries": (border,)})
    with pytest.raises(RunError) as refused:
        refuse_unfinished(cut, RESUME)
    assert refused.value.message.endswith(
        "was still being written when the run was killed ('last.pt.part')"
    )
    refuse_unfinished(interrupted(AT), RESUME)


def test_a_save_of_a_thread_that_was_cut_explains_a_checkpoint_that_is_missing_or_old() -> None:
    border = boundary(AT, beside=("last.part",))
    cut = interrupted(AT).model_copy(update={"boundaries": (border,)})
    said = "'last.part' was being written when the run was killed. Wait for the save to end "
    assert missing_checkpoint(whole(), cut, RESUME).hint.startswith(said)
    older = resumed(AT, Lack(boundary={"parameters": digest("parameters", 3, False)}))
    with pytest.raises(RunError) as refused:
        refuse_other_start(whole(), cut, older, CARRIED)
    assert refused.value.hint.startswith(said)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (3, "the training ended by itself after step 3, before it could be interrupted"),
        (STEPS, "the run was sent SIGTERM after step 5, and went on to its last step (12)"),
    ],
)
def test_a_run_that_was_not_interrupted_between_two_steps_is_refused(step: int, told: str) -> None:
    with pytest.raises(RunError) as refused:
        refuse_other_end(step, RESUME, STEPS)
    assert refused.value.message.startswith(told)
    refuse_other_end(AT, RESUME, STEPS)


def test_a_training_that_has_no_step_after_the_border_is_refused_before_it_is_interrupted() -> None:
    with pytest.raises(RunError) as refused:
        refuse_no_step_left(whole(), RESUME.model_copy(update={"at_step": STEPS}))
    assert refused.value.message == (
        "the training ends by itself after step 12, and resume.at_step is 12: no step is left for "
        "the resumed run"
    )
    assert refused.value.hint == "Set resume.at_step below 12."
    refuse_no_step_left(whole(), RESUME)


def test_a_checkpoint_of_another_step_names_that_step() -> None:
    lack = Lack(boundary={"parameters": digest("parameters", 3, False)})
    with pytest.raises(RunError) as refused:
        refuse_other_start(whole(), interrupted(AT), resumed(AT, lack), CARRIED)
    assert refused.value.message == (
        "the checkpoint is of step 3, and the run was interrupted after step 5"
    )
    assert refused.value.hint == "Save at step 5, or set resume.at_step: 3."


def test_a_resumed_run_that_ends_early_is_refused() -> None:
    after = resumed(AT)
    short = after.model_copy(update={"steps": after.steps[:3]})
    with pytest.raises(RunError, match="the resumed run took 3 of the 7 steps that were left"):
        refuse_other_start(whole(), interrupted(AT), short, CARRIED)
    refuse_other_start(whole(), interrupted(AT), after, CARRIED)


def _carry(tmp_path: Path) -> CarriedCheckpoint:
    return carry_checkpoint(FILES, tmp_path / "tree", "out/last.pt", tmp_path / "copy", AT)


def test_a_file_and_a_folder_are_carried_with_their_digests(tmp_path: Path) -> None:
    place = tmp_path / "tree" / "out"
    place.mkdir(parents=True)
    assert _carry(tmp_path).files == ()
    (place / "last.pt").write_bytes(b"weights")
    (file,) = _carry(tmp_path).files
    assert (file.name, file.size_bytes) == ("", 7)
    (place / "last.pt").unlink()
    (place / "last.pt" / "shard").mkdir(parents=True)
    for name in ("a", "shard/b"):
        (place / "last.pt" / name).write_bytes(name.encode())
    carried = _carry(tmp_path)
    assert [one.name for one in carried.files] == ["a", "shard/b"]
    before = carried_digest(carried)
    (place / "last.pt" / "a").write_bytes(b"A")
    assert carried_digest(_carry(tmp_path)) != before


@pytest.mark.parametrize("where", ["itself", "its folder", "inside"])
def test_a_link_is_never_followed(tmp_path: Path, where: str) -> None:
    place, secret = tmp_path / "tree" / "out", tmp_path / "secret"
    secret.mkdir()
    (secret / "last.pt").write_bytes(b"key")
    if where == "its folder":
        place.parent.mkdir()
        place.symlink_to(secret)
    elif where == "itself":
        place.mkdir(parents=True)
        (place / "last.pt").symlink_to(secret / "last.pt")
    else:
        (place / "last.pt").mkdir(parents=True)
        (place / "last.pt" / "key").symlink_to(secret / "last.pt")
    with pytest.raises(RunError) as refused:
        _carry(tmp_path)
    assert refused.value.message.startswith(
        "the checkpoint out/last.pt (resume.checkpoint) cannot be carried to the resumed run"
    )
    # the gate's own folders are of no use to a reader
    assert str(tmp_path / "tree") not in refused.value.message
    copies = [one for one in (tmp_path / "copy").glob("**/*") if one.is_file()]
    assert b"key" not in [one.read_bytes() for one in copies]
