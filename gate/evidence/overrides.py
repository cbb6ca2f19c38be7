"""What a training's own code did to the knobs that were set for it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from gate.text.records_document import Document

MAY_BE_OPENED = "deterministic_algorithms"
CallStack = Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=3)]


def library_frame(stack: tuple[str, ...], place: str) -> str:
    """The frame that stands before those of the user's, whose innermost is at `place`."""
    first = stack[0] if stack else ""
    return "" if first.partition(" ")[0] == place else first


class OverrideKind(StrEnum):
    """What was done."""

    SWITCH = "switch"
    CONTEXT = "context"
    THREADS = "threads"
    ENVIRONMENT = "environment"
    RESEED = "reseed"
    ENTROPY = "entropy"


class SeedScope(StrEnum):
    """Whose generator was seeded: one that all code shares, or a generator of the script's own."""

    GLOBAL = "global"
    PRIVATE = "private"


class OverrideLine(Document):
    """One override, at `file` and `line` (0 when nobody was seen), while `step` was worked on.

    `closed`: the script reverted it itself before the step ended; `restored`: the harness did.
    `importing`: a library did it while that line imported it. `scope` is there for seeds alone,
    whose value is `after` (`before` says where it is the time): of a private generator that was
    given none, the one that it drew, where that can be read. `stack` holds the user's innermost
    frames, `file:line function`; where an installed package gave a seed, its own stands before.
    """

    step: int = Field(ge=1)
    kind: OverrideKind
    name: str = Field(max_length=200)
    before: str = Field(max_length=200)
    after: str = Field(max_length=200)
    file: str = Field(max_length=200)
    line: int = Field(ge=0)
    closed: bool
    restored: bool
    importing: bool = False
    scope: SeedScope | None = None
    stack: CallStack = ()


class Override(OverrideLine):
    """One override and the process that it was done in."""

    rank: int = Field(ge=0)
    pid: int = Field(ge=0)

    @property
    def determinism_suspended(self) -> bool:
        """Strict mode switched off around a few lines and on again: legal, and reported."""
        return self.closed and self.name == MAY_BE_OPENED

    @property
    def weakens(self) -> bool:
        """Whether the run was less than it was asked to be; a seed of one's own does not weaken.

        Nor does a private generator: the gate has set none, and what it draws the results tell.
        """
        own_seed = self.kind is OverrideKind.RESEED or self.scope is SeedScope.PRIVATE
        return not own_seed and not self.determinism_suspended

    @property
    def seeds(self) -> bool:
        """Whether a seed was given; everything else turns a setting."""
        return self.kind in {OverrideKind.RESEED, OverrideKind.ENTROPY}

    @property
    def library(self) -> str:
        """The line of an installed package that gave the seed; empty where the user's own did."""
        return library_frame(self.stack, self.place)

    @property
    def place(self) -> str:
        """File and line for a person."""
        return f"{self.file}:{self.line}" if self.file else "an unknown line"
