from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Run
from played_training import Project

from gate.evidence.configuration import configuration_digest

BEFORE = {"argparse.lr": "0.1", "conf.yaml.name": '"a"', "argparse.token": '"(hidden)"'}
AFTER = {**BEFORE, "argparse.lr": "0.2"}


@pytest.fixture
def gated(project: Project, run: Run, tmp_path: Path) -> tuple[Path, Path]:
    """The baseline's entry, and the sealed output of a change of one value."""
    project.play(configuration=BEFORE)
    assert run("baseline", "record", "-q", "--reason", "first").code == 0
    (entry,) = (project.path / ".repro-gate" / "baseline").glob("*.json")
    project.play(configuration=AFTER)
    assert run("keys", "generate", "--out", tmp_path / "keys").code == 0
    key = tmp_path / "keys" / "signing-key.pem"
    ended = run("gate", "--out", tmp_path / "out", "--signing-key", key, "-q")
    assert ended.code == 0, ended.err
    return entry, tmp_path / "out"


def test_hash_and_difference_of_verdict_package_and_entry(
    project: Project, run: Run, gated: tuple[Path, Path]
) -> None:
    entry, out = gated
    shown = run("config-hash", out)
    digest = configuration_digest(AFTER)
    assert shown.out.splitlines() == [
        f"{digest}  {out}",
        "  argparse.lr = 0.2",
        '  argparse.token = "(hidden)"',
        '  conf.yaml.name = "a"',
    ]
    for place in (out / "verdict.json", out / "package.tar"):
        assert run("config-hash", place).out.startswith(digest)
    assert run("config-hash", entry).out.startswith(configuration_digest(BEFORE))
    document = json.loads(run("config-hash", out, "--json").out)
    assert (document["digest"], document["varies"]) == (digest, [])

    moved = run("config-hash", "--diff", entry, out)
    assert (moved.code, moved.out) == (1, "lr: 0.1 → 0.2 in the parsed arguments\n")
    same = run("config-hash", "--diff", out, out / "package.tar", "--json")
    assert (same.code, json.loads(same.out)["equal"]) == (0, True)

    # the same digest is in the seal, and the changed value in the reports of a pass
    trust = out.parent / "keys" / "trusted-keys.json"
    commit = project.git("rev-parse", "HEAD")
    verified = run(
        *("verify", out / "package.tar", "--trusted-keys", trust, "--commit", commit, "--json")
    )
    assert json.loads(verified.out)["configuration_digest"] == digest
    summary = (out / "summary.md").read_text()
    assert "Training configuration: values that differ (1)" in summary
    assert digest in summary


def test_a_changed_value_in_the_verdict_is_seen(run: Run, gated: tuple[Path, Path]) -> None:
    path = gated[1] / "verdict.json"
    path.write_text(path.read_text().replace('"argparse.lr": "0.2"', '"argparse.lr": "0.3"'))
    ended = run("config-hash", path)
    assert ended.code == 3
    assert "the configuration does not match its digest" in ended.err


def test_a_damaged_package_is_an_error_and_no_difference(
    run: Run, gated: tuple[Path, Path]
) -> None:
    package = gated[1] / "package.tar"
    data = package.read_bytes()
    # the header's checksum no longer holds
    package.write_bytes(b"X" + data[1:])
    ended = run("config-hash", "--diff", gated[0], package)
    assert (ended.code, "hint: " in ended.err) == (3, True)


@pytest.mark.usefixtures("project")
def test_where_nothing_was_seen_there_is_no_hash(run: Run) -> None:
    run("gate", "-q")
    ended = run("config-hash")
    assert ended.code == 3
    assert "nothing of the training's configuration was seen" in ended.err
    assert "hint: The gate sees argparse, Hydra, OmegaConf" in ended.err


@pytest.mark.parametrize("name", ["nothing", "text.txt", "empty"])
def test_what_is_none_is_refused_with_a_hint(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "text.txt").write_text("no JSON")
    (tmp_path / "empty").write_bytes(b"")
    ended = run("config-hash", tmp_path / name)
    assert ended.code == 3
    assert "hint: " in ended.err


def test_diff_takes_both_paths(run: Run, tmp_path: Path) -> None:
    ended = run("config-hash", tmp_path, "--diff", "a", "b")
    assert (ended.code, "--diff takes both paths" in ended.err) == (2, True)
    assert run("config-hash", "--diff", tmp_path / "a", tmp_path / "b").code == 3


def test_a_value_that_differs_from_run_to_run_is_left_out(project: Project, run: Run) -> None:
    varying = {"argparse.lr": "0.1", "argparse.name": '"run-1"'}
    other = {**varying, "argparse.name": '"run-2"'}
    project.settings("cost: {when: never}\n")
    project.play(configuration=varying)
    script = (project.path / "train.py").read_text()
    # the second of the strict runs has another name
    once = f"""
try:
    os.open("{project.path.parent}/first", os.O_CREAT | os.O_EXCL)
except FileExistsError:
    play["configuration"] = {other!r}
"""
    project.write("train.py", script.replace("traced = ", f"{once}traced = ", 1))
    project.commit()
    run("gate", "-q")
    shown = run("config-hash")
    assert "  argparse.name differs from run to run, so it is left out" in shown.out
    assert shown.out.startswith(configuration_digest({"argparse.lr": "0.1"}))
