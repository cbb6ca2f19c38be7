"""What a training took from its surroundings that may make two runs differ."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from pydantic import Field

from gate.evidence.overrides import CallStack
from gate.text.records_document import Document

STAMP: Final = re.compile(r"\d{1,19} \d{1,19}", re.ASCII)


class SourceKind(StrEnum):
    """What it is.

    `order` is a directory as the file system lists it, `completion` the order in which threads
    or processes were done with their pieces of work, `address` a line of code that asks for
    `id()` or `hash()`, `draw` a thread's draw from a common generator, `precision` a switch of
    precision that was turned on the way, `read` a file outside the commit that was opened for
    reading, `split` a line that draws a split from the names in a folder. `variable` is one
    that the script asked for and that was not set, `saved` a state that it wrote into its tree.
    `opened` is a file of the commit that the change under test touches, and that was read.
    Only runs of `repro-gate shake` have `varied`, that something was varied or why not, and
    `reading`, a line that reads it.
    """

    ENTROPY = "entropy"
    CLOCK = "clock"
    PROCESS = "process"
    ORDER = "order"
    COMPLETION = "completion"
    ADDRESS = "address"
    THREAD = "thread"
    DRAW = "draw"
    PRECISION = "precision"
    READ = "read"
    SPLIT = "split"
    VARIED = "varied"
    READING = "reading"
    VARIABLE = "variable"
    SAVED = "saved"
    OPENED = "opened"


class SourceLine(Document):
    """One line of the training's (0: unseen), at the optimizer step at which it was first seen.

    `before` and `after` are words: of a switch what it was and is, of an order a digest of the
    names sorted and one of the names as they came, of a completion the number of the call of its
    line and a digest of the order. Of a file that was read, `call` is its path and `after` its size
    in bytes and its time of change in nanoseconds; of a folder, `before` is how many of its files
    were. Of a split, `before` lists the names and `after` says whether they were sorted. Of what
    was varied, `before` is why it was not. `worker` says that a worker process did it, `thread`
    that a thread beside the main one did.
    """

    step: int = Field(ge=1)
    kind: SourceKind
    call: str = Field(max_length=200)
    before: str = Field(max_length=200)
    after: str = Field(max_length=200)
    file: str = Field(max_length=200)
    line: int = Field(ge=0)
    stack: CallStack
    worker: bool
    thread: bool


class Source(SourceLine):
    """One, and the rank of the process that it was seen in."""

    rank: int = Field(ge=0)

    @property
    def stamp(self) -> tuple[int, int] | None:
        """Size in bytes and time of change in nanoseconds of a file that was read, if told so."""
        size, _, changed = self.after.partition(" ")
        told = self.kind is SourceKind.READ and bool(STAMP.fullmatch(self.after))
        return (int(size), int(changed)) if told else None

    @property
    def place(self) -> str:
        """File and line for a person."""
        return f"{self.file}:{self.line}" if self.file else "an unknown line"


class LiveThreads(Document):
    """How many threads of Python's were alive from this step on."""

    step: int = Field(ge=1)
    count: int = Field(ge=0)
