"""Which commits changed the files of a folder, from repositories that were not made by friends."""

from __future__ import annotations

import pytest
from git_workshop import Repository

from gate.system.git.repository import GitRepository


@pytest.fixture
def git(repository: Repository) -> GitRepository:
    return GitRepository(repository.path)


def test_commits_of_a_folder_are_told_newest_first(
    repository: Repository, git: GitRepository
) -> None:
    repository.write("a/b/one.json", "1")
    first = repository.commit()
    repository.write("other", "x")
    repository.commit()
    repository.write("a/b/one.json", "2")
    repository.write("a/b/two.json", "2")
    third = repository.commit()
    (repository.path / "a/b/one.json").unlink()
    last = repository.commit()
    found = git.folder_history("a/b", max_commits=9)
    assert [(one.commit, one.names) for one in found] == [
        (last, ("one.json",)),
        (third, ("one.json", "two.json")),
        (first, ("one.json",)),
    ]
    assert {one.author for one in found} == {"Ada"}
    assert all(one.committed_at.startswith("20") for one in found)
    assert [one.commit for one in git.folder_history("a/b", max_commits=1)] == [last]
    assert git.folder_history("a/none", max_commits=9) == ()


def test_nothing_is_told_where_nothing_is_committed(git: GitRepository) -> None:
    assert git.folder_history("a", max_commits=9) == ()


def test_no_program_of_the_configuration_runs_and_no_name_poses_as_a_commit(
    repository: Repository, git: GitRepository
) -> None:
    mark = repository.path / "ran"
    program = repository.write("gpg", f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    repository.git("config", "log.showSignature", "true")
    repository.git("config", "gpg.program", str(program))
    repository.git("config", "log.follow", "true")
    repository.write("a/one.json", "1")
    repository.write("a/two\n0123\x1e.json", "1")
    repository.git("add", "-A")
    repository.git("commit", "-q", "-m", "x", "--author", "\x1e\x1fEve\x1b[2J <e@example.org>")
    (found,) = git.folder_history("a", max_commits=9)
    assert "one.json" in found.names
    assert "Eve" in found.author
    assert not mark.exists()
