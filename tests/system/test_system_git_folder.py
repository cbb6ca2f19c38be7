"""A folder of a commit: regular files alone, bounded before they are read."""

from __future__ import annotations

import pytest
from git_workshop import Repository, commit_fault

from gate.system.git.repository import GitRepository


@pytest.fixture
def git(repository: Repository) -> GitRepository:
    return GitRepository(repository.path)


def read(
    git: GitRepository, commit: str, path: str = "a/b", *, files: int = 3, size: int = 1024**2
) -> object:
    return git.read_folder(commit, path, max_files=files, max_bytes=size)


def test_the_files_of_a_folder_are_read_from_the_commit(
    repository: Repository, git: GitRepository
) -> None:
    repository.write("a/b/one.json", b"1\r\n\0")
    repository.write("a/b/two.json", b"")
    repository.write("a/bc/other", "no")
    commit = repository.commit()
    repository.write("a/b/one.json", "changed")
    assert read(git, commit) == {"one.json": b"1\r\n\0", "two.json": b""}
    assert read(git, commit, "a/none") is None
    assert read(git, commit, "a/*") is None


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_no_folder_is_told(repository: Repository, git: GitRepository, kind: str) -> None:
    repository.write("real/one.json", "1")
    path = repository.path / "b"
    if kind == "link":
        path.symlink_to("real")
    else:
        path.write_text("x")
    commit = repository.commit()
    assert commit_fault(read, git, commit, "b").message == (
        f"b is a {kind}, not a folder, in commit {commit[:12]}"
    )


def test_a_link_in_the_folder_is_refused(repository: Repository, git: GitRepository) -> None:
    repository.write("a/b/one.json", "1")
    (repository.path / "a/b/two.json").symlink_to("one.json")
    commit = repository.commit()
    assert commit_fault(read, git, commit).message == (
        f"a/b/two.json is a link in commit {commit[:12]}"
    )


def test_folders_and_submodules_in_it_are_refused(
    repository: Repository, git: GitRepository
) -> None:
    repository.write("a/b/c/one.json", "1")
    commit = repository.commit()
    assert commit_fault(read, git, commit).message == f"a/b/c is a folder in commit {commit[:12]}"
    blob = repository.blob(b"x")
    rows = [("160000", b"s", commit), ("100644", b"t", blob)]
    tree = repository.git("rev-parse", f"{repository.forged(*rows)}^{{tree}}")
    above = repository.forged(("40000", b"b", tree))
    assert (
        commit_fault(read, git, above, "b").message == f"b/s is a submodule in commit {above[:12]}"
    )


def test_a_forged_folder_that_lists_a_name_twice_is_refused(
    repository: Repository, git: GitRepository
) -> None:
    one, two = repository.blob(b"1"), repository.blob(b"2")
    forged = repository.forged(("100644", b"a.json", one), ("100644", b"a.json", two))
    tree = repository.git("rev-parse", f"{forged}^{{tree}}")
    above = repository.forged(("40000", b"b", tree))
    assert commit_fault(read, git, above, "b").message == (
        f"commit {above[:12]} lists b/a.json twice"
    )


def test_numbers_and_bytes_are_bounded(repository: Repository, git: GitRepository) -> None:
    for number in range(4):
        repository.write(f"a/b/{number}.json", b" " * 1024**2)
    commit = repository.commit()
    assert commit_fault(read, git, commit).message == (
        f"a/b holds more than 3 files in commit {commit[:12]}"
    )

    def large() -> object:
        return read(git, commit, files=4, size=3 * 1024**2)

    assert commit_fault(large).message == f"a/b holds more than 3 MiB in commit {commit[:12]}"
