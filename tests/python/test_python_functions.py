"""The functions of `repro_gate`, each in a real process of the program."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from git_workshop import Repository
from played_training import SETTINGS, Project
from saved_tensors import floats, write_state

import repro_gate
from gate.verdict.verdict import Verdict as VerdictDocument
from repro_gate import engine, functions

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "python3 train.py"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A committed played training without settings; the current folder is in it."""
    made = Project(tmp_path / "project")
    (made.path / "repro-gate.yml").unlink()
    made.commit()
    monkeypatch.chdir(made.path)
    return made


def _asserted(**arguments: object) -> repro_gate.Verdict:
    own = {"isolation": {"mode": "none"}}
    return repro_gate.assert_reproducible(COMMAND, max_steps=3, settings=own, **arguments)  # type: ignore[arg-type] # by name


def test_recorded_then_reproduced_then_different(project: Project) -> None:
    with pytest.raises(repro_gate.NotReproducibleError, match="no baseline yet") as first:
        _asserted()
    assert "\nWhat now? Record it with `pytest --repro-gate-update`" in str(first.value)
    recorded = _asserted(update=True, reason="first")
    (name,) = recorded.recorded
    assert name.startswith(".repro-gate/python3-train.py/baseline/cpu-")
    assert json.loads((project.path / name).read_text())["reason"] == "first"

    # before it is committed, as tests with snapshots have it
    verdict = _asserted()
    assert (verdict.outcome, verdict.passes, verdict.recorded) == ("reproduced", True, ())
    assert verdict.series("loss") == {1: 2.5, 2: 2.25, 3: 2.125}
    with pytest.raises(KeyError, match="there are: loss"):
        verdict.series("accuracy")

    project.play(losses=["2.5", "2.25", "2.0"])
    with pytest.raises(AssertionError) as moved:
        _asserted()
    lines = str(moved.value).splitlines()
    assert lines[0] == "repro-gate failed: this change moves the result"
    assert lines[1].startswith("What happened? Loss at step 3: 2 instead of 2.125")
    assert lines[-1] == f"Report: {project.path}/repro-gate-out-python3-train.py/report.html"
    assert isinstance(moved.value, repro_gate.NotReproducibleError)
    assert moved.value.verdict.outcome == "code-drift"
    # the same words as the comment, which escapes them for GitHub
    comment = (project.path / "repro-gate-out-python3-train.py" / "comment.md").read_text()
    assert lines[0].removeprefix("repro-gate ") in comment

    loaded = repro_gate.load_verdict("repro-gate-out-python3-train.py")
    assert loaded.outcome == "code-drift"
    assert lines[1] in loaded.text
    VerdictDocument.model_validate_json(json.dumps(dict(loaded.document)))


def test_runs_that_differ_are_no_baseline(project: Project) -> None:
    project.play(random=True)
    with pytest.raises(repro_gate.NotReproducibleError) as raised:
        _asserted(update=True)
    assert raised.value.verdict.outcome == "nondeterministic"
    assert "If intended" not in str(raised.value)
    assert not (project.path / ".repro-gate").exists()


def test_uncommitted_changes_are_trained_and_never_recorded(project: Project) -> None:
    project.write("play.json", json.dumps({"losses": ["3.5"]}))
    with pytest.raises(repro_gate.NotReproducibleError, match="Commit the change, then record it"):
        _asserted()
    with pytest.raises(repro_gate.ReproGateError) as refused:
        _asserted(update=True)
    assert refused.value.message == (
        "a baseline names a commit, and the work tree has uncommitted changes\nplay.json"
    )
    assert refused.value.exit_code == 2


def test_what_the_settings_file_trains_shares_its_baseline(project: Project) -> None:
    project.write("repro-gate.yml", SETTINGS)
    project.commit()
    recorded = repro_gate.assert_reproducible(update=True)
    assert recorded.recorded[0].startswith(".repro-gate/baseline/cpu-")
    assert _asserted().outcome == "reproduced"
    # fewer steps are another training, with a baseline of its own
    with pytest.raises(repro_gate.NotReproducibleError, match="no baseline yet"):
        repro_gate.assert_reproducible(max_steps=2)


