"""Operator traces as read, what two of them say, and what moving one setting showed."""

from __future__ import annotations

from enum import StrEnum
from math import comb
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.evidence.observations import Override
from gate.settings.variations import Setting
from gate.system.git.changes import MAX_HUNKS, ChangedLines
from gate.text.document import Document

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

    `form` is type and shape, `layout` how it is in memory where that is not the usual way.
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
    `random_state`. `compiled`: compiled code made it. `by_module`: a module of torch's did, which
    the line called. `view`: what comes out is in the memory of what went in. `whole`: everything
    that it was given is in the record, so that two records that are equal had equal arguments.
    `origin`: the values that it brings were made past torch.
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
    by_module: bool = False
    view: bool = False
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
        known = [setting.settings for setting in self.settings if setting.call <= call]
        return known[-1] if known else {}


Traces = Annotated[tuple[RankTrace, ...], Field(max_length=MAX_RANKS)]


MAX_ROWS: Final = 16
MAX_NOTES: Final = 16
MAX_NUMBERS: Final = 16
# the longest that Python writes has 24
MAX_NUMBER_CHARACTERS: Final = 40
MAX_SEEDS: Final = 16
Text = Annotated[str, Field(max_length=1000)]
Name = Annotated[str, Field(max_length=200)]
Place = Annotated[str, Field(max_length=320)]


class Claim(StrEnum):
    """What the first call that parts two runs shows.

    `NONDETERMINISTIC_OPERATOR`: a different output, while inputs, layouts, arguments, settings of
    torch's and the generator were compared and are equal. `UNPROVEN`: the same, but not all of that
    could be compared. `SETTING`: a setting of torch's differs there. `MEMORY_LAYOUT`: equal values
    are in memory in another way. `ARRIVAL`: what came first from any rank. `COLLECTIVE`: every rank
    gave it equal values, and what came out differs. `CODE_PATH`: another
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
    COLLECTIVE = "collective"
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
    `EXPLAINED`: settings or structure explain the difference, so none was made. `BUDGET`: no time
    was left. `FAILED`: a traced run failed. `OTHER_RESULT`: one gave a different result than
    without a trace. `NOT_REACHED`: both ended before what differs was written. `NOTHING_LEFT`:
    no process left a trace in both runs.
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
    the numbers that a setting of the optimizer, or an argument of the call where two traces part,
    had and has are in it. `read`: a file that the training opened, and no code changed;
    `read-among-others`: the same beside changed code, or in a change that is not wholly known.
    `only`: nothing else of the change can be read by a training. `ran`: of what ran before the
    difference, the nearest. `either`: two of what ran, of files that the training opened, of lines
    that may have run unseen and of those with the numbers of the call that the first makes, and a
    third may still be the cause; `either-of-all`: nothing else of the change can be read.
    `ran-before-nan`: the nearest that ran before the first number that is not finite.
    """

    NAMED = "named"
    RAISED = "raised"
    FITS = "fits"
    READ = "read"
    READ_AMONG = "read-among-others"
    ONLY = "only"
    RAN = "ran"
    EITHER = "either"
    EITHER_OF_ALL = "either-of-all"
    RAN_BEFORE_NAN = "ran-before-nan"


class ShownChange(Document):
    """The part of the change that a report shows first, by its path in the repository."""

    how: HowKnown
    hunks: Annotated[tuple[ChangedLines, ...], Field(min_length=1, max_length=2)]

    @property
    def places(self) -> str:
        """As `train.py:12 and model.py:40`."""
        return " and ".join(hunk.place for hunk in self.hunks)

    @property
    def candidates(self) -> bool:
        """Whether it is several changes that ran, and not lines that moved, which are one."""
        moved = any(hunk.removed for hunk in self.hunks)
        return self.how is HowKnown.RAN and len(self.hunks) > 1 and not moved


class TraceRow(Document):
    """A call of each trace, side by side around the point; empty where one has none there."""

    expected: Name = ""
    observed: Name = ""
    place: Place = ""
    state: Name = ""
    here: bool = False


class ChangedNumber(Document):
    """A real number that one argument of two calls is given, as each of them wrote it."""

    before: Annotated[str, Field(max_length=MAX_NUMBER_CHARACTERS)]
    after: Annotated[str, Field(max_length=MAX_NUMBER_CHARACTERS)]


