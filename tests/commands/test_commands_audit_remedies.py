"""Each remedy of an audit is followed word by word, and turns its item into a pass."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attestation_cases import verdict_of
from audit_cases import package_members, packed
from command_line import Run, record
from harness_folder import override_line
from played_training import SCRIPT, SETTINGS, Project
from recorded_trainings import pure

AUDIT = Path(__file__).parents[2] / "gate" / "audit"
CODE = re.compile(r'code = AuditedPart\.\w+, "([a-z-]+)"|AuditedPart\.\w+,\s+"([a-z-]+)",')
PART_CODE = re.compile(r'(?:failed_item|unknown)\(\s*part,\s*"([a-z-]+)"')
HASH = "5" * 64


def item(run: Run, code: str) -> dict[str, str] | None:
    """The item of the audit of the current folder; None where there is none."""
    items = json.loads(run("audit", "--format", "json").out)["items"]
    return next((one for one in items if one["code"] == code), None)


def typed(command: str, run: Run) -> None:
    """What a person types, in the current folder; uv is played, since it asks an index."""
    for step in re.split(r" && ", command):
        words = shlex.split(step.rpartition(" | ")[2])
        if words[:2] == ["uv", "pip"]:
            # after `printf '%s\n'`, or the lines of a file
            given = shlex.split(step.partition(" | ")[0])[2:]
            names = given if words[4] == "-" else Path(words[4]).read_text().split()
            lines = (f"{name}==1.0 --hash=sha256:{HASH}\n" for name in names)
            Path(words[-1]).write_text("".join(lines))
        elif words[0] == "repro-gate":
            ended = run(*words[1:])
            assert ended.code == 0, ended.err
        elif words[0] == "git" or words[0] in {"mkdir", "cp"}:
            subprocess.run(words, check=True, capture_output=True)


def written(path: str, text: str) -> Callable[[Project], object]:
    return lambda project: project.write(path, text)


def gone(path: str) -> Callable[[Project], object]:
    return lambda project: (project.path / path).unlink()


BROKEN = SETTINGS.replace("version: 1", "version: 1\ntrian: {}")
SCRIPT_GONE = SETTINGS.replace("train.py", "other.py")
WEAK = SETTINGS + "determinism: {profile: default}\n"
LOADS = "from datasets import load_dataset\nload_dataset('imdb'"
OUTSIDE = "open('/srv/x.npy')\n"
DECLARED = SETTINGS + "data: [{path: /srv/x.npy, as: x.npy}]\n"
# what is wrong, the item, and what its remedy says to write, where no command does it
EDITS = {
    "training-script": (("repro-gate.yml", SCRIPT_GONE), ("repro-gate.yml", SETTINGS)),
    "settings": (("repro-gate.yml", BROKEN), ("repro-gate.yml", SETTINGS)),
    "strict-mode": (("repro-gate.yml", WEAK), ("repro-gate.yml", SETTINGS)),
    "image-digest": (
        ("Dockerfile", "FROM python:3.11\n"),
        ("Dockerfile", f"FROM python:3.11@sha256:{HASH}\n"),
    ),
    "downloads": (("train.py", f"{LOADS})\n"), ("train.py", f"{LOADS}, revision='{HASH}')\n")),
    "undeclared-data": (("train.py", OUTSIDE), ("repro-gate.yml", DECLARED)),
    "declared-data": (("train.py", "open(name)\n"), ("repro-gate.yml", DECLARED)),
    "nondeterministic-flags": (
        ("train.py", "import torch\ntorch.backends.cudnn.benchmark = True\n"),
        ("train.py", "import torch\n"),
    ),
    "unseeded-generator": (
        ("train.py", "import random\nrandom.seed()\n"),
        ("train.py", "import random\nrandom.seed(0)\n"),
    ),
}
TYPED: dict[str, Callable[[Project], object]] = {
    "clean-tree": written("new.py", ""),
    "lock-file": written("requirements.txt", "numpy\n"),
    "workflow": written("other.txt", ""),
    "trusted-keys": written("other.txt", ""),
    "not-set-up": gone("repro-gate.yml"),
    "seeds": gone("repro-gate.yml"),
    "baseline": written("other.txt", ""),
    "machine": written("other.txt", ""),
}
TRAINS = "import torch\ntorch.nn.Linear(1, 1).weight.sum().backward()\nfor _ in (): pass\n"


@pytest.mark.parametrize("code", sorted(EDITS))
def test_an_edit_that_a_remedy_asks_for_turns_its_item(
    project: Project, run: Run, code: str
) -> None:
    wrong, right = EDITS[code]
    project.write(*wrong)
    before = item(run, code)
    assert before is not None
    assert before["result"] != "pass"
    assert before["remedy"]
    project.write(*right)
    after = item(run, code)
    assert after is None or after["result"] == "pass"


@pytest.mark.parametrize("code", sorted(TYPED))
def test_a_command_that_an_audit_names_turns_its_item(
    project: Project, run: Run, code: str
) -> None:
    if code in {"not-set-up", "seeds"}:
        project.write("train.py", TRAINS)
    else:
        project.play(environment={"cpu": "one"})
    TYPED[code](project)
    if code != "clean-tree":
        project.commit()
    before = item(run, code)
    assert before is not None
    assert before["result"] != "pass"
    typed(before["command"], run)
    after = item(run, code)
    assert after is None or after["result"] == "pass"


def test_a_lock_that_lacks_an_import_is_completed_by_the_command(
    project: Project, run: Run
) -> None:
    project.write("train.py", TRAINS)
    project.write("requirements.txt", f"numpy==1.0 --hash=sha256:{HASH}\n")
    before = item(run, "lock-file")
    assert before is not None
    assert before["found"] == "requirements.txt locks no torch, which the scripts import"
    typed(before["command"], run)
    after = item(run, "lock-file")
    assert after is not None
    assert after["result"] == "pass"


def test_a_folder_becomes_a_commit_by_the_command(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME"):
        monkeypatch.setenv(name, "somebody")
    monkeypatch.setenv("GIT_COMMITTER_EMAIL", "somebody@example.org")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINS)
    before = item(run, "commit")
    assert before is not None
    typed(before["command"], run)
    after = item(run, "commit")
    assert after is not None
    assert after["result"] == "pass"


def test_a_requirement_with_a_hash_of_zeros_locks_nothing(project: Project, run: Run) -> None:
    project.write("requirements.txt", f"numpy==1.0 --hash=sha256:{'0' * 64}\n")
    found = item(run, "lock-file")
    assert found is not None
    assert found["result"] == "fail"
    assert "is not the hash of a file" in found["found"]


def test_a_script_that_prepares_the_data_is_looked_at(project: Project, run: Run) -> None:
    project.write("data/prepare.py", "import requests\nrequests.get('https://example.org/x')\n")
    found = item(run, "downloads")
    assert found is not None
    assert "data/prepare.py:2 requests.get(https://example.org/x)" in found["found"]
    assert "data: [{url: https://example.org/x, sha256: …}]" in found["remedy"]


def package_item(run: Run, package: Path, code: str) -> dict[str, str] | None:
    """The item of the audit of a package; None where there is none."""
    items = json.loads(run("audit", "--package", package, "--format", "json").out)["items"]
    return next((one for one in items if one["code"] == code), None)


def made_package() -> Path:
    """That of the gate call in the current folder."""
    (package,) = Path().rglob("package.tar")
    return package


def test_the_command_for_a_package_without_a_baseline_makes_one_that_a_baseline_judged(
    project: Project, run: Run
) -> None:
    project.play(environment={"cpu": "one"})
    run("gate", "-q")
    before = package_item(run, made_package(), "baseline")
    assert before is not None
    assert before["result"] == "fail"
    typed(before["command"], run)
    after = package_item(run, made_package(), "baseline")
    assert after is not None
    assert after["result"] == "pass"


def test_the_commands_for_a_package_without_a_seal_make_and_check_one(
    project: Project, run: Run
) -> None:
    record(project, run)
    project.commit()
    run("gate", "-q")
    before = package_item(run, made_package(), "seal")
    assert before is not None
    assert before["found"] == "there is no seal next to the package"
    typed(before["command"], run)
    sealed = package_item(run, made_package(), "seal")
    assert sealed is not None
    assert sealed["found"] == "the seal was not checked"
    shutil.copy("../gate-keys/trusted-keys.json", "trusted-keys.json")
    checked = run(*shlex.split(sealed["command"])[1:], "--format", "json")
    (after,) = [one for one in json.loads(checked.out)["items"] if one["code"] == "seal"]
    assert after["result"] == "pass"


def test_the_command_for_uncommitted_changes_makes_a_package_of_a_commit(
    project: Project, run: Run, tmp_path: Path
) -> None:
    record(project, run)
    project.commit()
    dirty = packed(tmp_path / "dirty.tar", package_members(verdict_of(changed_files=("new.py",))))
    project.write("new.py", "")
    before = package_item(run, dirty, "clean-tree")
    assert before is not None
    typed(before["command"], run)
    assert project.git("status", "--porcelain", "new.py") == ""
    assert package_item(run, made_package(), "clean-tree") is None


def test_the_command_for_a_package_without_a_lock_file_locks_and_runs_again(
    project: Project, run: Run, tmp_path: Path
) -> None:
    record(project, run)
    project.commit()
    before = package_item(run, packed(tmp_path / "loose.tar", package_members()), "lock-file")
    assert before is not None
    # what pip would write, which is not run here
    project.write("requirements-installed.txt", "numpy\n")
    typed(before["command"], run)
    assert made_package().exists()
    after = item(run, "lock-file")
    assert after is not None
    assert after["result"] == "pass"


# what a training tells of itself where nothing is missing
WHOLE = SCRIPT.replace(
    '"applied": {"seed": "42"}',
    '"applied": {"seed_torch": "42"}, "variables": {"PYTHONHASHSEED": "42"}',
).replace('"steps": len(losses)', '"packages": ["numpy==1.0"], "steps": len(losses)')
pure(WHOLE)
PACKED_SOURCE = SETTINGS + "package: {source: true}\n"


BY_ENTROPY = {**override_line(kind="entropy", name="numpy.random"), "rank": 0, "pid": 7}
# of a package: the document in which something is missing or wrong, what, and what the remedy
# asks to edit before its command
ANOTHER_CALL: dict[str, tuple[str, Callable[[Any], object], str]] = {
    "packages": ("environment.json", lambda one: one.update(packages=[]), ""),
    "source": ("call.json", lambda one: one.update(repository=""), PACKED_SOURCE),
    "declared-data": (
        "verdict.json",
        lambda one: one["isolation"].update(image="sha256:0"),
        "",
    ),
    "settings": (
        "call.json",
        lambda one: one.update(gate_version="0.1.0"),
        "",
    ),
    "strict-mode": ("repro-gate.yml", str, SETTINGS + "# strict\n"),
    "seeds": ("seeds.json", lambda one: one.update(processes=[]), ""),
    "unseeded-generator": (
        "seeds.json",
        lambda one: one.update(by_the_script=[BY_ENTROPY]),
        "",
    ),
    "repeat": ("verdict.json", lambda one: one["answers"].update(repeat="not-compared"), ""),
    "machine": ("cluster.json", lambda one: one["host"].update(cpu=""), ""),
    "determinism-budget": ("verdict.json", lambda one: one.update(determinism_budget=[]), ""),
}


def spoilt(package: Path, target: Path, code: str) -> Path:
    """A package like that one, with one document changed."""
    with tarfile.open(package) as archive:
        members = {
            one.name: file.read()
            for one in archive.getmembers()
            if one.name != "SHA256SUMS" and (file := archive.extractfile(one)) is not None
        }
    name, change, _ = ANOTHER_CALL[code]
    if code == "settings":
        # as of a gate that knew other settings
        verdict = json.loads(members["verdict.json"]) | {"settings_digest": "0" * 64}
        members["verdict.json"] = json.dumps(verdict).encode()
    if name.endswith(".json"):
        document = json.loads(members[name])
        change(document)
        members[name] = json.dumps(document).encode()
    else:
        members[name] += b"determinism: {profile: default}\n"
    return packed(target, members)


@pytest.mark.parametrize("code", sorted(ANOTHER_CALL))
def test_what_a_remedy_of_a_package_asks_for_makes_one_without_the_item(
    project: Project, run: Run, tmp_path: Path, code: str
) -> None:
    project.write("train.py", WHOLE)
    project.play(environment={"cpu": "one"})
    record(project, run)
    project.commit()
    run("gate", "-q")
    wrong = spoilt(made_package(), tmp_path / "wrong.tar", code)
    before = package_item(run, wrong, code)
    assert before is not None
    assert before["result"] != "pass"
    if ANOTHER_CALL[code][2]:
        project.write("repro-gate.yml", ANOTHER_CALL[code][2])
        project.commit()
    typed(before["command"], run)
    after = package_item(run, made_package(), code)
    # a weakness is an item alone, soundness is none
    assert after is None or after["result"] == "pass", after


TYPED_FOR_A_PACKAGE = {"clean-tree", "lock-file", "baseline", "seal"}


def test_every_open_item_of_a_package_says_what_to_do_and_what_to_type() -> None:
    """Each call in the sources: a remedy, and a command unless the remedy says that none mends."""
    codes = set()
    for path in sorted(AUDIT.glob("package*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            if call.func.id not in {"failed_item", "unknown"}:
                continue
            given = {word.arg: ast.unparse(word.value) for word in call.keywords}
            assert given.keys() >= {"risk", "remedy"}, ast.unparse(call)
            assert ("command" in given) != (given["remedy"] == "NOTHING_TO_TYPE"), given
            if isinstance(call.args[1], ast.Constant):
                codes.add(call.args[1].value)
    named = {"source", "declared-data", "settings", "repeat", "determinism-budget", "seal"}
    assert codes | named == ANOTHER_CALL.keys() | TYPED_FOR_A_PACKAGE | {"commit"}


def test_the_remedy_of_every_item_is_followed_here() -> None:
    sources = [path.read_text() for path in AUDIT.glob("repository*.py")]
    codes = {
        code
        for text in sources
        for found in (CODE.findall(text), PART_CODE.findall(text))
        for match in found
        for code in ((match,) if isinstance(match, str) else match)
        if code
    }
    assert codes - {"commit"} == EDITS.keys() | TYPED.keys()
