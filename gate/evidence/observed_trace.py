"""A trace of operator calls, as read from what a run left: typed and bounded."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.text.records_document import Document

MAX_CALLS: Final = 20_000
MAX_GIVEN: Final = 48
MAX_PRODUCERS: Final = 64
MAX_EXECUTED: Final = 20_000
MAX_RANKS: Final = 64
NOBODY: Final = -1
MAX_SETTINGS: Final = 32
MAX_CHANGES: Final = MAX_CALLS
MAX_STEP: Final = 2**53
CallName = Annotated[str, Field(min_length=1, max_length=120)]
TracedFile = Annotated[str, Field(max_length=300)]
TracedLine = Annotated[int, Field(ge=0, le=2**31)]
Number = Annotated[int, Field(ge=0, lt=MAX_CALLS)]
Producer = Annotated[int, Field(ge=NOBODY, lt=MAX_CALLS)]
Words = Annotated[str, Field(max_length=400)]
ModulePath = Annotated[str, Field(max_length=200)]
Sample = Annotated[str, Field(max_length=40)]
TraceDigest = Annotated[str, Field(max_length=128, pattern=r"^([a-z0-9]{1,20}:[0-9a-f]{1,80})?$")]

SettingText = Annotated[str, Field(max_length=100)]
Settings = Annotated[dict[SettingText, SettingText], Field(max_length=MAX_SETTINGS)]


class Phase(StrEnum):
    """Which part of a step a call belongs to."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Origin(StrEnum):
    """Who made a value that a call takes from outside: `storage` is anyone."""

    NONE = ""
    WORKER = "worker"
    PROCESS = "process"
    LOAD = "torch.load"
    DEEPCOPY = "copy.deepcopy"
    STORAGE = "storage"


class TracedValue(Document):
    """A tensor that went into a call or came out, or the tensors of one list together.

    `form` is type and shape, `layout` how it lies in memory where that is not the usual way.
    `digest` is empty where the values were not read. `sample` holds up to eight values as
    `float.hex` writes them. `made_by` are the calls that last wrote its memory, `NOBODY` for none
    that was traced; `unset_by` those that left some of it unwritten. `odd`: it holds NaN, or else
    an infinity. `overwritten`: the call reads nothing of it.
    """

    name: Annotated[str, Field(max_length=100)]
    form: Annotated[str, Field(max_length=200)]
    device: Annotated[str, Field(max_length=20)]
    layout: Annotated[str, Field(max_length=100)] = ""
    digest: TraceDigest
    odd: Literal["", "nan", "infinite"] = ""
    overwritten: bool = False
    sample: Annotated[tuple[Sample, ...], Field(max_length=8)] = ()
    made_by: Annotated[tuple[Producer, ...], Field(max_length=MAX_PRODUCERS)] = ()
    unset_by: Annotated[tuple[Number, ...], Field(max_length=MAX_PRODUCERS)] = ()


class TracedCall(Document):
    """One call of an operator.

    `file` and `line` are the user's; empty in the backward pass of torch's own operators, where
    `forward_file` and `forward_line` say which call of the forward pass it belongs to. `thread` is
    0 for the main thread. `random`: it draws from a generator, whose state has the digest
    `random_state`. `compiled`: compiled code made it. `whole`: everything that it was given is in
    the record, so that two records that are equal had equal arguments. `origin`: the values that it
    brings were made past torch.
    """

    number: Number
    step: Annotated[int, Field(ge=1, le=MAX_STEP)]
    operator: CallName
    module: ModulePath
    phase: Phase
    file: TracedFile
    line: TracedLine
    forward_file: TracedFile
    forward_line: TracedLine
    thread: Annotated[int, Field(ge=0, le=2**31)]
    random: bool
    random_state: Annotated[str, Field(max_length=64)] = ""
    compiled: bool
    arguments: Words
    whole: bool = False
    origin: Origin = Origin.NONE
    inputs: Annotated[tuple[TracedValue, ...], Field(max_length=MAX_GIVEN)]
    outputs: Annotated[tuple[TracedValue, ...], Field(max_length=MAX_GIVEN)]

    @property
    def shapes(self) -> str:
        """Type and shape of what goes in, such as `float32 (4, 8), float32 (8, 2)`."""
        return ", ".join(value.form for value in self.inputs or self.outputs)


class ExecutedLine(Document):
    """A line of the script that ran, first before call `call` of the trace."""

    file: TracedFile
    line: TracedLine
    call: Annotated[int, Field(ge=0, le=MAX_CALLS)]


class TracedSettings(Document):
    """Settings of torch's from call `call` on, by name."""

    call: Annotated[int, Field(ge=0, le=MAX_CALLS)]
    settings: Settings


class RankTrace(Document):
    """What one rank called, in order; `ended` is `done`, or the limit at which the trace ended.

    `unread` counts calls that could not be recorded. Empty `ended`: the process ended in between.
    """

    rank: Annotated[int, Field(ge=0, le=10**6)]
    calls: Annotated[tuple[TracedCall, ...], Field(max_length=MAX_CALLS)]
    lines: Annotated[tuple[ExecutedLine, ...], Field(max_length=MAX_EXECUTED)] = ()
    settings: Annotated[tuple[TracedSettings, ...], Field(max_length=MAX_CHANGES)] = ()
    ended: Literal["", "done", "calls", "bytes", "time"]
    unread: Annotated[int, Field(ge=0, le=2**53)]

    def settings_at(self, call: int) -> Settings:
        """The settings in force at a call; empty where none were recorded."""
        known = [one.settings for one in self.settings if one.call <= call]
        return known[-1] if known else {}


Traces = Annotated[tuple[RankTrace, ...], Field(max_length=MAX_RANKS)]
