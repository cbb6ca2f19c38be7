"""Records of what the processes of a training did beside training, and of a resume's checkpoint.

They cover overrides of determinism settings, sources of nondeterminism, started processes, and the
state of each process where a run was interrupted or resumed. The meaning of each field of the
harness's files is in docs/harness-protocol.md.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.settings.variations import KillPoint
from gate.text.document import Document

SHOWN = 3
VariableName = Annotated[str, Field(pattern=r"^[A-Z_]{1,60}$")]


class ChildLine(Document):
    """A line of `children-rR-P.jsonl`: a command that may start Python without the harness.

    `words` are the words of the command and may be cut. `shell` is true if a shell reads the first
    word. `kept` is true if the child's environment still had PYTHONPATH and the gate's variables.
    `lost` names the knobs' variables that the child lacked or had with a different value. `line` is
    0 if no line of the training was on the stack.
    """

    words: tuple[str, ...] = Field(max_length=4000)
    shell: bool
    kept: bool
    lost: Annotated[tuple[VariableName, ...], Field(max_length=50)] = ()
    file: str = Field(max_length=200)
    line: int = Field(ge=0)


class StartedChild(Document):
    """A Python process that a process of the training started.

    `rank`, `pid`, `file` and `line` are those of the process that started it. `command` has no
    arguments.
    """

    rank: int = Field(ge=0)
    pid: int = Field(ge=0)
    command: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """File and line of the start, as shown to a person."""
        return f"{self.file}:{self.line}" if self.file else "a process of the training"


class UnattestedChild(StartedChild):
    """A Python process that started without the harness; `reason` is a clause that says why."""

    reason: str


class WeakerChild(StartedChild):
    """A Python process that has the harness, but lacks `variables` that the gate had set."""

    variables: Annotated[tuple[VariableName, ...], Field(min_length=1, max_length=50)]


def started_without(children: tuple[UnattestedChild, ...]) -> str:
    """Return a sentence that says where Python was started without the harness, without full stop.

    At most `SHOWN` different starts are named; the rest are counted.
    """
    sentences = [
        f"{child.place} started `{child.command}`, which {child.reason}" for child in children
    ]
    # each rank and each run reports the same line of the script again
    distinct = list(dict.fromkeys(sentences))
    rest = len(distinct) - SHOWN
    more = f"; and {rest} more" if rest > 0 else ""
    return "; ".join(distinct[:SHOWN]) + more


# the only setting that a script may switch off around a few lines without weakening the run
MAY_BE_OPENED = "deterministic_algorithms"
CallStack = Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=3)]


def library_frame(stack: tuple[str, ...], place: str) -> str:
    """Return the frame of an installed package at the top of a stack, or an empty text.

    `place` is the innermost frame of the user's own code. A stack that begins with another frame
    begins with the package's.
    """
    first = stack[0] if stack else ""
    return "" if first.partition(" ")[0] == place else first


class OverrideKind(StrEnum):
    """How a determinism setting was overridden, or a generator seeded."""

    SWITCH = "switch"
    CONTEXT = "context"
    THREADS = "threads"
    ENVIRONMENT = "environment"
    RESEED = "reseed"
    ENTROPY = "entropy"


class SeedScope(StrEnum):
    """Which generator was seeded: the global one that all code shares, or the script's own."""

    GLOBAL = "global"
    PRIVATE = "private"


class OverrideLine(Document):
    """A line of `overrides-rR-P.jsonl`: one override, made while `step` was in progress.

    `file` and `line` are the user's line; `line` is 0 if none was on the stack. `closed` is true if
    the script reverted the override before the step ended, `restored` if the harness did.
    `importing` is true if a library did it while this line imported it. `stack` has the user's
    innermost frames as `file:line function`. If an installed package gave a seed, the frame of the
    package comes first.

    `scope` is set only for seeds. The seed is `after`, and `before` says so if it was taken from
    the time. For a private generator without a given seed, `after` is the seed that the generator
    drew, if it can be read.
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
    """An override with the process that made it."""

    rank: int = Field(ge=0)
    pid: int = Field(ge=0)

    @property
    def determinism_suspended(self) -> bool:
        """Whether strict mode was switched off around a few lines and on again.

        This is allowed, and reported as a finding.
        """
        return self.closed and self.name == MAY_BE_OPENED

    @property
    def weakens(self) -> bool:
        """Whether the override made the run less deterministic than it was asked to be.

        A fixed seed of the script's own does not. Neither does a private generator: the gate does
        not seed such generators, and a difference in their draws shows in the results.
        """
        own_seed = self.kind is OverrideKind.RESEED or self.scope is SeedScope.PRIVATE
        return not own_seed and not self.determinism_suspended

    @property
    def seeds(self) -> bool:
        """Whether a generator was seeded; every other override changes a setting."""
        return self.kind in {OverrideKind.RESEED, OverrideKind.ENTROPY}

    @property
    def library(self) -> str:
        """The line of an installed package that gave the seed; empty if the user's own line did."""
        return library_frame(self.stack, self.place)

    @property
    def place(self) -> str:
        """File and line, as shown to a person."""
        return f"{self.file}:{self.line}" if self.file else "an unknown line"


