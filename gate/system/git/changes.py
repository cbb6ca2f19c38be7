"""Which lines two commits do not share."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from gate.text.document import Document

MAX_HUNKS: Final = 200
MAX_CHANGES: Final = 2000
MAX_SHOWN_LINES: Final = 6


CodeLine = Annotated[str, Field(max_length=200)]


class ChangedLines(Document):
    """A hunk of the diff, by its lines in the head: `first` to `last`, counted from 1.

    `removed`: lines were only taken out, behind `first`. `before` and `after` are the first lines
    of both sides as the commits have them, and `gone` is how many the base has of them. A file that
    git shows no lines of is one change with `first` 0.
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
        """How many lines the head has of it."""
        return 0 if self.removed or not self.first else self.last - self.first + 1

    def holds(self, file: str, line: int) -> bool:
        """Whether a line of the head is one of these."""
        return bool(self.new) and self.file == file and self.first <= line <= self.last

    @property
    def place(self) -> str:
        """As `train.py:12` or `train.py:12-14`; the file alone where no lines are known."""
        if not self.first and not self.removed:
            return self.file
        return f"{self.file}:{self.first}" + (f"-{self.last}" if self.last > self.first else "")


class Change(Document):
    """What the base and the head commit do not share; `complete` where all of it is here."""

    hunks: Annotated[tuple[ChangedLines, ...], Field(max_length=MAX_CHANGES)] = ()
    complete: bool = True
