"""`repro-gate audit` as somebody types it: folders with and without a gate, packages, bad input."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from audit_cases import package_members, packed
from command_line import Run, record
from git_workshop import Repository
from played_training import Project

from gate.audit.items import AuditReport

ROOT = Path(__file__).parents[2]
PARTS = ["code", "environment", "data", "configuration", "seeds", "hardware", "seals"]
SCRIPT = """
import random
import torch
if __name__ == "__main__":
    random.seed()
    open("/srv/data/x.npy")
    loss.backward()
"""


def parts(out: str) -> dict[str, str]:
    """The answer of each part, as the table of the text has it."""
    rows = [line.split() for line in out.splitlines() if line.startswith("  ")]
    return {row[1]: row[0] for row in rows if len(row) > 1 and row[1] in PARTS}


def test_in_a_bare_folder_no_part_passes_and_each_has_a_command(tmp_path: Path, run: Run) -> None:
    ended = run("audit", tmp_path)
    assert ended.code == 1
    assert list(parts(ended.out)) == PARTS
    assert "pass" not in parts(ended.out).values()
    assert "0 of 7 parts pass, 3 fail, 4 unknown." in ended.out
    assert "  type   repro-gate init\n" in ended.out


def test_a_repository_without_a_gate_is_read_and_not_run(tmp_path: Path, run: Run) -> None:
    made = Repository(tmp_path / "bare")
    made.write("train.py", SCRIPT + f"    open({str(tmp_path / 'ran')!r}, 'w')\n")
    made.write("requirements.txt", "torch\n")
    made.commit()
    ended = run("audit", made.path)
    assert ended.code == 1
    assert parts(ended.out)["code"] == "pass"
    assert "FAIL  unseeded-generator: a different seed in each run: train.py:5" in ended.out
    assert "train.py:6 open(/srv/data/x.npy)" in " ".join(ended.out.split())
    assert "requirements.txt names no version of torch" in " ".join(ended.out.split())
    assert not (tmp_path / "ran").exists()


def test_a_project_with_a_baseline_passes_where_the_gate_knows(project: Project, run: Run) -> None:
    project.play(environment={"cpu": "one"})
    record(project, run)
    project.commit()
    ended = run("audit")
    found = parts(ended.out)
    assert [found[name] for name in ("code", "configuration", "seeds", "hardware")] == [
        "pass", "unknown", "pass", "pass",
    ]  # fmt: skip
    assert "train.seed 42 is set for Python, NumPy and torch" in " ".join(ended.out.split())


def test_the_example_names_the_rest(tmp_path: Path, run: Run) -> None:
    made = Repository(tmp_path / "copy")
    shutil.copytree(ROOT / "examples" / "digits", made.path / "examples" / "digits")
    made.commit()
    ended = run("audit", made.path / "examples" / "digits")
    assert ended.code == 1
    assert {name for name, answer in parts(ended.out).items() if answer == "FAIL"} == {
        "environment", "seals",
    }  # fmt: skip
    assert "FAIL  lock-file: there is no lock file" in ended.out
    assert "FAIL  trusted-keys: no key is trusted" in ended.out


def test_a_package_of_a_gate_call_is_audited(project: Project, run: Run, tmp_path: Path) -> None:
    record(project, run)
    project.commit()
    assert run("keys", "generate", "--out", tmp_path / "keys").code == 0
    out, keys = tmp_path / "out", tmp_path / "keys"
    run("gate", "--out", out, "--signing-key", keys / "signing-key.pem", "-q")
    package = ("--package", out / "package.tar")
    trust = ("--trusted-keys", keys / "trusted-keys.json", "--commit")
    ended = run("audit", *package, *trust, project.git("rev-parse", "HEAD"))
    assert parts(ended.out)["seals"] == "pass"
    assert parts(ended.out)["configuration"] == "pass"
    assert "Sources of nonreproducibility:" in ended.out
    assert parts(run("audit", *package).out)["seals"] == "unknown"
    assert parts(run("audit", *package, *trust, "f" * 40).out)["seals"] == "FAIL"


def test_the_document_is_read_back_and_has_a_schema(tmp_path: Path, run: Run) -> None:
    path = packed(tmp_path / "package.tar", package_members())
    ended = run("audit", "--package", path, "--format", "json")
    report = AuditReport.model_validate_json(ended.out)
    assert [answer.part.value for answer in report.parts] == PARTS
    assert report.fact("repository") == "org/repo"
    schema = json.loads(run("schema", "audit").out)
    assert set(json.loads(ended.out)) == set(schema["properties"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "error: {here}/nowhere is not a folder"),
        (("--package", "nowhere"), "error: there is no package at nowhere"),
        (("--commit", "x"), "error: --trusted-keys and --commit are for a package"),
        (("a", "--package", "b"), "error: audit takes a folder or --package, not both"),
        (("--package", "b", "--commit", "x"), "error: a seal is checked with a trust file and"),
    ],
)
def test_a_call_that_cannot_be_meant_says_so(
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run("audit", *words)
    assert ended.err.startswith(message.format(here=tmp_path))
    assert "\nhint: " in ended.err
    assert ended.out == ""


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "error: there is no package at nowhere"),
        (b"", "error: nowhere is not a package of repro-gate"),
        (b"PK" * 600, "error: nowhere is not a package of repro-gate"),
    ],
    ids=["none", "empty", "another-format"],
)
def test_every_verb_answers_alike_where_there_is_no_package(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, content: bytes | None, error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("nowhere").write_bytes(content)
    assert run("keys", "generate", "--out", "keys", "--allow-plain").code == 0
    trust = ("--trusted-keys", "keys/trusted-keys.json", "--commit", "f" * 40)
    calls = (
        ("audit", "--package", "nowhere"),
        ("verify", "nowhere", *trust),
        ("reproduce", "nowhere", "--unsealed"),
    )
    ended = [run(*words) for words in calls]
    hint = "hint: Name the package.tar that a gate call wrote."
    assert {(call.code, *call.err.splitlines()[-2:]) for call in ended} == {(3, error, hint)}


def hostile(folder: Path) -> None:
    """What somebody may put into a repository against whoever audits it."""
    deep = folder / "deep"
    for _ in range(60):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT + "import nest, link, huge, odd\n")
    (folder / "nest.py").write_text("x = " + "(" * 20_000)
    (folder / "huge.py").write_bytes(b"x = 1\n" * 300_000)
    (folder / "link.py").symlink_to("/etc/passwd")
    (folder / "root").symlink_to("/")
    (folder / "uv.lock").symlink_to("/etc/passwd")
    (folder / "requirements.txt").write_bytes(b"numpy>=1\n" * 1_200_000)
    (folder / "poetry.lock").write_text("[" * 100_000)
    (folder / "Dockerfile").write_text("FROM \x1b[31mevil;touch${IFS}x\n")
    (folder / "esc\x1b[31m::error::x.py").write_text("import torch")
    os.mkfifo(folder / "fifo.py")
    (folder / os.fsdecode(b"na\xff.py")).write_text("import torch")
    (folder / ".repro-gate").mkdir()
    (folder / ".repro-gate" / "trusted-keys.json").write_text('{"a": 1')


@pytest.mark.parametrize("form", ["text", "markdown", "json", "neurips", "production"])
@pytest.mark.parametrize("kept_by", ["nobody", "git"])
def test_a_hostile_repository_is_answered_within_bounds(
    tmp_path: Path, run: Run, form: str, kept_by: str
) -> None:
    folder = tmp_path / "hostile"
    folder.mkdir()
    hostile(folder)
    if kept_by == "git":
        shutil.move(Repository(tmp_path / "made").path / ".git", folder / ".git")
    modules = set(sys.modules)
    ended = run("audit", folder, "--format", form)
    assert ended.code == 1
    assert ended.err == ""
    assert len(ended.out) < 40_000
    assert "root:" not in ended.out
    assert all(line.isprintable() or "\u200b" in line for line in ended.out.splitlines())
    assert not {"nest", "link", "huge", "odd", "train"} & (set(sys.modules) - modules)


def test_a_script_that_cannot_be_read_is_named(tmp_path: Path, run: Run) -> None:
    hostile(tmp_path)
    text = " ".join(run("audit", tmp_path).out.split())
    assert "too large): fifo.py, huge.py, link.py and 1 more." in text
    assert "poetry.lock cannot be read: " in text


def test_the_answer_is_the_same_whatever_was_written_first(tmp_path: Path, run: Run) -> None:
    files = {f"part{number}.py": f"import random\nrandom.seed({number})\n" for number in range(9)}
    files |= {"train.py": "".join(f"import part{number}\n" for number in range(9)) + SCRIPT}
    files |= {"requirements.txt": "torch\n", "requirements-dev.txt": "numpy\n"}
    answers = set()
    for names in (sorted(files), sorted(files, reverse=True), sorted(files, key=hash)):
        folder = tmp_path / "same"
        folder.mkdir()
        for name in names:
            (folder / name).write_text(files[name])
        answers.add(run("audit", folder).out)
        shutil.rmtree(folder)
    assert len(answers) == 1


def test_no_line_but_a_command_is_longer_than_the_terminal(tmp_path: Path, run: Run) -> None:
    hostile(tmp_path)
    lines = run("audit", tmp_path).out.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith("  type"))


def test_the_form_leaves_to_the_author_what_no_run_can_answer(tmp_path: Path, run: Run) -> None:
    path = packed(tmp_path / "package.tar", package_members())
    form = run("audit", "--package", path, "--format", "neurips").out
    assert "Source: <https://neurips.cc/public/guides/PaperChecklist>" in form
    items = form.split("\n### ")
    assert len(items) == 27
    answers = [item.partition("Answer: **")[2].partition("**")[0] for item in items[1:]]
    assert answers.count("for the author") == 14
    (compute,) = [item for item in items if item.startswith("8. ")]
    assert "Answer: **partly**" in compute
    assert "- CPU: `one`" in compute
    (significance,) = [item for item in items if item.startswith("7. ")]
    assert "- one seed was run, so no spread is known" in significance