STAMP: Final = re.compile(r"\d{1,19} \d{1,19}", re.ASCII)


class SourceKind(StrEnum):
    """What the training took from its surroundings, or did, that may differ between runs.

    `ENTROPY`, `CLOCK` and `PROCESS` are random bytes, the time and the process id. `ORDER` is a
    directory in the order of the file system. `COMPLETION` is the order in which threads or
    processes finished their work. `ADDRESS` is a line of code that calls `id()` or `hash()`.
    `THREAD` is a started thread. `DRAW` is a thread's draw from a generator that others use too.
    `PRECISION` is a precision setting that changed during the training. `VARIABLE` is an
    environment variable that the script asked for and that is not set.

    Files: `READ` is a file outside the commit that was opened for reading. `SPLIT` is a line that
    draws a split from the names in a folder. `SAVED` is a state that the script wrote into its own
    tree. `OPENED` is a file of the commit that the training read and the change under test touches.
    `UNSEEN` is a line that may read what no hook sees: through C code, another program or the
    network.

    `SCHEDULE` is a line that creates a scheduler of torch.

    Only runs of `repro-gate shake` have two kinds: `VARIED` says that something was varied, or why
    not, and `READING` is a line that reads it.
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
    READ = "read"
    SPLIT = "split"
    VARIED = "varied"
    READING = "reading"
    VARIABLE = "variable"
    SAVED = "saved"
    OPENED = "opened"
    SCHEDULE = "schedule"
    UNSEEN = "unseen"


class SourceLine(Document):
    """A line of `sources-rR-P.jsonl`, with the optimizer step at which the source was first seen.

    `file` and `line` are the training's own line; `line` is 0 if none was on the stack. `worker` is
    true if a worker process did it, `thread` if a thread other than the main thread did.

    The meaning of `before` and `after` depends on the kind:

    For a setting, they are its old and new value. For an order, they are digests of the sorted
    names and of the names as listed. For a completion, they are the number of the call of this line
    and a digest of the order. For a file that was read, `call` is the path, and `after` is the size
    in bytes and the modification time in nanoseconds. For a folder, `before` is the number of its
    files that were read. For a split, `before` lists the names, and `after` says whether they were
    sorted. For a variation, `before` is the reason why it was not applied.
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
    """A source with the rank of the process that used it."""

    rank: int = Field(ge=0)

    @property
    def stamp(self) -> tuple[int, int] | None:
        """Size in bytes and modification time in nanoseconds of a file that was read, if known."""
        size, _, changed = self.after.partition(" ")
        is_stamp = self.kind is SourceKind.READ and bool(STAMP.fullmatch(self.after))
        return (int(size), int(changed)) if is_stamp else None

    @property
    def place(self) -> str:
        """File and line, as shown to a person."""
        return f"{self.file}:{self.line}" if self.file else "an unknown line"


class LiveThreads(Document):
    """How many Python threads were alive from this step on."""

    step: int = Field(ge=1)
    count: int = Field(ge=0)


Generator = Literal["cuda", "numpy", "python", "torch"]
Order = Literal["epoch", "own", "plain", "torch", "unknown"]
Number = Annotated[int, Field(ge=0, le=2**62)]
FileName = Annotated[str, Field(max_length=200)]
MAX_LACKS: Final = 20
MAX_LACK_WORDS: Final = 300


class LoaderPlace(Document):
    """The position of the DataLoader that feeds the training: `batches` of an unfinished epoch.

    `length` is the number of batches of an epoch, or 0 if unknown. `order` says how the order of
    the samples is drawn. `reseeded` is true if the generator of that order was seeded for this
    epoch.
    """

    batches: Number
    length: Number
    order: Order
    epoch: Number
    reseeded: bool


