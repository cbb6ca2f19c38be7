"""The lines that differ between two commits, as records that a verdict can contain."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from gate.text.document import Document

MAX_HUNKS: Final = 200
MAX_CHANGES: Final = 2000
MAX_SHOWN_LINES: Final = 6
# a longer line is cut
MAX_LINE_CHARACTERS: Final = 200


CodeLine = Annotated[str, Field(max_length=MAX_LINE_CHARACTERS)]


class ChangedLines(Document):
    """A hunk of the diff; `first` to `last` are its lines in the head commit, counted from 1.

    `removed` means that lines were only deleted, after line `first`. `before` and `after` have the
    first lines of both sides as committed, and `gone` is the base's number of lines. For a file
    whose lines git does not show, such as a binary one, there is one record with `first` 0.
    """

    file: Annotated[str, Field(max_length=300)]
    first: Annotated[int, Field(ge=0, le=2**31)]
    last: Annotated[int, Field(ge=0, le=2**31)]
    removed: bool = False
    gone: Annotated[int, Field(ge=0, le=2**31)] = 0
    before: Annotated[tuple[CodeLine, ...], Field(max_length=MAX_SHOWN_LINES)] = ()
    after: Annotated[tuple[CodeLine, ...], Field(max_length=MAX_SHOWN_LINES)] = ()

    @property
    def new(self) -> int:
        """The number of lines in the head commit."""
        return 0 if self.removed or not self.first else self.last - self.first + 1

    def holds(self, file: str, line: int) -> bool:
        """Return whether a line of the head commit belongs to this hunk."""
        return bool(self.new) and self.file == file and self.first <= line <= self.last

    @property
    def place(self) -> str:
        """The place for a message: `train.py:12`, `train.py:12-14`, or the file without lines."""
        if not self.first and not self.removed:
            return self.file
        return f"{self.file}:{self.first}" + (f"-{self.last}" if self.last > self.first else "")


class Change(Document):
    """The differences between base and head commit; `complete` is false if some are left out."""

    hunks: Annotated[tuple[ChangedLines, ...], Field(max_length=MAX_CHANGES)] = ()
    complete: bool = True
