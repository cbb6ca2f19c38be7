from __future__ import annotations

from pathlib import Path

import pytest

from gate.errors import RunError
from gate.system.files.files import LocalFiles
from gate.training.missing_files import NotCommitted, Project, with_missing_file
from gate.training.runs import Snapshot

TREE = Path("/out/work/run/tree")
LEFT_OUT = NotCommitted(ignored=("data/", "sub/corpus.bin"), untracked=("notes.txt",))


def _hint(
    path: str,
    workdir: str = ".",
    tree: Path = TREE,
    left_out: NotCommitted = LEFT_OUT,
    line: str = "",
) -> str:
    line = line or f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    fault = RunError("run strict-1: exited with 1", hint="general", details=("Traceback", line))
    snapshot = Snapshot(commit="a" * 40, tree=tree, workdir=workdir, digest="d")
    project = Project(top=Path("/home/me/model"), folder=".", files=LocalFiles())
    return with_missing_file(fault, TREE, snapshot, left_out, project).hint


@pytest.mark.parametrize(
    ("path", "workdir"),
    [
        ("data/train.bin", "."),
        ("./data/train.bin", "."),
        (f"{TREE}/data/train.bin", "sub"),
        ("../data/train.bin", "sub"),
    ],
)
def test_ignored_data_is_named_however_the_script_wrote_it(path: str, workdir: str) -> None:
    assert _hint(path, workdir).startswith(
        "data/train.bin is ignored by git; the gate trains only committed files."
    )


def test_a_path_of_the_project_is_seen_from_the_repository() -> None:
    assert _hint("corpus.bin", "sub").startswith("sub/corpus.bin is ignored by git")


def test_a_file_that_was_never_added_is_told_as_that() -> None:
    assert _hint("notes.txt").startswith("notes.txt is in no commit yet")


def test_a_file_that_nobody_knows_is_not_in_the_commit() -> None:
    assert _hint("other.csv") == (
        "other.csv is not in the commit. The gate trains only committed files. "
        "Declare it where the script looks for it: "
        "`data: [{path: /PATH/TO/other.csv, at: other.csv}]`. Or commit a small sample of it."
    )


def test_a_script_that_git_ignores_is_added_and_not_declared() -> None:
    ignored = NotCommitted(ignored=("train.py",))
    line = f"python: can't open file '{TREE}/train.py': [Errno 2] No such file or directory"
    assert _hint("train.py", left_out=ignored, line=line) == (
        "train.py is ignored by git; the gate trains only committed files. git add -f train.py"
    )
    assert _hint("tarin.py", line=line.replace("train", "tarin")) == (
        "tarin.py is not in the commit. The gate trains only committed files. "
        "Commit it, or correct the name."
    )


@pytest.mark.parametrize("path", ["/srv/data.bin", "../../etc/passwd"])
def test_what_lies_outside_the_repository_keeps_the_general_hint(path: str) -> None:
    assert _hint(path) == "general"


def _with_script(tree: Path, script: str) -> Path:
    (tree / script).parent.mkdir(parents=True, exist_ok=True)
    (tree / script).write_text("")
    return tree


def test_ignored_data_that_no_script_makes_is_declared_where_the_script_looks() -> None:
    assert _hint("sub/corpus.bin").endswith(
        "Declare it where the script looks for it: "
        "`data: [{path: /home/me/model/sub/corpus.bin, at: sub/corpus.bin}]`. "
        "Or commit a small sample: `git add -f sub/corpus.bin`."
    )


def test_a_script_that_prepares_the_data_is_named_with_its_paths(tmp_path: Path) -> None:
    tree = _with_script(tmp_path, "sub/prepare.py")
    assert (
        "Let the gate make it: "
        '`preprocess: {command: "python sub/prepare.py", out: "sub/corpus.bin"}`.'
    ) in _hint("sub/corpus.bin", tree=tree)


def test_several_ignored_files_of_a_folder_are_made_as_that_folder(tmp_path: Path) -> None:
    tree = _with_script(tmp_path, "scripts/download_data.sh")
    both = NotCommitted(ignored=("sub/train.bin", "sub/val.bin"))
    assert '`preprocess: {command: "bash scripts/download_data.sh", out: "sub"}`' in _hint(
        "sub/train.bin", tree=tree, left_out=both
    )


def test_in_a_fresh_clone_the_script_is_named_too(tmp_path: Path) -> None:
    tree = _with_script(tmp_path, "prepare.py")
    hint = _hint("new/x.bin", tree=tree, left_out=NotCommitted())
    assert hint.startswith(
        "new/x.bin is not in the commit. The gate trains only committed files. "
        "Let the gate make it: `preprocess: "
    )