class SavedAt(Document):
    """The last call of `torch.save` for a path; the path is empty for an object that is no file.

    `in_place` is true if the call wrote into the file of an earlier call. `loader` is None between
    two epochs.
    """

    path: FileName
    step: Number
    file: FileName
    line: int = Field(ge=0)
    loader: LoaderPlace | None
    in_place: bool = False


class UsedScheduler(Document):
    """A torch scheduler that the training used.

    `given` is true if the script itself passes the position in the schedule.
    """

    kind: Annotated[str, Field(max_length=100)]
    given: bool
    file: FileName
    line: int = Field(ge=0)


class UsedLine(Document):
    """A line of the training's own code."""

    file: FileName
    line: int = Field(ge=0)


class Carried(Document):
    """What one process carries from one step to the next, and what a checkpoint must save for it.

    `drawn` names the generators that were drawn from between two observed steps. `lines` has, for a
    generator, the only line that can have drawn from it. `states` are digests of the generators
    after the last observed step, used to compare ranks. `devices_drawn` counts the GPUs whose
    generators were drawn from, in a process with several GPUs. `own_generator` is true if a
    DataLoader draws its order from a generator of its own.
    """

    drawn: Annotated[tuple[Generator, ...], Field(max_length=4)]
    states: Annotated[dict[Generator, Annotated[str, Field(max_length=128)]], Field(max_length=4)]
    lines: Annotated[dict[Generator, UsedLine], Field(max_length=4)] = Field(default_factory=dict)
    devices_drawn: int = Field(default=0, ge=0, le=1000)
    own_generator: bool
    schedulers: Annotated[tuple[UsedScheduler, ...], Field(max_length=20)]
    saves: Annotated[tuple[SavedAt, ...], Field(max_length=20)]


class CheckpointLack(Document):
    """A part that an exact resume needs and the checkpoint lacks.

    `known` is false if it is uncertain whether the part is there. `why` then says why; otherwise it
    says what uses the part, at `file` and `line`.
    """

    part: Annotated[str, Field(max_length=60)]
    what: Annotated[str, Field(max_length=MAX_LACK_WORDS)]
    known: bool
    why: Annotated[str, Field(max_length=MAX_LACK_WORDS)] = ""
    file: FileName = ""
    line: int = Field(default=0, ge=0)


class Resumability(Document):
    """What train.checkpoint lacks for an exact resume, and the line that last saved it.

    `model_alone` is true if the checkpoint contains only the model. `overwritten` is true if each
    save overwrites the previous file, and no other checkpoint is beside it.
    """

    lacks: Annotated[tuple[CheckpointLack, ...], Field(max_length=MAX_LACKS)] = ()
    model_alone: bool = False
    overwritten: bool = False
    file: FileName = ""
    line: int = Field(default=0, ge=0)


MAX_TOLD_STEP: Final = 2**53
# the limits of the harness, which writes no more than this
MAX_LEAVES: Final = 4000
MAX_CARRIED_FILES: Final = 10_000
LeafName = Annotated[str, Field(max_length=300)]
ShortDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
StateDigest = Annotated[str, Field(pattern=r"^([A-Za-z0-9._/+-]{1,40}:[0-9a-f]{1,80})?$")]
HexNumber = Annotated[
    str, Field(max_length=40, pattern=r"^(-?0x[01]\.[0-9a-f]+p[+-][0-9]+|-?inf|nan)$")
]
GeneratorName = Annotated[str, Field(pattern=r"^random\.[a-z]{1,20}$")]


class BoundaryFacts(Document):
    """The state of a process at the boundary between an interrupted and a resumed run.

    `steps` is the number of steps taken so far, by `optimizers` optimizers. `before_update` is true
    if the state was taken before an update. `parameters` is the fingerprint of that name, empty if
    there are several optimizers. `digests` maps the name of each value to its digest. `zero` names
    the values with several elements that are all zero. `numbers` has the values with a single
    element.

    `writing` are files that were being written at the checkpoint's path. `beside` are files that a
    thread was saving elsewhere, or that were open beside the checkpoint under a similar name.
    """

    steps: int = Field(ge=0, le=MAX_TOLD_STEP)
    optimizers: int = Field(ge=0, le=100_000)
    before_update: bool
    parameters: StateDigest = ""
    random: Annotated[dict[GeneratorName, StateDigest], Field(max_length=10)] = Field(
        default_factory=dict
    )
    digests: Annotated[dict[LeafName, ShortDigest], Field(max_length=MAX_LEAVES)]
    zero: Annotated[tuple[LeafName, ...], Field(max_length=MAX_LEAVES)] = ()
    numbers: Annotated[dict[LeafName, HexNumber], Field(max_length=MAX_LEAVES)] = Field(
        default_factory=dict
    )
    writing: Annotated[tuple[Annotated[str, Field(max_length=300)], ...], Field(max_length=20)] = ()
    beside: Annotated[tuple[Annotated[str, Field(max_length=300)], ...], Field(max_length=20)] = ()

    def number(self, name: str) -> float | None:
        """Return the value of a single number, or None if there is none of this name."""
        text = self.numbers.get(name)
        return None if text is None else float.fromhex(text)


