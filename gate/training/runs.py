"""A run of the training: what is asked for, and what came of it."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from gate.isolation.modes import RunIsolation
from gate.settings.knobs import KnobSet
from gate.settings.train_sections import MAX_LANES
from gate.settings.variations import KillPoint, Setting, Variation
from gate.text.document import Document


class RunMode(StrEnum):
    """Under which settings a run trains, and for what.

    An `interrupted` and a `resumed` run are strict ones that are never among the repeats: each does
    a part of the work.
    """

    STRICT = "strict"
    DEFAULT = "default"
    AUDIT = "audit"
    INTERRUPTED = "interrupted"
    RESUMED = "resumed"

    @property
    def is_strict(self) -> bool:
        """Whether the run must have every setting of a strict run."""
        return self in {RunMode.STRICT, RunMode.INTERRUPTED, RunMode.RESUMED}

    @property
    def of_harness(self) -> str:
        """The word for the harness, which knows the settings alone."""
        return RunMode.STRICT.value if self.is_strict else self.value


class Commit(StrEnum):
    """Whose code a run trains: the change under test, or the commit it started from."""

    HEAD = "head"
    BASE = "base"


class StoppedBy(StrEnum):
    """Who ended a training: the gate after `train.max_steps`, or the script by itself."""

    MAX_STEPS = "max_steps"
    SCRIPT = "script"


def label_of(mode: RunMode, number: int, commit: Commit = Commit.HEAD) -> str:
    """The name of a run, of its folder and of its curve; `number` counts from 1.

    Labels are made here alone and read nowhere: mode and commit are fields of the run.
    """
    if commit is Commit.HEAD:
        return f"{mode.value}-{number}"
    # most often the base is run in strict mode alone
    kind = commit.value if mode is RunMode.STRICT else f"{commit.value}-{mode.value}"
    return f"{kind}-{number}"


# the base commit in the environment that the change under test brings
BASE_HERE: Final = "base-here"
# these two are compared, packed and shown by name
FIRST_STRICT: Final = label_of(RunMode.STRICT, 1)
SECOND_STRICT: Final = label_of(RunMode.STRICT, 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlyEnd:
    """Where a run is stopped on purpose, before its training ends.

    It ends once every optimizer has taken `step` steps; `optimizers` are how many each rank has.
    With `written` it goes on to the next update, so that what the script writes after the step is
    there.
    """

    step: int
    optimizers: tuple[int, ...] = (1,)
    written: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceWindow:
    """Operator calls are traced from step `first` on, up to the run's end.

    The run ends with the training where `end` is None, and in any case after `max_seconds`. `lines`
    asks for the lines of the script that ran.
    """

    first: int
    max_seconds: float
    end: EarlyEnd | None = None
    lines: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Varied:
    """What is other in a run, the variables that make it so, and after how long the run is ended.

    `max_seconds` bounds a training that waits for ever where something is varied.
    """

    variation: Variation
    variables: tuple[tuple[str, str], ...] = ()
    max_seconds: float = float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One setting that a run has other than the settings say; it ends as a `TraceWindow` does.

    A `Setting.KNOB` has its name and `word`; `fill` is the byte of a `Setting.HEAP_FILL`.
    """

    setting: Setting
    knob: str = ""
    word: str = ""
    fill: int = 0
    max_seconds: float
    end: EarlyEnd | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Preemption:
    """A run is interrupted once `step` steps were taken and the next update begins.

    `checkpoint` is what it resumes from, below the working directory. The harness sends SIGTERM to
    its process. Where the script has a handler of its own for it, and has not written the
    checkpoint since that step, it may take a few steps more; then it is killed. With `inside` it is
    killed while it writes the checkpoint behind that step.
    """

    step: int
    checkpoint: str
    inside: KillPoint | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedFile:
    """A file of a checkpoint in the gate's own folder; `name` is below it, empty for a file."""

    name: str
    path: Path
    sha256: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedCheckpoint:
    """What a resumed run finds of the interrupted one, and nothing else.

    `place` is below the working directory; `step` is how many steps the interrupted run had taken.
    """

    place: str
    step: int
    files: tuple[CarriedFile, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """One row of the plan; `label` names its folder, for example `strict-1`.

    `environment` is the commit whose environment it trains in: the base's is another where the
    change under test brings its own. Without `observe` only loss, time, memory and the end state
    are recorded.
    `knobs` are the switches of a strict run when they are not all that the settings ask for;
    `keep_values` keeps the state's values, and with them one step's gradients, with the evidence.
    `traced` and `trial` are for a diagnosis alone: nothing of such a run is kept but what it says.
    `varied` is what is other in this run than in all others, which is compared and not kept.
    `preprocesses`: it is no training, but makes the data of one.
    `seed`, `command` and `max_steps` stand in place of train.seed, train.command and
    train.max_steps where they are given, and `variant` is the name of the variant that the command
    is of. `preemption` interrupts the run; `carried` is put into its tree before it starts.
    """

    label: str
    mode: RunMode
    commit: Commit = Commit.HEAD
    environment: Commit = Commit.HEAD
    observe: bool = True
    knobs: KnobSet | None = None
    keep_values: bool = False
    traced: TraceWindow | None = None
    varied: Varied | None = None
    trial: Trial | None = None
    preprocesses: bool = False
    seed: int | None = None
    command: tuple[str, ...] | None = None
    max_steps: int | None = None
    variant: str = ""
    preemption: Preemption | None = None
    carried: CarriedCheckpoint | None = None

    @property
    def window(self) -> TraceWindow | Trial | None:
        """Where a run for a diagnosis ends; None for all others."""
        return self.traced or self.trial

    @property
    def end(self) -> EarlyEnd | None:
        """Where it is stopped before its training ends; None where it is not."""
        return None if self.window is None else self.window.end

    @property
    def ends_after(self) -> int | None:
        """The steps after which it is ended on purpose, which may look like a failure."""
        if self.preemption is not None:
            return self.preemption.step
        return None if self.end is None else self.end.step

    @property
    def described(self) -> str:
        """For the person who waits."""
        return f"{self.label}: {self._does}"

    @property
    def _does(self) -> str:
        what = "base commit" if self.commit is Commit.BASE else "training"
        what = f"variant {self.variant}" if self.variant else what
        if self.preemption is not None:
            where = "interrupted" if self.preemption.inside is None else "killed inside the save"
            return f"{what}, {where} after step {self.preemption.step}"
        if self.carried is not None:
            return f"{what}, resumed from its checkpoint of step {self.carried.step}"
        return f"{what}, {self.mode.value} mode"

    def described_with(self, others: tuple[PlannedRun, ...]) -> str:
        """The same for runs that go together: what they share is told once."""
        runs = (self, *others)
        if not others or any(other._does != self._does for other in others):  # noqa: SLF001 - of this class
            return " and ".join(run.described for run in runs)
        return f"{' and '.join(run.label for run in runs)}: {self._does}, side by side"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFolders:
    """Where a run lives: the same paths for every run, emptied in between.

    `data` holds declared data that has no path in the tree. `taken` is the gate's alone: what it
    took over of the run to read.
    """

    tree: Path
    home: Path
    tmp: Path
    out: Path
    data: Path
    harness: Path
    taken: Path


class RunRecord(Document):
    """What the gate itself saw of a run.

    `begun_seconds` lie between the start of the call and the moment when this run was let go, which
    is `clock_seconds` of the kernel's monotonic clock, and `started_seconds` of it the moment when
    its process started. `lane` tells apart runs that went at the same time. `failed_beside` are
    labels of the runs beside which this one had failed before it was made again, alone. A `partial`
    run was stopped on purpose before its training ended: what only a whole one leaves is not asked
    of it. `stopped_by` rests on what every rank said of itself: it is the gate only where it ended
    all of them and none failed; `exit_code` is what a launcher made of that.
    """

    label: str
    mode: RunMode
    commit: Commit
    argv: tuple[str, ...]
    exit_code: int
    timed_out: bool
    wall_seconds: float
    output_bytes: int
    isolation: RunIsolation
    environment: Commit = Commit.HEAD
    begun_seconds: float = Field(default=0.0, ge=0)
    clock_seconds: float = Field(default=0.0, ge=0)
    started_seconds: float = Field(default=0.0, ge=0)
    failed_beside: Annotated[tuple[str, ...], Field(max_length=MAX_LANES)] = ()
    lane: int = Field(default=0, ge=0, lt=MAX_LANES)
    partial: bool = False
    stopped_by: StoppedBy | None = None


class RankEnd(Document):
    """How far one rank of several came, and how it ended, as far as that is known.

    `last_step` is 0 without one. `exit_code` is as its parent saw it, negative for a signal; None
    where nobody saw it end. `failed` is the exception that it ended with. `told_its_end` is False
    where it was killed, or still ran when the others failed.
    """

    rank: int = Field(ge=0, le=1_000_000)
    node: str = Field(default="", max_length=100)
    last_step: int = Field(default=0, ge=0, le=2**53)
    exit_code: int | None = None
    failed: str = Field(default="", max_length=300)
    told_its_end: bool = False

    @property
    def described(self) -> str:
        """For example `rank 1 on n2: last step 3, killed by SIGKILL`."""
        return f"{rank_on(self.rank, self.node)}: {self._came_to}, {self._how}"

    @property
    def _came_to(self) -> str:
        return f"last step {self.last_step}" if self.last_step else "no step"

    @property
    def _how(self) -> str:
        if self.failed:
            return f"failed with {self.failed}"
        if self.exit_code is None:
            return "no word of its end"
        if self.exit_code == -signal.SIGTERM:
            return "still running when the others failed (SIGTERM)"
        return ended_with(self.exit_code)


def told_nodes(nodes: Mapping[int, str]) -> Mapping[int, str]:
    """Each rank's machine, where they are on several; the name of the only one tells nothing."""
    return nodes if len({*nodes.values()}) > 1 else {}


def rank_on(rank: int, node: str) -> str:
    """`rank 1 on n2`, where the machine's name is known."""
    return f"rank {rank} on {node}" if node else f"rank {rank}"


def ended_with(exit_code: int) -> str:
    """`exit code 7`, or `killed by SIGKILL`."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        # real-time signals have a number and no name here
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"killed by {name}"


class RunEnd(Document):
    """What the processes of a run that failed say of its end.

    `stopped`: the gate had ended every rank. `by_stop`: that is all that the command failed for.
    `failed` are the exceptions, by name, that ranks ended with, `ranks` how each of several ended.
    `several` says that several processes trained as one rank, and `several_hint` what to do then.
    """

    stopped: bool = False
    by_stop: bool = False
    failed: Annotated[tuple[Annotated[str, Field(max_length=300)], ...], Field(max_length=100)] = ()
    ranks: Annotated[tuple[RankEnd, ...], Field(max_length=1000)] = ()
    several: Annotated[str, Field(max_length=300)] = ""
    several_hint: Annotated[str, Field(max_length=300)] = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The code under test, exported: what was trained and whether it was all committed.

    `digest` covers names, modes and bytes of every file. `changed_files` names what differs from
    the commit when a dirty tree was allowed. Where runs get less than all of it, `part` is the tree
    that they get, and `part_digest` the digest of that.
    """

    commit: str
    tree: Path
    workdir: str
    digest: str
    changed_files: tuple[str, ...] = field(default=())
    part: Path | None = None
    part_digest: str = ""

    @property
    def given(self) -> Path:
        """The tree that every run is a copy of."""
        return self.part or self.tree
