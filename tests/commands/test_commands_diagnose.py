"""`repro-gate diagnose`: the diagnosis again, from what a call kept, and every broken input."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Run, record
from played_training import SETTINGS, Project
from trace_cases import call, value

from gate.cli import answer
from gate.diagnosis.diagnosis import Diagnosis
from gate.report.brief import brief_of
from gate.verdict.verdict import Verdict

OUT = "repro-gate-out"
END = {"kind": "end", "why": "done", "calls": 1, "unread": 0}
WANTED = "hint: Name the evidence folder of a call (repro-gate-out/evidence, or what"


def draws() -> list[object]:
    """A trace of one call whose output differs in each run."""
    made = call(0, "aten::scatter_add", (value("in"),), (value("out"),)).model_dump(mode="json")
    made["outputs"][0]["digest"] = "grid64:DRAWN"
    return [{"kind": "call", **made}, END]


def gated(project: Project) -> None:
    """A gate call in the project, as its console script makes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project.path)
        patch.setattr(sys, "argv", ["repro-gate", "gate", "--quiet"])
        with pytest.raises(SystemExit, match="1"):
            answer(["gate", "--quiet"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a call whose two runs differ and were traced; made once."""
    project = Project(tmp_path_factory.mktemp("made") / "project")
    project.play(random=True, trace=draws())
    gated(project)
    return project.path / OUT


@pytest.fixture
def kept(made: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(made, tmp_path / OUT))


def test_an_evidence_folder_gives_the_lines_of_the_comment_again(kept: Path, run: Run) -> None:
    said = Verdict.model_validate_json((kept / "verdict.json").read_text())
    ended = run("diagnose", kept / "evidence", "--json")
    told = json.loads(ended.out)
    assert (ended.code, ended.err) == (0, "")
    assert told["schema_version"] == "repro-gate.diagnosis/1"
    assert told["outcome"] == "nondeterministic"
    assert (told["expected"], told["observed"]) == ("strict-1", "strict-2")
    assert Diagnosis.model_validate_json(json.dumps(told["diagnosis"])) == said.diagnosis
    assert told["diagnosis"]["trace"]["claim"] == "nondeterministic-operator"
    assert told["summary"] == brief_of(said).happened
    assert len(told["missing"]) == 1
    assert "have no fingerprints in common but the parameters'" in told["missing"][0]


def test_the_terminal_has_both_lines_the_suspects_and_both_traces(kept: Path, run: Run) -> None:
    out = " ".join(run("diagnose", kept).out.split())
    assert "nondeterministic, commit" in out
    assert "Two runs of this commit differ" in out
    assert "Is it this change?" in out
    assert "Diagnosis: the first divergence" in out
    assert "Operator trace: both runs around the point" in out
    assert "aten::scatter_add at train.py:1 gives a different output for equal inputs" in out


def test_a_package_is_read_as_well_and_its_seal_is_not_checked(kept: Path, run: Run) -> None:
    ended = run("diagnose", kept / "package.tar")
    assert ended.code == 0
    assert "aten::scatter_add" in ended.out
    assert "The package's seal was not checked: `repro-gate verify` does that." in ended.out
    folder = json.loads(run("diagnose", kept, "--json").out)
    assert json.loads(run("diagnose", kept / "package.tar", "--json").out) == folder


def test_metrics_without_fingerprints_and_a_missing_trace_are_named(
    project: Project, run: Run
) -> None:
    project.play(random=True)
    project.settings("diagnosis: {escalate: false}\n")
    run("gate", "--quiet")
    missing = json.loads(run("diagnose", OUT, "--json").out)["missing"]
    assert missing[0].startswith("strict-1 and strict-2 have no fingerprints in common")
    assert missing[1].startswith("There is no operator trace: it needs two more trainings")
    out = " ".join(run("diagnose", OUT).out.split())
    assert "Not here: There is no operator trace" in out


@pytest.fixture
def drifted(project: Project, run: Run) -> Path:
    """The output folder of a call whose result left its committed baseline."""
    record(project, run, "--reason", "first")
    project.commit()
    project.play(losses=["2.5", "2.25", "2.0"])
    assert run("gate", "--quiet").code == 1
    return project.path / OUT


def test_a_drift_needs_the_baseline_which_a_package_holds(drifted: Path, run: Run) -> None:
    bare = json.loads(run("diagnose", drifted, "--json").out)
    assert (bare["outcome"], bare["diagnosis"]) == ("equal", None)
    assert bare["missing"][0].startswith("The baseline is not among the evidence")
    assert "strict-1 and strict-2" in bare["summary"]
    packed = json.loads(run("diagnose", drifted / "package.tar", "--json").out)
    named = json.loads(run("diagnose", drifted, "--baseline", ".repro-gate/baseline", "--json").out)
    said = json.loads((drifted / "verdict.json").read_text())["diagnosis"]
    assert packed["diagnosis"] == named["diagnosis"] == said
    assert (packed["outcome"], packed["expected"]) == ("code-drift", "baseline")


def test_a_baseline_of_another_training_is_none(drifted: Path, project: Project, run: Run) -> None:
    project.write("repro-gate.yml", SETTINGS.replace("train.py", "train.py --other"))
    project.commit()
    assert run("gate", "--quiet").code == 1
    told = json.loads(run("diagnose", drifted, "--baseline", ".repro-gate/baseline", "--json").out)
    assert told["missing"][0].startswith("The baseline holds no entry of this training")


def _fault(run: Run, *words: object) -> list[str]:
    ended = run("diagnose", *words)
    assert ended.code in {1, 2, 3}
    assert ended.out == ""
    assert "Traceback" not in ended.err
    return ended.err.splitlines()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Path.exists, "there is nothing at "),
        (lambda path: path.mkdir(), "there is no evidence in "),
        (lambda path: path.write_bytes(b""), "is not a package of repro-gate"),
        (lambda path: path.write_text("hello"), "is not a package of repro-gate"),
        (os.mkfifo, "is a FIFO, not a regular file"),
    ],
)
def test_what_is_no_evidence_is_one_clear_error(
    tmp_path: Path, run: Run, make: Callable[[Path], object], message: str
) -> None:
    make(tmp_path / "given")
    first, hint = _fault(run, tmp_path / "given")
    assert message in first
    assert hint.startswith((WANTED, "hint: Only regular files are read"))


def _foreign(folder: Path) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace("manifest/1", "manifest/9"))


def _linked(folder: Path) -> None:
    (folder / "strict-2").rename(folder.parent / "elsewhere")
    (folder / "strict-2").symlink_to(folder.parent / "elsewhere")


def _cut(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:200])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_foreign, "schema version 'repro-gate.evidence-manifest/9', this repro-gate reads"),
        (_cut("manifest.json"), "manifest.json: not valid JSON"),
        (_cut("set.json"), "set.json: is not the document that manifest.json lists"),
        (_cut("strict-2/evidence.json"), "strict-2/evidence.json: is not the document that"),
        (lambda folder: shutil.rmtree(folder / "strict-2"), "strict-2/evidence.json: cannot be"),
        (_linked, "leads through"),
    ],
)
def test_a_broken_folder_is_one_clear_error(
    kept: Path, run: Run, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(kept / "evidence")
    first, *_, hint = _fault(run, kept / "evidence")
    assert message in first
    assert hint.startswith("hint: ")


def _flipped(data: bytes) -> bytes:
    at = data.index(b'"parameters"')
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data[:700], "the package is truncated"),
        (lambda data: data[: len(data) // 2], "the package is truncated"),
        (lambda data: data + b"x", "the package is not an archive that repro-gate wrote"),
        (_flipped, "SHA256SUMS does not match the files of the package"),
    ],
)
def test_a_broken_package_is_one_clear_error(
    kept: Path, run: Run, spoil: Callable[[bytes], bytes], message: str
) -> None:
    package = kept / "package.tar"
    package.write_bytes(spoil(package.read_bytes()))
    first, *_, hint = _fault(run, package)
    assert message in first
    assert hint == "hint: The file was cut off or changed; fetch it again from where it was made."


def test_evidence_without_a_strict_run_says_what_makes_some(project: Project, run: Run) -> None:
    project.play(counted={})
    assert run("operators").code == 0
    first, hint = _fault(run, OUT)
    assert first == "error: the evidence holds no strict run of the commit"
    assert hint == "hint: Only `repro-gate gate` and `repro-gate run` make evidence to diagnose."


def test_a_baseline_that_is_not_there_is_told(kept: Path, run: Run, tmp_path: Path) -> None:
    first, hint = _fault(run, kept, "--baseline", tmp_path / "nowhere")
    assert "there is nothing at" in first
    assert hint == "hint: Name the folder of baseline.path; the default is .repro-gate/baseline."
    (tmp_path / "empty").mkdir()
    assert (
        "contains no entry of a baseline" in _fault(run, kept, "--baseline", tmp_path / "empty")[0]
    )
