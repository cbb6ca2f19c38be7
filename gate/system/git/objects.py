"""Read what git's trees contain, and which commits changed a folder, within fixed limits."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from gate.errors import CommitError
from gate.system.git.command import GitCommand
from gate.text.untrusted_text import safe_line


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderCommit:
    """A commit that changed files of a folder: author, ISO 8601 date, and names in the folder."""

    commit: str
    committed_at: str
    author: str
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitFacts:
    """What a commit says about itself, shortened for one line; the author's text is untrusted.

    `parents` are full hashes, the first parent first. `committed_at` is ISO 8601.
    """

    commit: str
    parents: tuple[str, ...]
    author: str
    committed_at: str
    subject: str


LINK = "120000"
FOLDER = "040000"
SUBMODULE = "160000"
# A commit of 100 KiB can list 16 million files, through trees that contain one tree many times. A
# smoke training does not need more files than this.
MAX_ENTRIES = 200_000
MAX_LISTING_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 256 * 1024
PERMISSIONS = {"100644": 0o644, "100664": 0o644, "100755": 0o755}


def plain_mode(permissions: int) -> str:
    """Return git's mode for a regular file: executable by its owner or not."""
    return "100755" if permissions & stat.S_IXUSR else "100644"


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeEntry:
    """A file of a commit.

    `size` is None if it was not asked for, if the entry is not a blob, or if the clone lacks it.
    """

    path: str
    mode: str
    object_id: str
    size: int | None


def parse_entries(listing: bytes) -> tuple[TreeEntry, ...]:
    """Read the output of `git ls-tree -z -l`; names that are not UTF-8 become surrogates."""
    return tuple(parse_entry(row) for row in listing.split(b"\0") if row)


def read_tree_entries(listing: IO[bytes], commit: str) -> tuple[TreeEntry, ...]:
    """Read the files of a commit from the output of `git ls-tree -r -t -z`, as it arrives.

    Reading stops at the limits on entries and bytes. Folders count too, because a tree can contain
    millions of folders and no file. Raises `CommitError` above a limit, and for a name that is
    listed twice, or as both a file and a folder.
    """
    files: dict[str, TreeEntry] = {}
    folders: set[str] = set()
    for row in read_rows(listing, commit):
        entry = parse_entry(row)
        # Two readers could pick different entries of one name, and only one was reviewed.
        if entry.path in files or entry.path in folders:
            raise listed_twice(entry.path, commit)
        if entry.mode == FOLDER:
            folders.add(entry.path)
        else:
            files[entry.path] = entry
        if len(files) + len(folders) > MAX_ENTRIES:
            raise _too_many(f"{MAX_ENTRIES:,} files and folders", commit)
    return tuple(files.values())


def read_rows(listing: IO[bytes], commit: str) -> Iterator[bytes]:
    """Yield rows that end with a zero byte; raises `CommitError` above `MAX_LISTING_BYTES`."""
    rest = b""
    read = 0
    while chunk := listing.read(CHUNK_BYTES):
        read += len(chunk)
        if read > MAX_LISTING_BYTES:
            raise _too_many(f"files whose names have {MAX_LISTING_BYTES:,} bytes", commit)
        *rows, rest = (rest + chunk).split(b"\0")
        yield from rows


def _too_many(what: str, commit: str) -> CommitError:
    return CommitError(
        f"commit {commit[:12]} lists more than {what}",
        hint="Take generated files and data out of the commit; a smoke training needs few.",
    )


def listed_twice(path: str, commit: str) -> CommitError:
    """Return the error for a name that a forged tree lists twice, which no folder on disk can."""
    return CommitError(
        f"commit {commit[:12]} lists {safe_line(path)} twice",
        hint="Recreate the commit with git itself, which never writes such a tree.",
    )


def parse_entry(row: bytes) -> TreeEntry:
    """Read one row of `git ls-tree -z`, with or without a size."""
    facts, path = row.split(b"\t", 1)
    mode, _, object_id, *size = facts.decode("ascii").split()
    return TreeEntry(
        path=os.fsdecode(path),
        mode=mode,
        object_id=object_id,
        size=int(size[0]) if size and size[0].isdecimal() else None,
    )


