"""Records of operator traces, of what two traces show, and of runs with one changed setting.

The first half describes each line of `trace-rR-P.jsonl` as it is read. `TraceFinding` is the result
of comparing two traces. `TriedSettings` is the result of runs in which one setting at a time was
changed. `chance_of` decides when such a result is more than chance.
"""

from __future__ import annotations

from enum import StrEnum
from math import comb
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.evidence.observations import Override
from gate.settings.variations import Setting
from gate.system.git.changes import MAX_HUNKS, ChangedLines
from gate.text.document import Document

# the harness ends a trace at this number of calls, and records at most `MAX_EXECUTED` lines that
# ran
MAX_CALLS: Final = 20_000
MAX_GIVEN: Final = 48
# the harness lists at most this many calls that wrote a value
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
    """The part of a training step that a call belongs to."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Origin(StrEnum):
    """Who made the values that a call takes from outside torch's operators.

    `STORAGE` is a storage that was filled by unknown code; `NONE` says that no value came from
    outside.
    """

    NONE = ""
    WORKER = "worker"
    PROCESS = "process"
    LOAD = "torch.load"
    DEEPCOPY = "copy.deepcopy"
    STORAGE = "storage"


class TracedValue(Document):
    """A tensor that a call took or returned; a list of tensors is one value.

    `form` is type and shape. `layout` describes the memory layout if it is unusual. `offset` says
    where in its storage a view begins. `digest` is empty if the values were not read. `sample` has
    up to eight values in `float.hex` form. `made_by` are the numbers of the calls that last wrote
    this memory, or `NOBODY` if none of them was traced. `unset_by` are the calls that left part of
    the memory unwritten. `odd` says that the tensor contains NaN or, without NaN, an infinity.
    `overwritten` is true if the call only writes to it and reads none of its values.
    """

    name: Annotated[str, Field(max_length=100)]
    form: Annotated[str, Field(max_length=200)]
    device: Annotated[str, Field(max_length=20)]
    layout: Annotated[str, Field(max_length=100)] = ""
    offset: Annotated[str, Field(max_length=20)] = ""
    digest: TraceDigest
    odd: Literal["", "nan", "infinite"] = ""
    overwritten: bool = False
    sample: Annotated[tuple[Sample, ...], Field(max_length=8)] = ()
    made_by: Annotated[tuple[Producer, ...], Field(max_length=MAX_PRODUCERS)] = ()
    unset_by: Annotated[tuple[Number, ...], Field(max_length=MAX_PRODUCERS)] = ()


class TracedCall(Document):
    """One call of an operator.

    `file` and `line` are the user's line. They are empty in the backward pass of torch's own
    operators; there `forward_file` and `forward_line` give the line of the forward call. `thread`
    is 0 for the main thread. `random` is true if the call draws from a generator; `random_state` is
    then the digest of that generator's state. `compiled` is true for a call made by compiled code,
    `by_module` for one made inside a module of torch that the line called. `view` is true if the
    result shares memory with an input. `whole` is true if every argument is recorded, so two equal
    records had equal arguments. `origin` says who made the values that come from outside torch's
    operators.
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
        """Type and shape of each input, such as `float32 (4, 8), float32 (8, 2)`.

        A call without inputs shows its outputs.
        """
        return ", ".join(value.form for value in self.inputs or self.outputs)


class ExecutedLine(Document):
    """A line of the script that was executed, for the first time just before call number `call`."""

    file: TracedFile
    line: TracedLine
    call: Annotated[int, Field(ge=0, le=MAX_CALLS)]


class TracedSettings(Document):
    """The settings of torch by name, as they are from call number `call` on."""

    call: Annotated[int, Field(ge=0, le=MAX_CALLS)]
    settings: Settings


