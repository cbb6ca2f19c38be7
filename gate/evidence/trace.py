"""What two operator traces say: the first call at which two runs part, and what it shows."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from gate.evidence.observed_trace import Phase
from gate.evidence.overrides import Override
from gate.system.git.changes import MAX_HUNKS, ChangedLines
from gate.text.records_document import Document

MAX_ROWS: Final = 16
MAX_NOTES: Final = 16
MAX_SEEDS: Final = 16
Text = Annotated[str, Field(max_length=1000)]
Name = Annotated[str, Field(max_length=200)]
Place = Annotated[str, Field(max_length=320)]


class Claim(StrEnum):
    """What the first call that parts two runs shows.

    `NONDETERMINISTIC_OPERATOR`: another output, while inputs, their layouts, arguments, settings of
    torch's and the generator were compared and are equal. `UNPROVEN`: the same, but not all of that
    could be compared. `SETTING`: a setting of torch's differs there. `MEMORY_LAYOUT`: equal values
    lie in memory in another way. `ARRIVAL`: what came first from any rank. `CODE_PATH`: another
    operator, other arguments or shapes. `RANDOM_STATE`: a draw from a generator in another state.
    `OUTSIDE_VALUE`: a value that no operator made. `UNINITIALISED`: memory that nothing had
    written. `OTHER_TENSORS`: tensors that other calls made, chosen or ordered outside torch.
    `BELOW_DISPATCHER`: changed where the dispatcher does not see it. `NOT_FINITE`: the first number
    of one run that is not finite. `NOT_FOUND`: nothing parts.
    """

    NONDETERMINISTIC_OPERATOR = "nondeterministic-operator"
    UNPROVEN = "unproven"
    SETTING = "setting"
    MEMORY_LAYOUT = "memory-layout"
    ARRIVAL = "order-of-arrival"
    CODE_PATH = "code-path"
    RANDOM_STATE = "random-state"
    OUTSIDE_VALUE = "outside-value"
    UNINITIALISED = "uninitialised"
    OTHER_TENSORS = "other-tensors"
    BELOW_DISPATCHER = "below-dispatcher"
    NOT_FINITE = "not-finite"
    NOT_FOUND = "not-found"


class NoTrace(StrEnum):
    """Why a trace names no call.

    `AGREE`: both traces are equal. `CUT`: they are as far as they go, and ended at a limit.
    `EXPLAINED`: settings of the run explain the difference, so none was made. `BUDGET`: no time
    was left. `FAILED`: a traced run failed. `OTHER_RESULT`: one gave another result than without a
    trace. `NOT_REACHED`: both ended before what differs was written. `NOTHING_LEFT`: no process
    left a trace in both runs.
    """

    AGREE = "agree"
    CUT = "cut"
    EXPLAINED = "explained"
    BUDGET = "budget"
    FAILED = "failed"
    OTHER_RESULT = "other-result"
    NOT_REACHED = "not-reached"
    NOTHING_LEFT = "nothing-left"


class HowKnown(StrEnum):
    """Why a part of the change is shown beside a difference.

    `named`: the line that the diagnosis names is in it; `raised`: the line that raised is. `fits`:
    the numbers that a setting of the optimizer had and has stand in it. `read`: a file that the
    training opened. `only`: nothing else of the change can be read by a training. `ran`: of what
    ran before the difference, the nearest; `ran-before-nan`: the same of the first number that is
    not finite.
    """

    NAMED = "named"
    RAISED = "raised"
    FITS = "fits"
    READ = "read"
    ONLY = "only"
    RAN = "ran"
    RAN_BEFORE_NAN = "ran-before-nan"


class ShownChange(Document):
    """The part of the change that a report shows first, by its path in the repository."""

    how: HowKnown
    hunks: Annotated[tuple[ChangedLines, ...], Field(min_length=1, max_length=2)]

    @property
    def places(self) -> str:
        """As `train.py:12 and model.py:40`."""
        return " and ".join(hunk.place for hunk in self.hunks)


class TraceRow(Document):
    """A call of each trace, side by side around the point; empty where one has none there."""

    expected: Name = ""
    observed: Name = ""
    place: Place = ""
    state: Name = ""
    here: bool = False


class TraceFinding(Document):
    """The first call at which two traced runs part.

    `file` and `line` are the user's line; in the backward pass of torch's own operators it is
    the `forward_place` alone that is known. `sentence` says all of it, without a full stop;
    `remedy` what to do. `arguments` hold what differs of them (`real_numbers`: nothing else
    does), `expected_operator` the other run's operator where that is another. `precision` says
    which type of number stands in place of which. `absolute` and
    `relative` say how far sampled outputs are apart; None where that is not known. `changed`
    are hunks of the diff that ran up to this call, nearest first; `changed_later` those that
    ran after it or not at all. `notes` are whole sentences. `call` is the observed run's call
    at which they part. `reason` is why no call is named. `changed_seeds` are those that the head
    gives another number than the base commit does, whose number is the former value of each.
    """

    claim: Claim
    sentence: Text
    reason: NoTrace | None = None
    remedy: Text = ""
    rank: int = 0
    call: int | None = None
    step: int | None = None
    operator: Name = ""
    expected_operator: Name = ""
    module: Name = ""
    phase: Phase | None = None
    shapes: Annotated[str, Field(max_length=600)] = ""
    device: Name = ""
    arguments: Text = ""
    real_numbers: bool = False
    precision: Name = ""
    file: Annotated[str, Field(max_length=300)] = ""
    line: Annotated[int, Field(ge=0, le=2**31)] = 0
    forward_place: Place = ""
    absolute: float | None = None
    relative: float | None = None
    rows: Annotated[tuple[TraceRow, ...], Field(max_length=MAX_ROWS)] = ()
    changed: Annotated[tuple[ChangedLines, ...], Field(max_length=MAX_HUNKS)] = ()
    changed_later: Annotated[tuple[ChangedLines, ...], Field(max_length=MAX_HUNKS)] = ()
    notes: Annotated[tuple[Text, ...], Field(max_length=MAX_NOTES)] = ()
    changed_seeds: Annotated[tuple[Override, ...], Field(max_length=MAX_SEEDS)] = ()

    @property
    def found(self) -> bool:
        """Whether a call is named."""
        return self.claim is not Claim.NOT_FOUND

    @property
    def failed(self) -> bool:
        """Whether the trace could not answer; `sentence` says why."""
        return self.reason not in {None, NoTrace.AGREE, NoTrace.EXPLAINED}

    @property
    def place(self) -> str:
        """The line as `train.py:12`; empty where none is known."""
        return f"{self.file}:{self.line}" if self.file else ""
