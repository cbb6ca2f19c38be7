"""What the harness noted of operators: refused, without a deterministic form, beyond the flag."""

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
    """Strict mode did not let an operator run; `file` and `line` are the user's, `step` from 1."""

    operator: Name
    file: FileName
    line: Line
    step: int = Field(ge=1, le=MAX_STEP)

    @property
    def place(self) -> str:
        """As `train.py:12`."""
        return f"{self.file}:{self.line}"


class Span(Document):
    """Steps from `first` to `last`, in each of which there were `calls` calls."""

    first: int = Field(ge=1, le=MAX_STEP)
    last: int = Field(ge=1, le=MAX_STEP)
    calls: int = Field(ge=1, le=MAX_STEP)


class OperatorUse(Document):
    """Calls of one operator from one line.

    `source` is `alert` where torch itself said that there is no deterministic form, `call` where
    the harness saw an operator that the determinism flag is not known to reach.
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
        """As `train.py:12`."""
        return f"{self.file}:{self.line}"


class Autotuner(Document):
    """A Triton kernel that chose among several configurations by timing them."""

    kernel: Name
    configurations: int = Field(ge=2, le=MAX_STEP)


class OperatorAudit(Document):
    """All of it for one run, every process together; `dropped` more calls not recorded."""

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
        """Whether this is said of CUDA about a call that another device made."""
        return self.value.startswith("on CUDA")


class OperatorRow(Document):
    """A line of the report; `calls_per_step` and `steps` are empty where only the use is known.

    `reach` is what the determinism flag does about it, `why` says why it may do nothing.
    `source` is where the project's own table has it from; torch's own notices need none.
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
        """What a reader sees about the determinism flag."""
        return f"{self.reach.value}: {self.why}" if self.why else self.reach.value


class OperatorReport(Document):
    """What a verdict says about operators. `complete` is false without an operator audit."""

    rows: tuple[OperatorRow, ...] = ()
    complete: bool = False
    dropped: int = 0
    failure: str = ""
