"""Git: the list of a commit's files, read up to a limit, and forged ones refused by name."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from git_workshop import Repository, commit_fault, refusal

from gate.errors import CommitError
from gate.system.git.objects import read_tree_entries
from gate.system.git.repository import GitRepository

ABSENT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def git(repository: Repository) -> GitRepository:
    return GitRepository(repository.path)


@pytest.mark.parametrize("mode", ["60000", "10000", "140000"])
def test_a_mode_that_git_does_not_know_is_told_as_that(
    repository: Repository, git: GitRepository, tmp_path: Path, mode: str
) -> None:
    inner = repository.forged((mode, b"odd", repository.blob(b"x")))
    tree = repository.git("rev-parse", f"{inner}^{{tree}}")
    commit = repository.forged(("40000", b"sub", tree))
    assert commit_fault(git.export_commit, commit, tmp_path / "out").message == (
        f"sub/odd has the mode {mode.zfill(6)} in the commit, which git does not know"
    )


@pytest.mark.parametrize(
    "modes", [("100644", "100755"), ("100644", "40000"), ("40000", "40000"), ("120000", "100644")]
)
def test_a_name_that_is_there_twice_is_a_fault_of_the_commit(
    repository: Repository, git: GitRepository, tmp_path: Path, modes: tuple[str, str]
) -> None:
    blob = repository.blob(b"x")
    tree = repository.git("rev-parse", repository.forged(("100644", b"in", blob)) + "^{tree}")
    commit = repository.forged(
        *((mode, b"one", tree if mode == "40000" else blob) for mode in modes)
    )
    fault = commit_fault(git.export_commit, commit, tmp_path / "out")
    assert fault.message.startswith(f"commit {commit[:12]} lists one")
    assert fault.message.endswith("twice")
    assert not (tmp_path / "out").exists()


def nested(repository: Repository, kind: str, leaf: str, depth: int, *, name_bytes: int = 2) -> str:
    """A commit of a few trees, each of which holds the one below it 64 times."""
    names = [f"{number:0{name_bytes}}".encode() for number in range(64)]
    commit = repository.forged(*((kind, name, leaf) for name in names))
    for _ in range(depth - 1):
        tree = repository.git("rev-parse", f"{commit}^{{tree}}")
        commit = repository.forged(*(("40000", name, tree) for name in names))
    return commit


@pytest.mark.parametrize("kind", ["100644", "40000"])
def test_a_small_commit_of_millions_of_entries_is_refused_before_anything_is_written(
    repository: Repository, git: GitRepository, tmp_path: Path, kind: str
) -> None:
    """16,777,216 files, or as many empty folders, which list no file at all."""
    leaf = repository.blob(b"x") if kind == "100644" else repository.git("mktree")
    commit = nested(repository, kind, leaf, depth=4)
    fault = commit_fault(git.export_commit, commit, tmp_path / "out")
    assert fault.message == f"commit {commit[:12]} lists more than 200,000 files and folders"
    assert not (tmp_path / "out").exists()


def test_a_small_commit_of_too_many_bytes_of_changed_names_is_refused(
    repository: Repository, git: GitRepository
) -> None:
    before = repository.forged()
    # few names, but long ones: git collects all of them before it prints the first
    commit = nested(repository, "100644", repository.blob(b"x"), depth=3, name_bytes=90)
    fault = commit_fault(git.changed_between, before, commit)
    assert fault.message == "git diff-tree lists more than 67,108,864 bytes"
    assert fault.hint.startswith("Take generated files and data out of the commit")


def test_a_listing_of_more_names_than_any_commit_has_is_refused(
    repository: Repository, git: GitRepository
) -> None:
    before = repository.forged()
    commit = nested(repository, "100644", repository.blob(b"x"), depth=3)
    tree = repository.git("rev-parse", f"{commit}^{{tree}}")
    twice = repository.forged(("40000", b"a", tree), ("40000", b"b", tree))
    assert len(git.changed_between(before, commit)) == 262_144
    fault = commit_fault(git.changed_between, before, twice)
    assert fault.message == "git diff-tree lists more than 500,000 names"


def test_lines_of_python_are_counted_up_to_the_limits(
    repository: Repository, git: GitRepository
) -> None:
    for name, text in {"a.py": "1\n2\n3", "b/c.py": "1\n", "d.py": "", "e.txt": "1\n"}.items():
        repository.write(name, text)
    (repository.path / "link.py").symlink_to("a.py")
    commit = repository.commit()
    counted = {"a.py": 3, "b/c.py": 1, "d.py": 0}
    assert git.python_lines(commit, max_files=9, max_bytes=99) == counted
    assert git.python_lines(commit, max_files=2, max_bytes=99) == {"a.py": 3, "b/c.py": 1}
    assert git.python_lines(commit, max_files=9, max_bytes=4) == {"b/c.py": 1, "d.py": 0}


class Endless(io.RawIOBase):
    """A listing without an end, which counts what is read of it."""

    def __init__(self, row: bytes) -> None:
        self._row = row
        self.rows = 0

    def read(self, size: int = -1) -> bytes:
        made = range(self.rows, self.rows + max(1, size // (len(self._row) + 60)))
        self.rows = made.stop
        facts = b"100644 blob " + b"0" * 40 + b"\t"
        return b"".join(facts + b"%d" % number + self._row + b"\0" for number in made)


@pytest.mark.parametrize(
    ("row", "most_rows", "message"),
    [
        (b"", 210_000, "lists more than 200,000 files and folders"),
        (b"x" * 4000, 20_000, "lists more than files whose names have 67,108,864 bytes"),
    ],
)
def test_no_more_of_a_list_is_read_than_the_limits_allow(
    row: bytes, most_rows: int, message: str
) -> None:
    listing = Endless(row)
    with pytest.raises(CommitError, match=message):
        read_tree_entries(listing, "abc")  # type: ignore[arg-type] # it has all that is used
    assert listing.rows <= most_rows


def test_a_list_that_git_cannot_give_is_told(git: GitRepository, tmp_path: Path) -> None:
    assert refusal(git.export_commit, ABSENT, tmp_path / "out").message == "git ls-tree failed"
