"""What a training's own code did to the knobs that were set for it."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from gate.records.document import Document

MAY_BE_OPENED = "deterministic_algorithms"


class TamperKind(StrEnum):
    """What was done."""

    SWITCH = "switch"
    CONTEXT = "context"
    THREADS = "threads"
    ENVIRONMENT = "environment"
    RESEED = "reseed"
    ENTROPY = "entropy"


class TamperLine(Document):
    """One deed, at `file` and `line` (0 when nobody was seen), while `step` was worked on.

    `closed`: the script took it back itself before the step ended; `restored`: the guest did.
    """

    step: int = Field(ge=1)
    kind: TamperKind
    name: str = Field(max_length=200)
    before: str = Field(max_length=200)
    after: str = Field(max_length=200)
    file: str = Field(max_length=200)
    line: int = Field(ge=0)
    closed: bool
    restored: bool


class Tampering(TamperLine):
    """One deed and the process that it was done in."""

    rank: int = Field(ge=0)
    pid: int = Field(ge=0)

    @property
    def declared_hole(self) -> bool:
        """Strict mode put aside around a few lines and taken up again: legal, and told."""
        return self.closed and self.name == MAY_BE_OPENED

    @property
    def weakens(self) -> bool:
        """Whether the run was less than it was asked to be; a seed of one's own does not weaken."""
        return self.kind is not TamperKind.RESEED and not self.declared_hole

    @property
    def place(self) -> str:
        """File and line for a person."""
        return f"{self.file}:{self.line}" if self.file else "an unseen place"
