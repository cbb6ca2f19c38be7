"""Records of operators: refused, without a deterministic form, or not covered by torch's flag."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from gate.evidence.columns import MAX_STEP
from gate.text.document import Document

Name = Annotated[str, Field(min_length=1, max_length=120)]
FileName = Annotated[str, Field(max_length=300)]
Line = Annotated[int, Field(ge=0, le=2**31)]


class Refusal(Document):
    """An operator that strict mode refused, at the user's `file` and `line`; `step` is from 1."""

    operator: Name
    file: FileName
    line: Line
    step: int = Field(ge=1, le=MAX_STEP)

    @property
    def place(self) -> str:
        """The line in the form `train.py:12`."""
        return f"{self.file}:{self.line}"


class Span(Document):
    """The steps from `first` to `last`, with `calls` calls in each of them."""

    first: int = Field(ge=1, le=MAX_STEP)
    last: int = Field(ge=1, le=MAX_STEP)
    calls: int = Field(ge=1, le=MAX_STEP)


class OperatorUse(Document):
    """The calls of one operator from one line.

    `source` is `alert` if torch itself said that the operator has no deterministic form. It is
    `call` if the operator audit saw an operator for which the determinism flag is not known to
    apply.
    """

    source: Literal["alert", "call"]
    operator: Name
    device: Annotated[str, Field(max_length=20)]
    direction: Literal["forward", "backward"]
    file: FileName
    line: Line
    spans: tuple[Span, ...]

    @property
    def place(self) -> str:
        """The line in the form `train.py:12`."""
        return f"{self.file}:{self.line}"


class Autotuner(Document):
    """A Triton kernel that chose one of several configurations by timing them."""

    kernel: Name
    configurations: int = Field(ge=2, le=MAX_STEP)


class OperatorAudit(Document):
    """The records of all processes of one run; `dropped` counts calls that were not recorded."""

    refused: tuple[Refusal, ...] = ()
    uses: tuple[OperatorUse, ...] = ()
    modules: tuple[Name, ...] = ()
    autotuners: tuple[Autotuner, ...] = ()
    extensions: tuple[Name, ...] = ()
    dropped: int = Field(default=0, ge=0)


class FlagReach(StrEnum):
    """What `torch.use_deterministic_algorithms` does about an operator."""

    NO_FORM = "no deterministic form"
    NOT_KNOWN = "flag not known to apply"
    REFUSED_ON_CUDA = "on CUDA: refused by strict mode"
    REPLACED_ON_CUDA = "on CUDA: deterministic in strict mode"
    NOT_KNOWN_ON_CUDA = "on CUDA: flag not known to apply"

    @property
    def on_cuda(self) -> bool:
        """Whether this describes CUDA, although the call was made on another device."""
        return self.value.startswith("on CUDA")


class OperatorRow(Document):
    """A line of the report; `calls_per_step` and `steps` are empty if only the use itself is known.

    `reach` is what the determinism flag does for the operator; `why` says why it may do nothing.
    `source` is the reference for an entry of the project's own table. Torch's own notices have
    none.
    """

    operator: str
    reach: FlagReach
    why: str = ""
    calls_per_step: str = ""
    steps: str = ""
    where: str = ""
    remedy: str = ""
    source: str = ""

    @property
    def flag(self) -> str:
        """The text about the determinism flag that a reader sees."""
        return f"{self.reach.value}: {self.why}" if self.why else self.reach.value


class OperatorReport(Document):
    """What a verdict says about operators; `complete` is false without an operator audit."""

    rows: tuple[OperatorRow, ...] = ()
    complete: bool = False
    dropped: int = 0
    failure: str = ""
