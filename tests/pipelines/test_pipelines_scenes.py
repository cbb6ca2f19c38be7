"""What tests share is made once a test run and is what the program would have made for each."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from baseline_cases import only_entry
from gate_bench import Bench
from played_training import SCRIPT, Project
from recorded_trainings import recording_of
from scenes import SCENES, baseline_of, copied, scene

from gate.isolation.modes import Credentials
from gate.isolation.process_request import ProcessRequest
from gate.pipelines.case import Gated
from gate.verdict.verdict import Outcome

ASKING = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from scenes import scene
def make(folder):
    time.sleep(0.2)
    with Path(sys.argv[1]).open("a") as made:
        made.write("made\\n")
    (folder / "whole").write_text("")
print((scene("asked-" + Path(sys.argv[1]).parent.name, make) / "whole").exists())
"""


def test_processes_that_ask_at_once_get_one_scene(tmp_path: Path) -> None:
    command = (sys.executable, "-c", ASKING, str(tmp_path / "made"), *sys.path)
    asking = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [each.communicate()[0] for each in asking] == ["True\n"] * 2
    assert (tmp_path / "made").read_text() == "made\n"


def test_a_maker_that_fails_leaves_no_scene(tmp_path: Path) -> None:
    name = uuid4().hex

    def half(folder: Path) -> None:
        (folder / "half").write_text("")
        raise ValueError("broken off")

    with pytest.raises(ValueError, match="broken off"):
        scene(name, half)
    whole = copied(name, lambda folder: (folder / "whole").write_text(""), tmp_path / "copy")
    assert [path.name for path in whole.iterdir()] == ["whole"]


def test_outside_of_a_test_run_nothing_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path / "alone")
    project.play(losses=["2.0", "1.5"])
    monkeypatch.delenv(SCENES)
    assert not baseline_of(project, "", "alone", lambda _: pytest.fail("nobody shares it"))


def test_equal_commits_have_one_baseline_and_others_another(tmp_path: Path) -> None:
    texts = []
    for name, losses in (("first", "2.0"), ("again", "2.0"), ("other", "2.5")):
        project = Project(tmp_path / name)
        project.play(losses=[losses, "1.5", "1.25"])
        Bench(project, tmp_path / f"{name}-out").record()
        texts.append(only_entry(project.path).read_text())
    first, again, other = texts
    assert first == again != other
    assert Bench(project, tmp_path / "checked").gate().verdict.passes


@pytest.mark.parametrize("settings", ["data:\n  - {path: rows.csv}\n", "train: {pass_env: [X]}\n"])
def test_what_lies_outside_of_the_commit_is_recorded_anew(project: Project, settings: str) -> None:
    project.settings(settings)
    assert not baseline_of(project, "", "never", lambda _: pytest.fail("asked for"))


def test_a_baseline_is_not_put_over_another_or_into_changes(project: Project) -> None:
    project.write("more.txt", "not committed")
    assert not baseline_of(project, "", "never", lambda _: pytest.fail("asked for"))


def _said(gated: Gated) -> dict[str, object]:
    """A verdict but for times, and for the numbers of processes."""
    clocks = {"created_at", "timeline", "runs", "phases"}
    return gated.verdict.model_dump(mode="json", exclude=clocks)


@pytest.mark.parametrize("losses", [["2.0", "1.5", "1.0"], ["2.5", "nan", "2.125"]])
def test_a_recorded_training_is_judged_as_one_that_runs(
    bench: Bench, project: Project, losses: list[str]
) -> None:
    bench.record()
    project.play(losses=losses)
    base = project.git("rev-parse", "HEAD~1")
    first, recorded = bench.gate(base=base), bench.gate(base=base)
    bench.whole = True
    whole = bench.gate(base=base)
    assert _said(first) == _said(recorded) == _said(whole)
    assert [run.label for run in recorded.verdict.runs] == [run.label for run in whole.verdict.runs]
    assert recorded.evidence.runs[0].steps == whole.evidence.runs[0].steps


def _asked(project: Project, **words: str) -> ProcessRequest:
    place = str(project.path.parent / "place")
    return ProcessRequest(
        argv=("python3", "train.py"),
        env={
            "REPRO_GATE_OUT": place,
            "REPRO_GATE_DATA": place,
            "REPRO_GATE_MODE": "strict",
            **words,
        },
        workdir=project.path,
        timeout_seconds=1.0,
        output_limit_bytes=1,
    )


def test_a_recording_is_for_one_script_one_play_and_one_set_of_variables(project: Project) -> None:
    first = recording_of(_asked(project))
    assert first == recording_of(_asked(project, REPRO_GATE_OUT="/elsewhere"))
    assert first != recording_of(_asked(project, REPRO_GATE_MODE="default"))
    project.play(losses=["1.0"])
    assert first != recording_of(_asked(project))
    nobody = replace(_asked(project), credentials=Credentials(uid=60900, gid=60900))
    assert first
    assert recording_of(nobody) == ""
    project.write("train.py", f"{SCRIPT}# another one\n")
    assert recording_of(_asked(project)) == ""


@pytest.mark.parametrize(
    "play", [{"trace": []}, {"sleep": 1}, {"files": {}}, {"exit": 1}, {"strict": {"sleep": 1}}]
)
def test_what_waits_fails_or_writes_elsewhere_always_runs(
    project: Project, play: dict[str, object]
) -> None:
    project.play(**play)
    assert recording_of(_asked(project)) == ""


def test_runs_that_draw_have_a_recording_each(bench: Bench, project: Project) -> None:
    project.play(random=True)
    before = Counter[str]()
    assert recording_of(_asked(project), before) != recording_of(_asked(project), before)
    for _ in range(2):
        assert bench.gate().verdict.outcome is Outcome.NONDETERMINISTIC
