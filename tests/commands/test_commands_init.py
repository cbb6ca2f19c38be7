"""`repro-gate init` in a fresh project, and what a newcomer does wrong."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command_line import Run
from git_workshop import Repository

from gate.settings.load import MINIMAL_FILE, parse_settings

LOOP = "import torch\nfor step in range(9):\n    loss.backward()\n"


ON_ITS_TERMINAL = """
import fcntl, os, runpy, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv = ["repro-gate", "init"]
runpy.run_module("gate", run_name="__main__")
"""


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository with one commit and a training in it, and the current folder there."""
    made = Repository(tmp_path / "fresh")
    made.write("train.py", LOOP)
    made.commit()
    monkeypatch.chdir(made.path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/engine.sock")
    return made


def _settings(project: Repository) -> tuple[tuple[str, ...], str, int]:
    train = parse_settings((project.path / "repro-gate.yml").read_bytes(), "x").train
    return train.command, train.workdir, train.max_steps


def test_a_fresh_project_gets_all_that_it_needs(fresh: Repository, run: Run) -> None:
    fresh.write(".venv/pyvenv.cfg", "")
    ended = run("init")
    assert ended.code == 0
    assert _settings(fresh) == (("python", "train.py"), ".", 20)
    assert (fresh.path / ".gitignore").read_text() == "repro-gate-out/\n.venv/\n"
    assert ended.out.startswith(
        "train.py imports torch and calls backward(). The gate runs `python train.py` and\n"
        "stops it after 20 optimizer steps.\n\n"
        "  written  repro-gate.yml\n"
        "  written  .github/workflows/repro-gate.yml\n"
        "  added    to .gitignore: repro-gate-out/ .venv/\n\n"
        "Next:\n"
    )


def test_what_it_says_to_type_leaves_a_clean_tree(fresh: Repository, run: Run) -> None:
    ended = run("init")
    commands = [line.strip() for line in ended.out.splitlines() if line.startswith("  git ")]
    for command in commands[:2]:
        subprocess.run(("bash", "-c", command), env={**os.environ, **_identity()}, check=True)  # noqa: S607
    assert fresh.git("status", "--porcelain") == ""
    assert fresh.git("log", "-1", "--format=%s") == "repro-gate"


def _identity() -> dict[str, str]:
    return {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org"} | {
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@example.org",
    }


@pytest.mark.torch
def test_the_doctor_misses_nothing_but_the_baseline(fresh: Repository, run: Run) -> None:
    run("init")
    fresh.commit()
    ended = run("doctor", "--json")
    rows = json.loads(ended.out)["examined"]
    left = [(row["name"], row["health"]) for row in rows if row["health"] in {"fail", "todo"}]
    assert left == [("baseline", "todo")]


def test_nothing_that_is_there_is_overwritten(fresh: Repository, run: Run) -> None:
    fresh.write("repro-gate.yml", MINIMAL_FILE + "# mine\n")
    fresh.write(".github/workflows/repro-gate.yml", "mine")
    fresh.write(".gitignore", "*.pyc")
    ended = run("init", "--command", "python train.py")
    assert ended.code == 0
    assert "kept     repro-gate.yml: it was there already\n" in ended.out
    assert "kept     .github/workflows/repro-gate.yml: it was there already\n" in ended.out
    assert (fresh.path / "repro-gate.yml").read_text().endswith("# mine\n")
    assert (fresh.path / ".github/workflows/repro-gate.yml").read_text() == "mine"
    assert (fresh.path / ".gitignore").read_text() == "*.pyc\nrepro-gate-out/\n"
    run("init")
    assert (fresh.path / ".gitignore").read_text() == "*.pyc\nrepro-gate-out/\n"


def test_a_second_training_gets_settings_id_baseline_and_workflow_of_its_own(
    fresh: Repository, run: Run
) -> None:
    run("init")
    ended = run("init", "--command", "python other.py")
    assert "  written  repro-gate-other.yml\n" in ended.out
    assert "  written  .github/workflows/repro-gate-other.yml\n" in ended.out
    assert "kept" not in ended.out
    assert "\n  repro-gate gate --config repro-gate-other.yml\n" in ended.out
    assert "\n  git add .repro-gate/other/baseline\n" in ended.out
    settings = parse_settings((fresh.path / "repro-gate-other.yml").read_bytes(), "x")
    assert settings.train.command == ("python", "other.py")
    assert settings.report.gate_id == "other"
    assert settings.baseline.path == ".repro-gate/other/baseline"
    assert _settings(fresh)[0] == ("python", "train.py")


def test_the_second_call_for_a_training_keeps_its_file(fresh: Repository, run: Run) -> None:
    run("init")
    run("init", "--command", "python other.py")
    ended = run("init", "--command", "python other.py")
    assert "kept     repro-gate-other.yml: it was there already\n" in ended.out
    assert "The gate runs" not in ended.out
    fresh.write("repro-gate-other.yml", MINIMAL_FILE)
    ended = run("init", "--command", "python other.py")
    assert ended.code == 2
    assert ended.err == (
        "error: repro-gate-other.yml is there already and trains `python train.py`\n"
        "hint: Name another file for the second training: repro-gate init --config FILE.yml "
        "--command 'python other.py'\n"
    )


@pytest.mark.parametrize("command", [(), ("--command", "python lab/nlp/tune.py")])
def test_settings_in_a_folder_start_the_training_there(
    fresh: Repository, run: Run, command: tuple[str, ...]
) -> None:
    fresh.write("lab/nlp/tune.py", LOOP)
    ended = run("init", "--config", "lab/nlp/repro-gate.yml", *command, "--gate-id", "words")
    assert ended.code == 0
    settings = parse_settings((fresh.path / "lab/nlp/repro-gate.yml").read_bytes(), "x")
    assert (settings.train.command, settings.train.workdir) == (("python", "tune.py"), ".")
    assert settings.report.gate_id == "words"
    assert "\n  git add lab/nlp/.repro-gate/baseline\n" in ended.out
    assert not (fresh.path / "repro-gate.yml").exists()


def test_settings_in_a_folder_that_the_command_does_not_name_are_refused(
    fresh: Repository, run: Run
) -> None:
    ended = run("init", "--config", "lab/repro-gate.yml", "--command", "python train.py")
    assert ended.code == 2
    assert "settings in lab start their training there, and `python train.py` names" in ended.err
    assert not (fresh.path / "lab").exists()


def test_a_command_as_it_would_be_typed_beside_the_settings_is_told_how_to_name_its_file(
    fresh: Repository, run: Run
) -> None:
    fresh.write("vision/train.py", LOOP)
    ended = run("init", "--config", "vision/repro-gate.yml", "--command", "python train.py")
    assert (ended.code, ended.err.splitlines()) == (
        2,
        [
            "error: `python train.py` is read from the current folder, not from vision",
            "hint: Name the file in vision: --command 'python vision/train.py'",
        ],
    )


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--gate-id", "a b"), "--gate-id 'a b' is not the id of a gate"),
        (("--config", "../x.yml"), "--config '../x.yml' is not a file in the work tree"),
        (("--gate-id", "x"), "repro-gate.yml is there already, with report.gate_id default"),
    ],
)
def test_a_name_that_no_gate_can_have_is_refused(
    fresh: Repository, run: Run, options: tuple[str, ...], fault: str
) -> None:
    fresh.write("repro-gate.yml", MINIMAL_FILE)
    ended = run("init", *options)
    assert ended.code == 2
    assert fault in ended.err


