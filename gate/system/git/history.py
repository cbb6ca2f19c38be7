"""Which commits changed the files of a folder: one bounded walk that runs no program of theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gate.system.git.command import GitCommand
from gate.system.git.folder_commit import FolderCommit

MAX_BYTES = 4 * 1024 * 1024
# no author's name and no date holds a zero byte, so none can pose as another commit
FORMAT = "--format=%x00%H%x00%cI%x00%an%x00"
FIELDS = 4
MAX_AUTHOR = 100
WALK = (
    "log",
    # a signature would be shown by the program that the repository's configuration names
    "--no-show-signature",
    "--no-ext-diff",
    "--no-renames",
    "--root",
    "--name-only",
    "--encoding=UTF-8",
    FORMAT,
)


def folder_history(git: GitCommand, folder: str, *, max_commits: int) -> tuple[FolderCommit, ...]:
    """The newest commits before HEAD that changed a file of a folder, with those files' names.

    Nothing where nothing is committed yet. Beyond 4 MiB of names the oldest commits are left out.
    """
    if git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}").returncode != 0:
        return ()
    with git.stream(*WALK, f"--max-count={max_commits}", "HEAD", "--", folder) as listing:
        told = listing.read(MAX_BYTES)
    return tuple(_commits(told.split(b"\0")[1:], f"{folder}/"))


def _commits(fields: list[bytes], below: str) -> Iterator[FolderCommit]:
    # what was cut off in the middle is no whole row of fields
    for start in range(0, len(fields) - FIELDS + 1, FIELDS):
        commit, date, author, paths = fields[start : start + FIELDS]
        names = (os.fsdecode(path) for path in paths.split(b"\n"))
        yield FolderCommit(
            commit=commit.decode("ascii", "replace"),
            committed_at=date.decode("ascii", "replace"),
            author=author.decode("utf-8", "replace")[:MAX_AUTHOR],
            names=tuple(name.removeprefix(below) for name in names if name.startswith(below)),
        )
