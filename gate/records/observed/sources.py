"""What a training took from its surroundings that may make two runs differ."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from gate.records.document import Document
from gate.records.observed.overrides import CallStack


class SourceKind(StrEnum):
    """What it is.

    `order` is a directory as the file system lists it, `completion` the order in which threads or
    processes were done with their pieces of work, `address` a line of code that asks for
    `id()` or `hash()`, `draw` a thread's draw from a common generator, `precision` a switch of
    precision that was turned on the way. Only runs of `repro-gate shake` have `varied`, that
    something was varied or why not, and `reading`, a line that reads it.
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
    VARIED = "varied"
    READING = "reading"


class SourceLine(Document):
    """One line of the training's (0: unseen), at the optimizer step at which it was first seen.

    `before` and `after` are words: of a switch what it was and is, of an order a digest of the
    names sorted and one of the names as they came, of a completion the number of the call of its
    line and a digest of the order; of what was varied `before` is why it was not. `worker` says
    that a worker process did it, `thread` that a thread beside the main one did.
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
    def place(self) -> str:
        """File and line for a person."""
        return f"{self.file}:{self.line}" if self.file else "an unknown line"


class LiveThreads(Document):
    """How many threads of Python's were alive from this step on."""

    step: int = Field(ge=1)
    count: int = Field(ge=0)
