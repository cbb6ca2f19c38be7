"""Which lines of which files two commits do not share, as git's own plumbing tells it.

No diff driver and no converter of the repository's configuration runs; what is read is bounded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import IO, Final

from gate.adapters.git.command import GitCommand
from gate.records.observed.traced import ChangedLines

MAX_BYTES: Final = 8 * 1024 * 1024
MAX_LINE: Final = 64 * 1024
MAX_CHANGES: Final = 2000
MAX_NAME: Final = 300
HUNK: Final = re.compile(rb"@@ -\d{1,9}(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@", re.ASCII)
TARGET: Final = b"+++ b/"
ARGUMENTS: Final = (
    *("diff-tree", "-r", "-p", "--unified=0", "--inter-hunk-context=0", "--no-renames"),
    *("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--end-of-options"),
)


def changed_lines(git: GitCommand, before: str, after: str) -> tuple[ChangedLines, ...]:
    """The hunks between two full hashes, `MAX_CHANGES` at most; names that git quotes are left out.

    Raises `RepositoryError` for commits that are not there.
    """
    with git.stream(*ARGUMENTS, before, after) as stream:
        found = list[ChangedLines]()
        for change in _hunks(_lines(stream)):
            if len(found) >= MAX_CHANGES:
                break
            found.append(change)
        return tuple(found)


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Lines, and pieces of very long ones, up to `MAX_BYTES`."""
    left = MAX_BYTES
    whole = True
    while left > 0 and (line := stream.readline(MAX_LINE)):
        left -= len(line)
        if whole:
            yield line
        # the rest of a long line is no line of its own
        whole = line.endswith(b"\n")


def _hunks(lines: Iterator[bytes]) -> Iterator[ChangedLines]:
    file, content = "", 0
    for line in lines:
        if content and line[:1] in b"+-":
            # counted, so that no line of a file is taken for one of git's own
            content -= 1
            continue
        if line.startswith(TARGET):
            file = os.fsdecode(line[len(TARGET) :].rstrip(b"\n").removesuffix(b"\t"))
        elif line.startswith((b"diff --git ", b"+++ ")):
            file = ""
        elif match := HUNK.match(line):
            gone, start, new = (1 if part is None else int(part) for part in match.groups())
            content = gone + new
            if file and len(file) <= MAX_NAME and file.isprintable():
                last = start + max(new, 1) - 1
                yield ChangedLines(file=file, first=start, last=last, removed=not new)