class TraceFinding(Document):
    """The first call at which two traced runs part.

    `file` and `line` are the user's line; in the backward pass of torch's own operators it is
    the `forward_place` alone that is known. `sentence` says all of it, without a full stop;
    `remedy` what to do. `arguments` hold what differs of them (`real_numbers`: nothing else
    does), `expected_operator` the other run's operator where that is another. `precision` says
    which type of number takes the place of which. `absolute` and
    `relative` say how far sampled outputs are apart; None where that is not known. `changed`
    are hunks of the diff that ran up to this call, nearest first; `changed_later` those that
    ran after it or not at all. `notes` are whole sentences. `call` is the observed run's call
    at which they part. `elsewhere`: another process made the value, or may have, whose lines nobody
    saw run. `numbers` are those of the arguments of both calls, where `real_numbers` alone differ.
    `given`: a number or a value came from outside torch, and nobody knows from whom.
    `only_uses`: it is the first to read a value that was there before, or was made outside; or a
    module of torch's makes it, and what that does may have been set elsewhere.
    `draws`: of what they do there only one run draws from a generator.
    `reason` is why no call is named. `changed_seeds` are those that the head
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
    numbers: Annotated[tuple[ChangedNumber, ...], Field(max_length=MAX_NUMBERS)] = ()
    draws: bool = False
    elsewhere: bool = False
    given: bool = False
    only_uses: bool = False
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
    def names_a_call(self) -> bool:
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


MAX_TRIED: Final = 16
MAX_RUNS: Final = 100
# of a setting that helps: as many runs at least, and all of them equal
CERTAIN_RUNS: Final = 4
# and as many pairs without it; where some of those are equal too, it takes more runs
CERTAIN_CONTROLS: Final = 3
# how often a setting that does nothing may look as if it helped
MOST_CHANCE: Final = 0.04
FILLS: Final = (Setting.TORCH_FILL, Setting.HEAP_FILL)
Count = Annotated[int, Field(ge=0, le=MAX_RUNS)]


def chance_of(pairs: int, differing: int, runs: int) -> float:
    """At most how likely this is of a setting that does nothing.

    `differing` of `pairs` without it differ, and `runs` with it are all equal. Of results with
    probabilities q, a pair is equal with x = Σq², and k runs are with Σq^k, at most x^(k/2). So it
    is at most C(n, d) (1 - x)^d x^(n - d + k/2), taken here at its largest: 3.5 % for three of
    three pairs and four runs.
    """
    equal = pairs - differing + runs / 2
    if not differing or not equal:
        return 1.0
    same = equal / (equal + differing)
    return float(comb(pairs, differing) * (1 - same) ** differing * same**equal)


def runs_needed(pairs: int, differing: int) -> int:
    """As many equal runs as the spread of the fault demands; more than `MAX_RUNS` for none."""
    counts = range(CERTAIN_RUNS, MAX_RUNS + 1)
    fit = (runs for runs in counts if chance_of(pairs, differing, runs) <= MOST_CHANCE)
    return next(fit, MAX_RUNS + 1)


class TriedSetting(Document):
    """One setting moved alone, and runs with it that were compared with each other.

    `written` is what a user writes to have it. `agree` is whether they are equal to each other,
    None where `problem` says why that is not known. `follows` says, of a fill of memory, whether
    the result moves with what the memory is filled with; None where that was not seen. `slower` is
    how many times as long a run takes (wall-clock time, the fastest with it over the fastest
    without), None where none went to the training's end.
    """

    setting: Setting
    written: Name
    runs: Count = 0
    agree: bool | None = None
    follows: bool | None = None
    slower: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    problem: Text = ""

    @property
    def helps(self) -> bool:
        """Whether all runs with it were equal."""
        return self.agree is True

    @property
    def telling(self) -> bool:
        """Whether a fill shows that memory is read unwritten; of other settings, whether it helps.

        A fill that makes runs agree and does not show in the result only moved something else.
        """
        return self.helps and (self.setting not in FILLS or self.follows is True)


class TriedSettings(Document):
    """All that were tried, in order; `untried` are those that the budget of time left no room for.

    `pairs` of runs without any of them were compared, of which `differing` were not equal.
    """

    tried: Annotated[tuple[TriedSetting, ...], Field(max_length=MAX_TRIED)] = ()
    untried: Annotated[tuple[Name, ...], Field(max_length=MAX_TRIED)] = ()
    pairs: Count = 0
    differing: Count = 0

    @property
    def helping(self) -> TriedSetting | None:
        """The setting that helps for certain, the one that tells most; None where chance may."""
        certain = [trial for trial in self.tried if self.is_certain(trial)]
        return next(iter((*(trial for trial in certain if trial.telling), *certain)), None)

    def is_certain(self, setting: TriedSetting) -> bool:
        """Whether chance hardly makes it look so."""
        return setting.helps and setting.runs >= runs_needed(*self.without(setting))

    def without(self, setting: TriedSetting) -> tuple[int, int]:
        """Pairs of runs that do not have this setting, and how many of them differ."""
        others = [
            other
            for other in self.tried
            if other != setting and other.agree is not None and not _of_one_kind(setting, other)
        ]
        apart = sum(other.agree is False for other in others)
        return self.pairs + len(others), self.differing + apart


def _of_one_kind(left: TriedSetting, right: TriedSetting) -> bool:
    """Two fills that both help are no contradiction."""
    return left.setting in FILLS and right.setting in FILLS and right.helps