def check_path(path: str) -> str:
    """Return the path, or raise `CommitError` if it could leave its folder or be git's own."""
    parts = path.split("/")
    # `.GIT` is the same folder on file systems that ignore case (CVE-2014-9390).
    if any(part in {"", ".", ".."} or part.lower() == ".git" for part in parts):
        raise unsafe_path(path)
    return path


def unsafe_path(path: str) -> CommitError:
    """Return the error for a path that could lead outside the target folder."""
    return CommitError(
        f"the repository holds a file with an unsafe path: {safe_line(path)}",
        hint="Remove it from the commit; git itself never writes such a name.",
    )


def submodule(path: str) -> CommitError:
    """Return the error for a repository inside the repository."""
    return CommitError(
        f"{safe_line(path)} is a separate repository (a submodule)",
        hint="Put its files into the repository itself, or install it as a package; an untracked "
        "one belongs in .gitignore.",
    )


def true_mode(tree: bytes, name: bytes, hash_bytes: int) -> str:
    """Return the mode of a name exactly as a raw tree has it; empty if the name is missing.

    Needed because git shows every unknown mode as that of a submodule.
    """
    place = 0
    while (end := tree.find(b"\0", place)) >= 0:
        mode, _, object_id = tree[place:end].partition(b" ")
        if object_id == name and mode.isdigit():
            return mode.decode("ascii").zfill(len(SUBMODULE))
        # An entry is: mode, blank, name, zero byte, raw hash. The hash may contain zero bytes
        # itself, so skip it by its length.
        place = end + 1 + hash_bytes
    return ""


def odd_mode(path: str, mode: str) -> CommitError:
    """Return the error for an entry whose mode git does not define."""
    return CommitError(
        f"{safe_line(path)} has the mode {mode} in the commit, which git does not know",
        hint="Recreate the commit with git itself, which never writes such an entry.",
    )


MAX_BYTES = 4 * 1024 * 1024
# Fields are separated by zero bytes: no name and no date can contain one and pose as another
# commit.
FORMAT = "--format=%x00%H%x00%cI%x00%an%x00"
FIELDS = 4
MAX_AUTHOR = 100
MAX_SUBJECT = 200
WALK = (
    "log",
    # to show a signature git would run the program that the configuration names
    "--no-show-signature",
    "--no-ext-diff",
    "--no-renames",
    "--root",
    "--name-only",
    "--encoding=UTF-8",
    FORMAT,
)


def folder_history(git: GitCommand, folder: str, *, max_commits: int) -> tuple[FolderCommit, ...]:
    """Return the newest commits up to HEAD that changed files of a folder, with the files' names.

    Empty if nothing is committed yet. Above `MAX_BYTES` of names the oldest commits are left out.
    """
    if git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}").returncode != 0:
        return ()
    with git.stream(*WALK, f"--max-count={max_commits}", "HEAD", "--", folder) as listing:
        content = listing.read(MAX_BYTES)
    return tuple(_commits(content.split(b"\0")[1:], f"{folder}/"))


def commit_facts(git: GitCommand, commit: str) -> CommitFacts:
    """Return parents, author, date and subject of a commit, given by its full hash."""
    form = "--format=%P%x00%an%x00%cI%x00%s%x00"
    words = ("show", "-s", "--no-show-signature", "--encoding=UTF-8", form, commit)
    parents, author, date, subject = git.output(*words).decode("utf-8", "replace").split("\0")[:4]
    return CommitFacts(
        commit=commit,
        parents=tuple(parents.split()),
        author=author[:MAX_AUTHOR],
        committed_at=date,
        subject=subject[:MAX_SUBJECT],
    )


def _commits(fields: list[bytes], below: str) -> Iterator[FolderCommit]:
    # If the output was cut off, its last commit is incomplete and is left out.
    for start in range(0, len(fields) - FIELDS + 1, FIELDS):
        commit, date, author, paths = fields[start : start + FIELDS]
        names = (os.fsdecode(path) for path in paths.split(b"\n"))
        yield FolderCommit(
            commit=commit.decode("ascii", "replace"),
            committed_at=date.decode("ascii", "replace"),
            author=author.decode("utf-8", "replace")[:MAX_AUTHOR],
            names=tuple(name.removeprefix(below) for name in names if name.startswith(below)),
        )