def test_a_link_of_that_name_is_there_too(fresh: Repository, run: Run, tmp_path: Path) -> None:
    (fresh.path / "repro-gate.yml").symlink_to(tmp_path / "nowhere")
    (fresh.path / ".github").symlink_to(tmp_path)
    ended = run("init")
    assert ended.code == 3
    assert "link" in ended.err
    assert not (tmp_path / "nowhere").exists()
    assert not (tmp_path / "workflows").exists()


def test_several_trainings_are_listed_with_the_command_of_each(fresh: Repository, run: Run) -> None:
    fresh.write("fine tune.py", LOOP)
    ended = run("init", "--max-steps", "7")
    assert ended.code == 2
    assert ended.err == (
        "error: 2 scripts look like a training: name the one to train\n"
        "  train.py imports torch and calls backward()\n"
        "    repro-gate init --command 'python train.py' --max-steps 7\n"
        "  fine tune.py imports torch and calls backward()\n"
        "    repro-gate init --command 'python '\"'\"'fine tune.py'\"'\"'' --max-steps 7\n"
    )
    assert not (fresh.path / "repro-gate.yml").exists()
    assert run("init", "--command", "python 'fine tune.py'").code == 0
    assert _settings(fresh)[0] == ("python", "fine tune.py")


def test_no_training_is_told_with_the_command_to_type(fresh: Repository, run: Run) -> None:
    (fresh.path / "train.py").unlink()
    ended = run("init")
    assert ended.code == 2
    assert ended.err == (
        "error: no training found: no Python script here imports torch and trains\n"
        'hint: Name the command: repro-gate init --command "python train.py"\n'
    )


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("python '", "no closing quotation"),
        (" ", "--command is empty"),
        ("python train.py | tee log", "--command: | belongs to a shell"),
    ],
)
@pytest.mark.usefixtures("fresh")
def test_a_command_that_cannot_be_is_refused(run: Run, command: str, fault: str) -> None:
    ended = run("init", "--command", command)
    assert ended.code == 2
    assert fault in ended.err
    assert 'repro-gate init --command "python train.py"' in ended.err