class RankTrace(Document):
    """The operator calls of one rank, in order.

    `ended` is `done`, or the limit at which the trace stopped; it is empty if the process ended
    before the last line. `unread` counts calls that could not be recorded.
    """

    rank: Annotated[int, Field(ge=0, le=10**6)]
    calls: Annotated[tuple[TracedCall, ...], Field(max_length=MAX_CALLS)]
    lines: Annotated[tuple[ExecutedLine, ...], Field(max_length=MAX_EXECUTED)] = ()
    settings: Annotated[tuple[TracedSettings, ...], Field(max_length=MAX_CHANGES)] = ()
    ended: Literal["", "done", "calls", "bytes", "time"]
    unread: Annotated[int, Field(ge=0, le=2**53)]

    def settings_at(self, call: int) -> Settings:
        """Return the settings in force at a call, or an empty mapping if none were recorded yet."""
        known = [setting.settings for setting in self.settings if setting.call <= call]
        return known[-1] if known else {}


Traces = Annotated[tuple[RankTrace, ...], Field(max_length=MAX_RANKS)]


MAX_ROWS: Final = 16
MAX_NOTES: Final = 16
MAX_NUMBERS: Final = 16
# the longest `repr` of a Python float has 24 characters, such as -2.2250738585072014e-308
MAX_NUMBER_CHARACTERS: Final = 40
MAX_SEEDS: Final = 16
Text = Annotated[str, Field(max_length=1000)]
Name = Annotated[str, Field(max_length=200)]
Place = Annotated[str, Field(max_length=320)]


class Claim(StrEnum):
    """What the first call at which two traces differ proves.

    `NONDETERMINISTIC_OPERATOR`: the output differs, while inputs, memory layouts, arguments,
    settings of torch and the generator were all compared and are equal.

    `UNPROVEN`: the output differs, and some of these could not be compared.

    `SETTING`: a setting of torch differs at the call.

    `MEMORY_LAYOUT`: equal values are laid out differently in memory.

    `ARRIVAL`: messages were received from any rank, and arrived in a different order.

    `COLLECTIVE`: every rank passed equal values to a collective, and its result differs.

    `CODE_PATH`: the operator, its arguments or its shapes differ.

    `RANDOM_STATE`: a draw from a generator whose state differs.

    `OUTSIDE_VALUE`: a value that no operator made.

    `UNINITIALISED`: the call reads memory that nothing had written.

    `OTHER_TENSORS`: tensors that other calls made, or that were chosen or ordered outside torch.

    `BELOW_DISPATCHER`: a value was changed where torch's dispatcher does not see it.

    `NOT_FINITE`: the first number of a run that is NaN or infinite.

    `NOT_FOUND`: no call differs.
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

    `AGREE`: both traces are equal. `CUT`: the traces are equal up to the limit at which they ended.
    `EXPLAINED`: settings or structure already explain the difference, so no trace was made.
    `BUDGET`: no time was left. `FAILED`: a traced run failed. `OTHER_RESULT`: a traced run gave a
    different result than the run without a trace. `NOT_REACHED`: both traces end before the call
    that wrote the differing value. `NOTHING_LEFT`: no process left a trace in both runs.
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

    `NAMED`: it contains the line that the diagnosis names.

    `RAISED`: it contains the line that raised the exception.

    `FITS`: it contains the old and new numbers of an optimizer setting, or of an argument of the
    call at which the traces differ.

    `SCHEDULE`: it contains the line that creates a scheduler, and the schedule changed.

    `READ`: it is in a file that the training opened, and no code changed.

    `READ_AMONG`: it is in a file that the training opened, while code changed too or the change is
    not completely known.

    `ONLY`: a training can read nothing else in the change.

    `RAN`: of the changed lines that ran before the difference, it is the nearest.

    `EITHER`: one of two candidates. Candidates are changed lines that ran, files that the training
    opened, lines that may have run unseen, and lines with the numbers of the call that the first
    candidate makes. A third place may still be the cause.

    `EITHER_OF_ALL`: one of two candidates, and a training can read nothing else in the change.

    `RAN_BEFORE_NAN`: the nearest changed line that ran before the first number that is not finite.
    """

    NAMED = "named"
    RAISED = "raised"
    FITS = "fits"
    SCHEDULE = "schedule"
    READ = "read"
    READ_AMONG = "read-among-others"
    ONLY = "only"
    RAN = "ran"
    EITHER = "either"
    EITHER_OF_ALL = "either-of-all"
    RAN_BEFORE_NAN = "ran-before-nan"


