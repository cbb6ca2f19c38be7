"""What a training's processes did beside training: overrides, sources, other processes.

And what they stood with where a run was interrupted, or had been resumed.
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


STAMP: Final = re.compile(r"\d{1,19} \d{1,19}", re.ASCII)


class SourceKind(StrEnum):
    """What it is.

    `order` is a directory as the file system lists it, `completion` the order in which threads
    or processes were done with their pieces of work, `address` a line of code that asks for
    `id()` or `hash()`, `draw` a thread's draw from a common generator, `precision` a switch of
    precision that was turned on the way, `read` a file outside the commit that was opened for
    reading, `split` a line that draws a split from the names in a folder. `variable` is one
    that the script asked for and that was not set, `saved` a state that it wrote into its tree.
    `opened` is a file of the commit that the change under test touches, and that was read.
    `unseen` is a line that may read what no hook sees: by C code, another program, the network.
    Only runs of `repro-gate shake` have `varied`, that something was varied or why not, and
    `reading`, a line that reads it.
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
    UNSEEN = "unseen"


class SourceLine(Document):
    """One line of the training's (0: unseen), at the optimizer step at which it was first seen.

    `before` and `after` are words: of a switch what it was and is, of an order a digest of the
    names sorted and one of the names as they came, of a completion the number of the call of its
    line and a digest of the order. Of a file that was read, `call` is its path and `after` its size
    in bytes and its time of change in nanoseconds; of a folder, `before` is how many of its files
    were. Of a split, `before` lists the names and `after` says whether they were sorted. Of what
    was varied, `before` is why it was not. `worker` says that a worker process did it, `thread`
    that a thread beside the main one did.
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
    """One, and the rank of the process that it was seen in."""

    rank: int = Field(ge=0)

    @property
    def stamp(self) -> tuple[int, int] | None:
        """Size in bytes and time of change in nanoseconds of a file that was read, if told so."""
        size, _, changed = self.after.partition(" ")
        is_stamp = self.kind is SourceKind.READ and bool(STAMP.fullmatch(self.after))
        return (int(size), int(changed)) if is_stamp else None

    @property
    def place(self) -> str:
        """File and line for a person."""
        return f"{self.file}:{self.line}" if self.file else "an unknown line"


class LiveThreads(Document):
    """How many threads of Python's were alive from this step on."""

    step: int = Field(ge=1)
    count: int = Field(ge=0)


Generator = Literal["cuda", "numpy", "python", "torch"]
Order = Literal["epoch", "own", "plain", "torch", "unknown"]
Number = Annotated[int, Field(ge=0, le=2**62)]
FileName = Annotated[str, Field(max_length=200)]
MAX_LACKS: Final = 20
MAX_LACK_WORDS: Final = 300


class LoaderPlace(Document):
    """How far the DataLoader was that trains: after so many batches of an epoch that goes on.

    `length` is 0 where it is not known. `order` says how the order of samples comes about,
    `reseeded` that its generator was given a seed for this epoch.
    """

    batches: Number
    length: Number
    order: Order
    epoch: Number
    reseeded: bool


class SavedAt(Document):
    """The last call of `torch.save` for a path, which is empty for what is no file.

    `in_place`: it wrote into the file that an earlier call had left.
    """

    path: FileName
    step: Number
    file: FileName
    line: int = Field(ge=0)
    loader: LoaderPlace | None
    in_place: bool = False


class UsedScheduler(Document):
    """A scheduler of torch's; `given`: the script says by itself where the schedule is."""

    kind: Annotated[str, Field(max_length=100)]
    given: bool
    file: FileName
    line: int = Field(ge=0)


class UsedLine(Document):
    """A line of the training's."""

    file: FileName
    line: int = Field(ge=0)