class Boundary(BoundaryFacts):
    """The boundary state of one rank."""

    rank: int = Field(ge=0, le=1_000_000)


class KillFacts(Document):
    """What a process wrote right before it was killed inside a save, or `why` it was not killed.

    The call of torch.save at `file` and `line` would have written `size_bytes` to `path`; `byte` of
    them were written. `inside` is the file's name below the checkpoint's folder: `.` for the
    checkpoint itself, empty for a file elsewhere. `had_one` is true if a checkpoint existed before.
    `beside` are names beside the checkpoint that this run had saved earlier.
    """

    point: KillPoint
    step: int = Field(ge=0, le=MAX_TOLD_STEP)
    path: FileName
    file: FileName
    line: int = Field(ge=0)
    size_bytes: int = Field(ge=0, le=2**63)
    byte: int = Field(ge=0, le=2**63)
    inside: FileName = ""
    had_one: bool
    beside: Annotated[tuple[FileName, ...], Field(max_length=20)] = ()
    why: FileName = ""


class LeftBy(StrEnum):
    """What a run that was killed inside a save left at the checkpoint's path.

    `COMPLETE`: a complete checkpoint. `BESIDE`: nothing or a torn file, with an older complete
    checkpoint beside it. `TORN`: a torn file. `LOST`: nothing, although a checkpoint existed
    before. `NOTHING_YET`: nothing, and no checkpoint existed before. `NOT_CHECKED`: unknown;
    `KilledSave.why` gives the reason.
    """

    COMPLETE = "complete"
    BESIDE = "beside"
    TORN = "torn"
    LOST = "lost"
    NOTHING_YET = "nothing-yet"
    NOT_CHECKED = "not-checked"


class KilledSave(Document):
    """A run that was killed while it wrote its checkpoint, and what it left.

    The call of torch.save at `file` and `line` had written `byte` of `size_bytes` to `path`. `why`
    is a clause that says what is wrong with a torn checkpoint, or why nothing was checked.
    `in_place` is true if a complete checkpoint has a file of the same name.
    """

    point: KillPoint
    left: LeftBy
    in_place: bool = False
    why: str = Field(default="", max_length=1000)
    step: int = Field(default=0, ge=0, le=MAX_TOLD_STEP)
    path: FileName = ""
    file: FileName = ""
    line: int = Field(default=0, ge=0)
    size_bytes: int = Field(default=0, ge=0, le=2**63)
    byte: int = Field(default=0, ge=0, le=2**63)

    @property
    def is_bad(self) -> bool:
        """Whether the kill left a torn checkpoint, or lost the one that existed before."""
        return self.left in {LeftBy.TORN, LeftBy.LOST}

    @property
    def is_good(self) -> bool:
        """Whether a complete checkpoint is left."""
        return self.left in {LeftBy.COMPLETE, LeftBy.BESIDE}


Kills = Annotated[tuple[KilledSave, ...], Field(max_length=len(KillPoint))]


class ResumeFault(Document):
    """Why a resume could not be judged: a sentence without its full stop, and what to do."""

    message: str = Field(max_length=1000)
    hint: str = Field(default="", max_length=2000)
    details: Annotated[tuple[str, ...], Field(max_length=200)] = ()


class ResumeAttempt(Document):
    """The checkpoint that was carried from the interrupted run to the resumed one.

    `files` and `sha256` are the number of its files and the digest over all of them. `step` is the
    number of steps that the interrupted run had taken. `fault` says why no resumed run could be
    judged. `kills` are the runs that were killed inside the save.
    """

    checkpoint: str = Field(max_length=500)
    at_step: int = Field(ge=1, le=MAX_TOLD_STEP)
    step: int = Field(default=0, ge=0, le=MAX_TOLD_STEP)
    files: int = Field(default=0, ge=0, le=MAX_CARRIED_FILES)
    size_bytes: int = Field(default=0, ge=0, le=2**63)
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    fault: ResumeFault | None = None
    kills: Kills = ()
