"""An exported tree has one digest, whether it is taken while writing or from the disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from git_workshop import Repository

from gate.errors import StorageError
from gate.system.files.files import LocalFiles
from gate.system.git.repository import GitRepository


@pytest.fixture
def exported(repository: Repository, tmp_path: Path) -> tuple[Path, str]:
    repository.write("train.py", "pass\n")
    repository.write("deep/er/a", "a")
    repository.write("run.sh", "#!/bin/sh\n")
    (repository.path / "run.sh").chmod(0o755)
    (repository.path / "link").symlink_to("deep/er/a")
    commit = repository.commit()
    target = tmp_path / "export"
    return target, GitRepository(repository.path).export_commit(commit, target)


def test_both_digests_agree(exported: tuple[Path, str], files: LocalFiles) -> None:
    tree, digest = exported
    assert files.tree_digest(tree) == digest


def _swap(tree: Path) -> None:
    (tree / "link").unlink()
    (tree / "link").symlink_to("train.py")


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: (tree / "train.py").write_text("PASS\n"),
        lambda tree: (tree / "deep" / "new").touch(),
        lambda tree: (tree / "train.py").unlink(),
        lambda tree: (tree / "train.py").chmod(0o755),
        _swap,
    ],
)
def test_every_change_is_seen(
    exported: tuple[Path, str], files: LocalFiles, change: Callable[[Path], object]
) -> None:
    tree, digest = exported
    change(tree)
    assert files.tree_digest(tree) != digest


def test_what_no_export_writes_is_refused(exported: tuple[Path, str], files: LocalFiles) -> None:
    os.mkfifo(exported[0] / "pipe")
    with pytest.raises(StorageError, match="is a FIFO, not a regular file"):
        files.tree_digest(exported[0])