def test_outside_git_it_says_how_to_begin(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run("init")
    assert ended.code == 2
    assert "hint: Run `git init` at the root of the project first" in ended.err


def test_without_a_commit_it_says_to_make_one(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = Repository(tmp_path / "new")
    made.write("train.py", LOOP)
    monkeypatch.chdir(made.path)
    ended = run("init")
    assert ended.code == 0
    assert "- There is no commit yet. The gate trains a commit" in ended.out
    assert '\n  git add .\n  git commit -m "First commit"\n' in ended.out


def test_what_else_is_not_committed_is_named(fresh: Repository, run: Run) -> None:
    fresh.write("notes.txt", "x")
    assert "- Commit these too, or add them to .gitignore: notes.txt." in run("init").out


def test_below_the_root_it_writes_at_the_root(
    fresh: Repository, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.write("lab/try it.py", LOOP)
    fresh.commit()
    monkeypatch.chdir(fresh.path / "lab")
    ended = run("init", "--command", "python 'try it.py'")
    assert _settings(fresh)[:2] == (("python", "try it.py"), "lab")
    # a long path stands in a line of its own, joined by a backslash
    assert f"\n  cd {fresh.path}\n" in ended.out.replace(" \\\n  ", " ")


def test_environments_and_ignored_files_are_not_looked_at(fresh: Repository, run: Run) -> None:
    fresh.write(".gitignore", "old/\n")
    fresh.write("old/train.py", LOOP)
    fresh.write("env/pyvenv.cfg", "")
    fresh.write("env/lib/train.py", LOOP)
    (fresh.path / "link.py").symlink_to("train.py")
    assert run("init").code == 0


def test_a_baseline_that_is_there_is_compared_with(fresh: Repository, run: Run) -> None:
    fresh.write(".repro-gate/baseline/any.json", "{}")
    ended = run("init")
    assert "baseline accept" not in ended.out
    assert "- Train twice and compare with the baseline:\n  repro-gate gate\n" in ended.out


@pytest.mark.parametrize(
    ("typed", "command"), [("2", "python fine.py"), ("python x.py", "python x.py")]
)
def test_on_a_terminal_training_and_owner_are_asked_for(
    fresh: Repository, typed: str, command: str
) -> None:
    fresh.write("fine.py", LOOP)
    shown, code = _on_a_terminal(f"{typed}\nacme\n".encode())
    assert "Which one is the training? Its number, or a command:" in shown
    assert code == 0
    assert " ".join(_settings(fresh)[0]) == command
    workflow = (fresh.path / ".github/workflows/repro-gate.yml").read_text()
    assert "uses: acme/repro-gate@v1" in workflow


def test_the_owner_of_the_action_is_named_or_said_to_be_missing(
    fresh: Repository, run: Run
) -> None:
    assert "--action" in run("init", "--action", "no/such/name").err
    assert "Replace `org` in the workflow" not in run("init", "--action", "acme/gate").out
    assert "uses: acme/gate@v1" in (fresh.path / ".github/workflows/repro-gate.yml").read_text()


def test_a_script_that_needs_an_option_says_so_with_the_command_to_type(
    fresh: Repository, run: Run
) -> None:
    needs = "import argparse\nargparse.ArgumentParser().add_argument('--config', required=True)\n"
    fresh.write("train.py", needs + LOOP)
    ended = run("init")
    assert ended.code == 2
    assert "train.py does not start without --config" in ended.err
    assert "repro-gate init --command 'python train.py --config VALUE'" in ended.err


def test_a_module_of_a_package_is_started_as_one(fresh: Repository, run: Run) -> None:
    (fresh.path / "train.py").unlink()
    fresh.write("src/mytrainer/__init__.py", "")
    fresh.write("src/mytrainer/cli.py", f"import mytrainer\n{LOOP}")
    assert run("init").code == 0
    assert _settings(fresh)[:2] == (("python", "-m", "mytrainer.cli"), "src")


@pytest.mark.parametrize(
    ("keys", "code", "told"),
    [(b"\x03", 4, "cancelled by SIGINT"), (b"\x04", 2, "2 scripts look like a training")],
    ids=["ctrl-c", "ctrl-d"],
)
def test_who_does_not_answer_gets_no_file(
    fresh: Repository, keys: bytes, code: int, told: str
) -> None:
    fresh.write("fine.py", LOOP)
    shown, ended = _on_a_terminal(keys)
    assert (ended, told in shown) == (code, True)
    assert not (fresh.path / "repro-gate.yml").exists()


def _on_a_terminal(keys: bytes) -> tuple[str, int]:
    """What `init` shows on a terminal where somebody answers its question with these keys."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        # a session of its own takes the terminal: only then is Ctrl-C a signal to it
        (sys.executable, "-c", ON_ITS_TERMINAL),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown, asked = b"", False
    while select.select([ours], [], [], 120)[0]:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # EIO: the other end is closed (Linux)
            break
        shown += piece
        if b"or a command: " in shown and not asked:
            os.write(ours, keys)
            asked = True
    os.close(ours)
    return shown.decode(), process.wait()


READS = 'import os\nimport numpy\nx = numpy.memmap(os.path.join("data", "train.bin"))\n' + LOOP


def test_ignored_data_that_the_training_reads_is_named_with_what_helps(
    fresh: Repository, run: Run
) -> None:
    fresh.write("train.py", READS)
    fresh.write("data/prepare.py", "")
    fresh.write(".gitignore", "*.bin\nrepro-gate-out/\n")
    fresh.commit()
    fresh.write("data/train.bin", "x")
    said = " ".join(run("init").out.split())
    assert (
        "train.py:3 reads data/train.bin, which git ignores. Let the gate make it: "
        '`preprocess: {command: "python data/prepare.py", out: "data/train.bin"}`.'
    ) in said


def test_data_that_preprocess_makes_is_not_named(fresh: Repository, run: Run) -> None:
    fresh.write("train.py", READS)
    fresh.write(".gitignore", "*.bin\nrepro-gate-out/\n")
    made = "preprocess: {command: python prepare.py, out: data/train.bin}\n"
    fresh.write("repro-gate.yml", MINIMAL_FILE + made)
    fresh.commit()
    fresh.write("data/train.bin", "x")
    assert "which git ignores" not in run("init").out


def test_a_fast_project_asks_for_one_run_and_makes_all_of_them_every_night(
    fresh: Repository, run: Run
) -> None:
    assert run("init", "--fast").code == 0
    settings = parse_settings((fresh.path / "repro-gate.yml").read_bytes(), "x")
    assert (settings.runs.when_reproduced, settings.cost.when) == ("one", "nightly")
    path = fresh.path / ".github/workflows/repro-gate-nightly.yml"
    nightly = yaml.safe_load(path.read_text())
    # YAML 1.1 reads the key `on` as a truth value
    assert set(nightly[True]) == {"schedule", "workflow_dispatch"}
    assert "concurrency" not in nightly
    (job,) = nightly["jobs"].items()
    assert job[0] == "nightly"
    assert job[1]["permissions"] == {"contents": "read"}
    uploads = [step["with"] for step in job[1]["steps"] if "upload" in step["uses"]]
    assert uploads[0]["name"] == "repro-gate-nightly"
    assert "mode: link" not in path.read_text()


@pytest.mark.usefixtures("fresh")
def test_settings_that_are_there_stay_and_the_lines_for_fast_are_shown(run: Run) -> None:
    run("init")
    ended = run("init", "--fast")
    assert "Add these lines to repro-gate.yml" in ended.out
    assert "runs: {when_reproduced: one}" in ended.out
    # a second call has nothing to say
    assert "Add these lines" not in run("init", "--fast").out


def test_a_second_gate_gets_a_nightly_workflow_of_its_own(fresh: Repository, run: Run) -> None:
    words = ("--config", "nlp.yml", "--gate-id", "nlp", "--command", "python train.py")
    assert run("init", "--fast", *words).code == 0
    text = (fresh.path / ".github/workflows/repro-gate-nlp-nightly.yml").read_text()
    assert text.startswith("name: repro-gate-nlp-nightly\n")
    assert "gate_id: nlp" in text
    assert "    name: nightly (nlp)\n" in text
