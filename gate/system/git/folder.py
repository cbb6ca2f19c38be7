"""One folder of a commit, read without writing it anywhere: regular files, bounded, no links."""

from __future__ import annotations

from typing import IO

from gate.errors import CommitError
from gate.system.git.command import GitCommand
from gate.system.git.export import exactly, size_of_next, stored_content
from gate.system.git.objects import (
    FOLDER,
    LINK,
    PERMISSIONS,
    SUBMODULE,
    TreeEntry,
    listed_twice,
    parse_entries,
    parse_entry,
    read_rows,
)
from gate.text.untrusted_text import safe_line

LISTING = ("ls-tree", "-z", "-l", "--full-tree", "--end-of-options")
KINDS = {LINK: "a link", SUBMODULE: "a submodule", FOLDER: "a folder"}


def read_folder(
    git: GitCommand, commit: str, path: str, *, max_files: int, max_bytes: int
) -> dict[str, bytes] | None:
    """The regular files of a folder by their names, or None when the commit has nothing there.

    Raises `CommitError`, before a byte of content is read, for what is no folder, for anything in
    it but regular files, and for more than `max_files` of them or `max_bytes` together.
    """
    listing = git.output(*LISTING, commit, path)
    place = next((row for row in parse_entries(listing) if row.path == path), None)
    if place is None:
        return None
    if place.mode != FOLDER:
        raise CommitError(
            f"{safe_line(path)} is {KINDS.get(place.mode, 'a file')}, not a folder, in commit "
            f"{commit[:12]}",
            hint="Commit a folder there: it is read from the commit, and links are not followed.",
        )
    files = _files(git, place, commit, max_files)
    if sum(entry.size or 0 for entry in files.values()) > max_bytes:
        raise CommitError(
            f"{safe_line(path)} holds more than {max_bytes // 1024**2} MiB in commit {commit[:12]}",
            hint="Commit fewer or smaller files there.",
        )
    with stored_content(git, tuple(files.values())) as answers:
        return {name: _content(answers, entry) for name, entry in files.items()}


def python_lines(git: GitCommand, commit: str, *, max_files: int, max_bytes: int) -> dict[str, int]:
    """How many lines each Python file of a commit has; beyond the limits a file is left out."""
    with git.stream(*LISTING[:1], "-r", *LISTING[1:], commit) as listing:
        rows = (parse_entry(row) for row in read_rows(listing, commit))
        found: list[TreeEntry] = []
        for entry in rows:
            size = entry.size if entry.path.endswith(".py") else None
            if entry.mode in PERMISSIONS and size is not None and size <= max_bytes:
                max_bytes -= size
                found.append(entry)
            if len(found) == max_files:
                break
    with stored_content(git, tuple(found)) as answers:
        contents = ((entry.path, _content(answers, entry)) for entry in found)
        return {path: data.count(b"\n") + (data[-1:] not in b"\n") for path, data in contents}


def _content(answers: IO[bytes], entry: TreeEntry) -> bytes:
    size = size_of_next(answers, entry.path)
    if size != entry.size:
        raise CommitError(
            f"{safe_line(entry.path)} has another size than its commit lists",
            hint="Check the clone with `git fsck`, or clone again.",
        )
    content = b"".join(exactly(answers, size))
    # a line feed follows each object (git-cat-file(1), BATCH OUTPUT)
    answers.read(1)
    return content


def _files(git: GitCommand, place: TreeEntry, commit: str, max_files: int) -> dict[str, TreeEntry]:
    """What the folder lists, no more than may be there; names are untrusted."""
    files: dict[str, TreeEntry] = {}
    with git.stream(*LISTING, place.object_id) as listing:
        for row in read_rows(listing, commit):
            entry = parse_entry(row)
            shown = f"{place.path}/{entry.path}"
            if entry.path in files:
                raise listed_twice(shown, commit)
            # an object that this clone lacks has no size, and could not be read either
            if entry.mode not in PERMISSIONS or entry.size is None:
                kind = KINDS.get(entry.mode, "not in this clone")
                raise CommitError(
                    f"{safe_line(shown)} is {kind} in commit {commit[:12]}",
                    hint="Only regular files may lie there; links are not followed. Clone without "
                    "a filter, so that every file is here.",
                )
            files[entry.path] = entry
            if len(files) > max_files:
                raise CommitError(
                    f"{safe_line(place.path)} holds more than {max_files:,} files in commit "
                    f"{commit[:12]}",
                    hint="Commit fewer files there.",
                )
    return files