def test_a_training_that_fails_is_an_error_with_a_hint(project: Project) -> None:
    project.play(exit=1, says="no such column: label")
    with pytest.raises(repro_gate.ReproGateError) as raised:
        _asserted()
    assert "python3 train.py exited with 1" in raised.value.message
    assert "no such column: label" in raised.value.message
    assert raised.value.hint
    assert not isinstance(raised.value, AssertionError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "no command to train, and no repro-gate.yml"),
        ({"command": COMMAND}, "call: 1 error\ntrain.max_steps: is required"),
        ({"command": COMMAND, "max_steps": 0}, "train.max_steps: must be greater than or equal"),
        ({"command": [], "max_steps": 1}, "command"),
        ({"command": COMMAND, "max_steps": 1, "settings": {"colour": 1}}, "colour: is not a known"),
        ({"command": COMMAND, "max_steps": 1, "settings": [1]}, "settings: "),
        (
            {"command": COMMAND, "max_steps": 4, "settings": {"train": {"max_steps": 9}}},
            "max_steps is given twice: as an argument, and otherwise as train.max_steps",
        ),
        ({"command": COMMAND, "max_steps": 1, "gate_id": "../x"}, "report.gate_id"),
        ({"command": COMMAND, "max_steps": 1, "config": "nope.yml"}, "nope.yml: no such file"),
        ({"command": COMMAND, "max_steps": 1, "folder": "/"}, "git repository"),
        ({"command": COMMAND, "max_steps": 1, "reason": "x" * 501}, "should have at most 500"),
        (
            {"command": COMMAND, "max_steps": 1, "reason": "x" * 2**20},
            "bytes, the limit is 1,048,576",
        ),
    ],
)
@pytest.mark.usefixtures("project")
def test_wrong_arguments_say_what_is_wrong(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(repro_gate.ReproGateError) as raised:
        repro_gate.assert_reproducible(**arguments)  # type: ignore[arg-type] # wrong on purpose
    assert message in str(raised.value)
    assert "line " not in str(raised.value)
    assert raised.value.exit_code in {2, 3}


def test_digest_and_diff_read_checkpoints(tmp_path: Path) -> None:
    one = write_state(tmp_path / "one.safetensors", w=floats(0.0, 0.0))
    two = write_state(tmp_path / "two.safetensors", w=floats(0.0, 1.0))
    shown = repro_gate.digest(one)
    assert (len(shown.root), shown.format) == (64, "safetensors")
    assert repro_gate.digest(one, exclude={"/w": "a trial"}).root != shown.root
    assert repro_gate.diff(one, one).equal
    found = repro_gate.diff(one, two)
    assert (found.equal, len(found.differences)) == (False, 1)
    assert found.differences[0]["max_absolute"] == 1.0


@pytest.mark.parametrize("name", ["nothing.pt", "-x", "text.txt"])
def test_files_that_are_none_are_errors(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.txt").write_text("{")
    for look in (repro_gate.digest, repro_gate.load_verdict):
        with pytest.raises(repro_gate.ReproGateError) as raised:
            look(tmp_path / name if name[0] != "-" else name)
        assert raised.value.hint


def test_an_error_that_quotes_another_is_told_whole() -> None:
    said = "a note\nerror: x.pt: error: no such key\nhint: Name another.\n"
    with pytest.raises(repro_gate.ReproGateError) as raised:
        engine._answer(b"", said, 3)
    assert (raised.value.message, raised.value.hint) == (
        "x.pt: error: no such key",
        "Name another.",
    )


def test_verify_refuses_what_nobody_sealed(tmp_path: Path) -> None:
    (tmp_path / "package.tar").write_bytes(b"")
    with pytest.raises(repro_gate.ReproGateError, match="no trusted key or identity was given"):
        repro_gate.verify(tmp_path / "package.tar", commit="a" * 40)
    with pytest.raises(repro_gate.ReproGateError) as raised:
        repro_gate.verify(tmp_path / "package.tar", commit="a" * 40, trusted_keys=tmp_path / "k")
    assert raised.value.hint


def test_no_package_of_a_project_is_taken_for_the_program(project: Project) -> None:
    project.write("gate/__init__.py", "raise RuntimeError('of the project')\n")
    project.write("pydantic.py", "raise RuntimeError('of the project')\n")
    project.commit()
    with pytest.raises(repro_gate.NotReproducibleError, match="no baseline yet"):
        _asserted()


def test_importing_it_loads_the_standard_library_alone() -> None:
    inside = {"repro_gate", "__future__", "pytest"}
    for path in sorted((ROOT / "repro_gate").glob("*.py")):
        names = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        allowed = inside if path.stem == "pytest_plugin" else inside - {"pytest"}
        assert names <= allowed | sys.stdlib_module_names, path.name


def test_every_public_name_is_documented() -> None:
    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    assert {name for name in repro_gate.__all__ if name not in page} == set()
    arguments = functions.assert_reproducible.__kwdefaults__ or {}
    assert arguments
    assert {name for name in arguments if f"`{name}`" not in page} == set()
    assert (ROOT / "repro_gate" / "py.typed").is_file()


def test_an_interrupt_ends_the_training(project: Project) -> None:
    project.play(sleep=120)
    script = (
        # a shell has its background jobs ignore the signal, and these tests may be one
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import repro_gate\n"
        "print('begun', flush=True)\n"
        f"repro_gate.assert_reproducible({COMMAND!r}, max_steps=3, "
        "settings={'isolation': {'mode': 'none'}})\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=project.path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert any("training, strict mode" in line for line in iter(process.stderr.readline, ""))
    process.send_signal(2)
    _, said = process.communicate(timeout=90)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in said
    lock = project.path / "repro-gate-out-python3-train.py" / "work"
    assert not any(lock.glob("*")), "the program put its folder in order"


def test_a_repository_without_commits_is_an_error(tmp_path: Path) -> None:
    empty = Repository(tmp_path / "empty")
    with pytest.raises(repro_gate.ReproGateError) as raised:
        repro_gate.assert_reproducible("python3 x.py", max_steps=1, folder=empty.path)
    assert "commit" in str(raised.value)
