"""Python processes that a training started where the harness does not come along."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gate.text.records_document import Document

SHOWN = 3
VariableName = Annotated[str, Field(pattern=r"^[A-Z_]{1,60}$")]


class ChildLine(Document):
    """A line of the harness's: a command that may have started such a process.

    `words` may be cut; `shell` says that a shell reads the first of them, `kept` that the child's
    environment still had what the harness needs, `lost` names the knobs' variables that it lacked
    or had with another value. `line` is 0 when no line of the training was seen.
    """

    words: tuple[str, ...] = Field(max_length=4000)
    shell: bool
    kept: bool
    lost: Annotated[tuple[VariableName, ...], Field(max_length=50)] = ()
    file: str = Field(max_length=200)
    line: int = Field(ge=0)


class StartedChild(Document):
    """A Python process: who started it where, and its command without arguments."""

    rank: int = Field(ge=0)
    pid: int = Field(ge=0)
    command: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """File and line for a person."""
        return f"{self.file}:{self.line}" if self.file else "a process of the training"


class UnattestedChild(StartedChild):
    """One that started without the harness, and why."""

    reason: str


class WeakerChild(StartedChild):
    """One that started with the harness and without `variables` that the gate had set."""

    variables: Annotated[tuple[VariableName, ...], Field(min_length=1, max_length=50)]


def started_without(children: tuple[UnattestedChild, ...]) -> str:
    """Who started which Python without the harness, as a sentence without its full stop."""
    sentences = [
        f"{child.place} started `{child.command}`, which {child.reason}" for child in children
    ]
    # each rank and run tells of the same line again
    distinct = list(dict.fromkeys(sentences))
    rest = len(distinct) - SHOWN
    more = f"; and {rest} more" if rest > 0 else ""
    return "; ".join(distinct[:SHOWN]) + more