class Carried(Document):
    """What one process used: the generators that were `drawn` from between two steps, and more.

    `lines` are the only lines that can have drawn from a generator.
    `states` are digests of the generators after the last step, for a comparison of ranks.
    `devices_drawn` counts the GPUs whose generators were, where the process has several.
    `own_generator` says that a DataLoader draws its order from one of its own.
    """

    drawn: Annotated[tuple[Generator, ...], Field(max_length=4)]
    states: Annotated[dict[Generator, Annotated[str, Field(max_length=128)]], Field(max_length=4)]
    lines: Annotated[dict[Generator, UsedLine], Field(max_length=4)] = Field(default_factory=dict)
    devices_drawn: int = Field(default=0, ge=0, le=1000)
    own_generator: bool
    schedulers: Annotated[tuple[UsedScheduler, ...], Field(max_length=20)]
    saves: Annotated[tuple[SavedAt, ...], Field(max_length=20)]


class CheckpointLack(Document):
    """A part that an exact resume needs and the checkpoint lacks, or of which that is not `known`.

    `why` says what uses it, or why it cannot be told; `file` and `line` are the line that uses it.
    """

    part: Annotated[str, Field(max_length=60)]
    what: Annotated[str, Field(max_length=MAX_LACK_WORDS)]
    known: bool
    why: Annotated[str, Field(max_length=MAX_LACK_WORDS)] = ""
    file: FileName = ""
    line: int = Field(default=0, ge=0)


class Resumability(Document):
    """What train.checkpoint lacks, and the line that saved it last.

    `model_alone`: nothing else is in it. `overwritten`: each save writes into the last one's file,
    and there is no other one beside it.
    """

    lacks: Annotated[tuple[CheckpointLack, ...], Field(max_length=MAX_LACKS)] = ()
    model_alone: bool = False
    overwritten: bool = False
    file: FileName = ""
    line: int = Field(default=0, ge=0)


MAX_TOLD_STEP: Final = 2**53
# as the harness counts
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
    """State at the border between two runs, taken before an update where `before_update`.

    `steps` were taken by then, by so many `optimizers`. `parameters` is as the fingerprint of that
    name, empty where there are several. `digests` are of the values by name; `zero` names those of
    several elements that are all zero, and `numbers` has those of one. `writing` are files that
    were being written at the checkpoint's place, `beside` those that a thread saved elsewhere,
    or that were open beside it under a similar name.
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
        """The value of a single number, None where there is none of that name."""
        text = self.numbers.get(name)
        return None if text is None else float.fromhex(text)


class Boundary(BoundaryFacts):
    """The same of one rank."""

    rank: int = Field(ge=0, le=1_000_000)


class KillFacts(Document):
    """What a process told before it was ended inside a save, or `why` it was not.

    The call of torch.save at `line` was to write `size_bytes` to `path`, and `byte` of them got
    there. `inside` is its name below the checkpoint's folder, `.` for the checkpoint itself, empty
    for a file elsewhere. `had_one`: there had been a checkpoint before. `beside` are names beside
    the checkpoint's of what the run had saved before.
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

    `beside`: nothing or a torn file, and an older complete one beside it. `nothing-yet`: nothing,
    and there had been none before. `not-checked`: why is said beside it.
    """

    COMPLETE = "complete"
    BESIDE = "beside"
    TORN = "torn"
    LOST = "lost"
    NOTHING_YET = "nothing-yet"
    NOT_CHECKED = "not-checked"


class KilledSave(Document):
    """A run that was killed inside the write of its checkpoint, and what it left.

    `byte` of `size_bytes` had been written to `path` by the call of torch.save at `line`. `why`
    says what is wrong with a torn checkpoint, or why nothing was checked, as a clause. `in_place`:
    a complete checkpoint has a file of that name.
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
        """Whether nothing complete is left of what there was."""
        return self.left in {LeftBy.TORN, LeftBy.LOST}

    @property
    def is_good(self) -> bool:
        """Whether a complete checkpoint is left."""
        return self.left in {LeftBy.COMPLETE, LeftBy.BESIDE}


Kills = Annotated[tuple[KilledSave, ...], Field(max_length=len(KillPoint))]


class ResumeFault(Document):
    """Why nothing can be said of a resume: a sentence without a full stop, and what to do."""

    message: str = Field(max_length=1000)
    hint: str = Field(default="", max_length=2000)
    details: Annotated[tuple[str, ...], Field(max_length=200)] = ()


class ResumeAttempt(Document):
    """The checkpoint that was carried over: so many files, and the digest over all of them.

    `step` is how many steps the interrupted run had taken. `fault` says why no resumed run could be
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
