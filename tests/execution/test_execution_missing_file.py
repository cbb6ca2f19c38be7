from __future__ import annotations

from pathlib import Path

import pytest

from gate.errors import RunError
from gate.execution.missing_file import NotCommitted, with_missing_file
from gate.records.runs import Snapshot

TREE = Path("/out/work/run/tree")
LEFT_OUT = NotCommitted(ignored=("data/", "sub/corpus.bin"), untracked=("notes.txt",))


def _hint(path: str, workdir: str = ".") -> str:
    line = f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    fault = RunError("run strict-1: exited with 1", hint="general", details=("Traceback", line))
    snapshot = Snapshot(commit="a" * 40, tree=TREE, workdir=workdir, digest="d")
    return with_missing_file(fault, TREE, snapshot, LEFT_OUT).hint


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
        "data/train.bin is ignored by git; the gate trains what the commit holds."
    )


def test_a_path_of_the_project_is_seen_from_the_repository() -> None:
    assert _hint("corpus.bin", "sub").startswith("sub/corpus.bin is ignored by git")


def test_a_file_that_was_never_added_is_told_as_that() -> None:
    assert _hint("notes.txt").startswith("notes.txt is in no commit yet")


def test_a_file_that_nobody_knows_is_not_in_the_commit() -> None:
    assert _hint("other.csv").startswith("other.csv is not in the commit.")


@pytest.mark.parametrize("path", ["/srv/data.bin", "../../etc/passwd"])
def test_what_lies_outside_the_repository_keeps_the_general_hint(path: str) -> None:
    assert _hint(path) == "general"
