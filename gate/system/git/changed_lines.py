"""Find the lines that differ between two commits, with git's own plumbing commands.

No diff driver and no converter of the repository's configuration runs, and the amount read is
limited.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat, takewhile
from typing import IO, Final

from gate.system.git.changes import (
    MAX_CHANGES,
    MAX_LINE_CHARACTERS,
    MAX_SHOWN_LINES,
    Change,
    ChangedLines,
)
from gate.system.git.command import GitCommand

MAX_BYTES: Final = 8 * 1024 * 1024
MAX_LINE: Final = 64 * 1024
MAX_NAME: Final = 300
# of a line, to find where it differs from the line that it replaces
MAX_COMPARED_BYTES: Final = 4096
# characters that two cut lines share, shown before the difference
SHOWN_BEFORE: Final = 40
LEFT_OUT: Final = "…"
# for all hunks together; the hunks after it are reported without their lines
MAX_TEXT_BYTES: Final = 64 * 1024
HUNK: Final = re.compile(rb"@@ -\d{1,9}(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@", re.ASCII)
TARGET: Final = b"+++ b/"
BEGIN: Final = b"diff --git a/"
BINARY: Final = b"Binary files "
GONE: Final = b"+++ /dev/null\n"
ARGUMENTS: Final = (
    *("diff-tree", "-r", "-p", "--unified=0", "--inter-hunk-context=0", "--no-renames"),
    *("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--end-of-options"),
)


def changed_lines(git: GitCommand, before: str, after: str) -> Change:
    """Return the hunks between two full hashes, at most `MAX_CHANGES`.

    A file whose name git quotes is left out, and the result is then not complete. Raises
    `RepositoryError` for commits that are not in this clone.
    """
    with git.stream(*ARGUMENTS, before, after) as stream:
        lines, reader = _Lines(stream), _Reader()
        for line in lines:
            reader.take(line)
            if len(reader.parsed) >= MAX_CHANGES:
                break
        complete = lines.ended and not reader.unnamed
        return Change(hunks=tuple(reader.hunks()), complete=complete)


class _Lines:
    """Yields lines up to `MAX_BYTES`, long ones cut to `MAX_LINE`; `ended`: all were read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.ended = False

    def __iter__(self) -> Iterator[bytes]:
        left = MAX_BYTES
        whole = True
        while left > 0:
            line = self._stream.readline(MAX_LINE)
            if not line:
                self.ended = True
                return
            left -= len(line)
            if whole:
                yield line
            # the rest of a long line must not be taken for a line of its own
            whole = line.endswith(b"\n")


@dataclass(slots=True)
class _Hunk:
    """A hunk that is still being read."""

    file: str
    first: int
    gone: int
    new: int
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)


class _Reader:
    """Parses git's patch line by line.

    `unnamed` becomes true if a changed file's name is left out.
    """

    def __init__(self) -> None:
        self.parsed: list[_Hunk] = []
        self.unnamed = False
        self._begun = self._file = ""
        # Counting the hunk's lines keeps a file's own line such as `+++ b/x` from being taken for
        # git's.
        self._content = 0
        self._text_left = MAX_TEXT_BYTES
        self._hunk: _Hunk | None = None

    def take(self, line: bytes) -> None:
        """Read the next line of the patch."""
        if self._content and line[:1] in b"+-":
            self._content -= 1
            self._keep(line)
        elif line.startswith(TARGET):
            self._file = _name(line[len(TARGET) :].rstrip(b"\n").removesuffix(b"\t"))
            self.unnamed |= not self._file
        elif line.startswith(BEGIN):
            self._begun, self._file = _same_name(line[len(BEGIN) :].rstrip(b"\n")), ""
        elif line.startswith((b"diff --git ", b"+++ ")):
            # either a name that git quotes, or a file that the head does not have
            self.unnamed |= line.startswith((b"diff --git ", b'+++ "'))
            if line == GONE and self._begun:
                self.parsed.append(_Hunk(self._begun, 0, 0, 0))
            self._begun = self._file = ""
        elif line.startswith(BINARY) and self._begun:
            self.parsed.append(_Hunk(self._begun, 0, 0, 0))
        elif match := HUNK.match(line):
            gone, first, new = (1 if part is None else int(part) for part in match.groups())
            self._content = gone + new
            self._hunk = _Hunk(self._file, first, gone, new) if self._file else None
            if self._hunk is not None:
                self.parsed.append(self._hunk)

    def _keep(self, line: bytes) -> None:
        if self._hunk is None or self._text_left <= 0:
            return
        side = self._hunk.before if line[:1] == b"-" else self._hunk.after
        if len(side) < MAX_SHOWN_LINES:
            text = line[1:MAX_COMPARED_BYTES].rstrip(b"\r\n").decode("utf-8", "replace")
            self._text_left -= min(len(text), MAX_LINE_CHARACTERS) + 1
            side.append(text)

    def hunks(self) -> Iterator[ChangedLines]:
        """Yield the hunks as records."""
        for hunk in self.parsed:
            yield ChangedLines(
                file=hunk.file,
                first=hunk.first,
                last=max(hunk.first, hunk.first + hunk.new - 1),
                removed=bool(hunk.gone) and not hunk.new,
                gone=hunk.gone,
                before=_shown_lines(hunk.before, hunk.after),
                after=_shown_lines(hunk.after, hunk.before),
            )


def _shown_lines(side: list[str], other: list[str]) -> tuple[str, ...]:
    pairs = zip(side, chain(other, repeat(None)), strict=False)
    return tuple(_shown_line(line, pair) for line, pair in pairs)


def _shown_line(line: str, pair: str | None) -> str:
    """Return at most `MAX_LINE_CHARACTERS` of a line, from its start or around its difference.

    A cut at the end alone would show two long lines as equal that differ behind it.
    """
    if len(line) <= MAX_LINE_CHARACTERS:
        return line
    both = zip(line, pair or "", strict=False)
    same = sum(1 for _ in takewhile(lambda characters: len(set(characters)) == 1, both))
    if same < MAX_LINE_CHARACTERS - SHOWN_BEFORE:
        return line[:MAX_LINE_CHARACTERS]
    # The part is as long as a cut line always is, so that nobody takes it for a whole one.
    begin = min(same - SHOWN_BEFORE, len(line) - MAX_LINE_CHARACTERS) + len(LEFT_OUT)
    return f"{LEFT_OUT}{line[begin : begin + MAX_LINE_CHARACTERS - len(LEFT_OUT)]}"


def _name(raw: bytes) -> str:
    name = os.fsdecode(raw)
    return name if len(name) <= MAX_NAME and name.isprintable() else ""


def _same_name(both: bytes) -> str:
    """Return the name in `x b/x`, where both names are equal; otherwise the empty text."""
    half = (len(both) - len(b" b/")) // 2
    return _name(both[:half]) if both == both[:half] + b" b/" + both[:half] else ""