class ShownChange(Document):
    """The part of the change that a report shows first; paths are relative to the repository."""

    how: HowKnown
    hunks: Annotated[tuple[ChangedLines, ...], Field(min_length=1, max_length=2)]

    @property
    def places(self) -> str:
        """The changed places as text, such as `train.py:12 and model.py:40`."""
        return " and ".join(hunk.place for hunk in self.hunks)

    @property
    def candidates(self) -> bool:
        """Whether the hunks are separate candidates that all ran.

        Lines that one hunk removes and the other adds were moved, which is one change.
        """
        out = [[line.strip() for line in hunk.before] for hunk in self.hunks if hunk.removed]
        into = [[line.strip() for line in hunk.after] for hunk in self.hunks if not hunk.removed]
        return self.how is HowKnown.RAN and len(self.hunks) > 1 and out != into


class TraceRow(Document):
    """The calls of both traces at one place around the divergence, side by side.

    `expected` or `observed` is empty if that trace has no call there. `here` marks the divergence.
    """

    expected: Name = ""
    observed: Name = ""
    place: Place = ""
    state: Name = ""
    here: bool = False


class ChangedNumber(Document):
    """A real number, number type or size that both calls are given, as each trace wrote it."""

    before: Annotated[str, Field(max_length=MAX_NUMBER_CHARACTERS)]
    after: Annotated[str, Field(max_length=MAX_NUMBER_CHARACTERS)]


class TraceFinding(Document):
    """The first call at which two traced runs differ, or the `reason` why none is named.

    Text: `sentence` says everything, without a full stop; `remedy` says what to do; `notes` are
    whole sentences.

    Place: `call` is the call's number in the observed run. `file` and `line` are the user's line.
    In the backward pass of torch's own operators only `forward_place` is known.

    What differs: `arguments` shows the arguments that differ. `real_numbers` is true if these are
    real numbers and nothing else. `numbers` lists these, or two number types such as `bfloat16`, or
    the one size by which the shapes of both inputs differ. `expected_operator` is the operator of
    the other run, if it is a different one. `precision` names the old and new number type.
    `absolute` and `relative` are the distance between sampled outputs, or None if it is unknown.

    Changes: `changed` are the hunks of the diff that ran up to this call, nearest first.
    `changed_later` are those that ran after it or not at all. `changed_seeds` are seeds to which
    the head gives a different number than the base commit, each with that former number.

    Limits of the claim: `elsewhere` is true if another process made the value, or may have, and
    nobody saw the lines that it ran. `given` is true if a number or value came from outside torch
    and its source is unknown. `only_uses` is true if the call is only the first to read a value
    that existed before or was made outside. It is also true if a module of torch makes the call,
    because the module may have been configured elsewhere. `draws` is true if only one of the runs
    draws from a generator there.
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
        """Whether the traces differ at a known call."""
        return self.claim is not Claim.NOT_FOUND

    @property
    def failed(self) -> bool:
        """Whether the traces could not answer the question; `sentence` says why.

        Equal traces and an explained difference are answers.
        """
        return self.reason not in {None, NoTrace.AGREE, NoTrace.EXPLAINED}

    @property
    def place(self) -> str:
        """The line in the form `train.py:12`, or an empty text if it is unknown."""
        return f"{self.file}:{self.line}" if self.file else ""


MAX_TRIED: Final = 16
MAX_RUNS: Final = 100
# Nothing is concluded from fewer runs with a setting, even if all of them are equal.
CERTAIN_RUNS: Final = 4
# Nor from fewer pairs of runs without it. If some of these pairs are equal too, more runs with the
# setting are needed.
CERTAIN_CONTROLS: Final = 3
# the accepted probability that a setting without any effect looks as if it helped
MOST_CHANCE: Final = 0.04
FILLS: Final = (Setting.TORCH_FILL, Setting.HEAP_FILL)
Count = Annotated[int, Field(ge=0, le=MAX_RUNS)]


def chance_of(pairs: int, differing: int, runs: int) -> float:
    """Return an upper bound of the probability of this result for a setting without any effect.

    The result is that `differing` of the `pairs` without the setting differ, and that all `runs`
    with it are equal.

    Let the results of a run have probabilities q, and let x = Σq² be the probability that a pair is
    equal. The probability that k runs are equal is Σq^k, which is at most x^(k/2). The whole result
    is therefore at most C(n, d) (1 - x)^d x^(n - d + k/2). The function returns the maximum of this
    over x. It is 3.5 % for three of three pairs and four runs.
    """
    equal = pairs - differing + runs / 2
    if not differing or not equal:
        return 1.0
    same = equal / (equal + differing)
    return float(comb(pairs, differing) * (1 - same) ** differing * same**equal)


def runs_needed(pairs: int, differing: int) -> int:
    """Return how many equal runs prove that a setting helps, given the pairs without it.

    Returns `MAX_RUNS + 1` if no permitted number of runs is enough.
    """
    counts = range(CERTAIN_RUNS, MAX_RUNS + 1)
    fit = (runs for runs in counts if chance_of(pairs, differing, runs) <= MOST_CHANCE)
    return next(fit, MAX_RUNS + 1)


class TriedSetting(Document):
    """One setting that was changed alone, and the runs with it, compared with each other.

    `written` is what a user writes to set it. `agree` says whether the runs are equal; it is None
    if that is unknown, and `problem` says why. `follows` applies to a fill of memory: whether the
    result changes with the value that memory is filled with, or None if that was not observed.
    `slower` is the factor by which a run takes longer: the fastest wall-clock time with the setting
    over the fastest without. It is None if no run reached the end of the training.
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
        """Whether all runs with this setting were equal."""
        return self.agree is True

    @property
    def telling(self) -> bool:
        """Whether the result points to a cause.

        For a fill, that takes a result that changes with the filled value: then the training reads
        memory that nobody wrote. A fill that makes the runs equal without this only moved something
        else. Any other setting points to a cause if it helps.
        """
        return self.helps and (self.setting not in FILLS or self.follows is True)


