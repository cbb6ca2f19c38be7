"""The runs of `resume`: what each is told, and what of the first the second one finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from evidence_cases import settings_of

from gate.errors import RunError, SettingsError
from gate.settings.gate_settings import GateSettings
from gate.settings.load import parse_settings
from gate.system.files.files import LocalFiles
from gate.text.digests import sha256_hex
from gate.training.child_environment import child_environment, preemption_variables
from gate.training.launch import run_folders
from gate.training.plan import plan_interrupted, plan_killed, plan_resumed, training_of
from gate.training.run_folders import place_checkpoint
from gate.training.runs import CarriedCheckpoint, CarriedFile, RunMode
from gate.verdict.request import GateRequest

FILES = LocalFiles()
TRAIN = {"command": "python train.py", "max_steps": 20}


def _settings(**resume: object) -> GateSettings:
    return settings_of(train=TRAIN, resume={"checkpoint": "out/last.pt", "at_step": 8, **resume})


def _carried(path: Path, data: bytes = b"weights") -> CarriedCheckpoint:
    path.write_bytes(data)
    file = CarriedFile(name="", path=path, sha256=sha256_hex(b"weights"), size_bytes=len(data))
    return CarriedCheckpoint(place="out/last.pt", step=8, files=(file,))


def test_the_harness_is_told_where_to_interrupt_and_which_file_is_the_checkpoint() -> None:
    settings = _settings(checkpoint="out/last.pt/", at_step=12)
    assert settings.resume is not None
    planned = plan_interrupted(settings.resume)
    told = preemption_variables(planned, Path("/run/tree/project"))
    assert told == {
        "REPRO_GATE_PREEMPT_STEP": "12",
        "REPRO_GATE_PREEMPT_PATH": "/run/tree/project/out/last.pt",
    }
    variables = child_environment(planned, settings, run_folders(Path("/run")), {})
    assert (variables["REPRO_GATE_MODE"], variables["REPRO_GATE_MAX_STEPS"]) == ("strict", "20")
    assert planned.described == "interrupted-1: training, interrupted after step 12"
    assert planned.ends_after == 12


def test_a_run_for_each_point_inside_the_save_is_ended_there() -> None:
    settings = _settings(kill_while_saving=True)
    assert settings.resume is not None
    planned = plan_killed(settings.resume)
    told = [preemption_variables(run, Path("/run/tree")) for run in planned]
    assert [one["REPRO_GATE_KILL_SAVE"] for one in told] == ["first-byte", "middle", "last-byte"]
    assert {one["REPRO_GATE_PREEMPT_STEP"] for one in told} == {"8"}
    # nobody compares them, and none is a resume
    assert not any(run.observe or run.carried for run in planned)
    assert (
        planned[0].described == "killed-first-byte: training, killed inside the save after step 8"
    )


def test_the_resumed_run_has_its_own_command_and_the_steps_that_are_left(tmp_path: Path) -> None:
    settings = _settings(command="python train.py --resume out/last.pt")
    assert settings.resume is not None
    planned = plan_resumed(settings.resume, _carried(tmp_path / "copy"), settings.train)
    train = training_of(planned, settings.train)
    assert train.command == ("python", "train.py", "--resume", "out/last.pt")
    assert (train.max_steps, planned.mode.is_strict) == (12, True)
    assert preemption_variables(planned, Path("/run/tree")) == {"REPRO_GATE_RESUMED": "1"}
    assert planned.described == ("resumed-1: training, resumed from its checkpoint of step 8")


def test_without_a_command_the_training_resumes_by_itself(tmp_path: Path) -> None:
    settings = _settings()
    assert settings.resume is not None
    planned = plan_resumed(settings.resume, _carried(tmp_path / "copy"), settings.train)
    assert training_of(planned, settings.train).command == ("python", "train.py")


def test_a_resume_behind_the_last_step_is_refused() -> None:
    text = b"version: 1\ntrain: {command: a, max_steps: 8}\nresume: {checkpoint: c, at_step: 8}\n"
    with pytest.raises(SettingsError) as refused:
        parse_settings(text, "repro-gate.yml")
    assert "resume.at_step: is 8 and train.max_steps is 8: no step is left" in str(refused.value)


@pytest.mark.parametrize("place", ["/etc/passwd", "../last.pt", "a/../../b", "."])
def test_a_checkpoint_outside_the_tree_is_refused(place: str) -> None:
    with pytest.raises(ValueError, match=r"inside the project|folder of its own"):
        _settings(checkpoint=place)


def test_a_nightly_resume_is_left_out_of_a_pull_request(tmp_path: Path) -> None:
    request = GateRequest(
        top=tmp_path,
        project=".",
        config_name="repro-gate.yml",
        settings=_settings(when="nightly"),
        settings_text=b"",
        settings_from="head",
        out=tmp_path / "out",
    )
    assert request.resumes
    assert not replace(request, nightly=False).resumes
    assert replace(request, settings=_settings(), nightly=False).resumes
    assert not replace(request, settings=settings_of(train=TRAIN)).resumes


def test_only_the_checkpoint_is_put_in_the_place_of_what_the_commit_has(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "project" / "out" / "last.pt").mkdir(parents=True)
    (tree / "project" / "out" / "last.pt" / "old").write_bytes(b"of the commit")
    place_checkpoint(FILES, _carried(tmp_path / "copy"), tree, "project")
    assert (tree / "project" / "out" / "last.pt").read_bytes() == b"weights"


def test_a_copy_that_changed_and_a_link_on_the_way_are_refused(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    with pytest.raises(RunError, match="the gate's copy changed on disk before the resumed run"):
        place_checkpoint(FILES, _carried(tmp_path / "copy", b"WEIGHTS"), tree, ".")
    (tree / "out").rename(tmp_path / "elsewhere")
    (tree / "out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="the commit has a link on the way"):
        place_checkpoint(FILES, _carried(tmp_path / "copy"), tree, ".")


def test_neither_run_is_among_the_repeats() -> None:
    assert {mode for mode in RunMode if mode.is_strict} == {
        RunMode.STRICT,
        RunMode.INTERRUPTED,
        RunMode.RESUMED,
    }
    assert RunMode.AUDIT.of_harness == "audit"