class TriedSettings(Document):
    """All settings that were tried, in order, with the pairs of runs that had none of them.

    `differing` of these `pairs` were not equal. `untried` names the settings for which the time
    budget left no room.
    """

    tried: Annotated[tuple[TriedSetting, ...], Field(max_length=MAX_TRIED)] = ()
    untried: Annotated[tuple[Name, ...], Field(max_length=MAX_TRIED)] = ()
    pairs: Count = 0
    differing: Count = 0

    @property
    def helping(self) -> TriedSetting | None:
        """The setting that certainly helps, or None.

        If several do, a setting that points to a cause comes first.
        """
        certain = [trial for trial in self.tried if self.is_certain(trial)]
        return next(iter((*(trial for trial in certain if trial.telling), *certain)), None)

    def is_certain(self, setting: TriedSetting) -> bool:
        """Return whether a setting helps, and chance is too unlikely to explain the result."""
        return setting.helps and setting.runs >= runs_needed(*self.without(setting))

    def without(self, setting: TriedSetting) -> tuple[int, int]:
        """Return the number of pairs of runs without this setting, and how many of them differ.

        A trial of another setting counts as one more pair, since its runs do not have this setting.
        """
        others = [
            other
            for other in self.tried
            if other != setting and other.agree is not None and not _of_one_kind(setting, other)
        ]
        apart = sum(other.agree is False for other in others)
        return self.pairs + len(others), self.differing + apart


def _of_one_kind(left: TriedSetting, right: TriedSetting) -> bool:
    """Return whether both are fills of memory and `right` helps too.

    Such a trial does not show what happens without a fill, so it is no control for `left`.
    """
    return left.setting in FILLS and right.setting in FILLS and right.helps
