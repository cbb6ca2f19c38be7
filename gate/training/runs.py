"""Records of a training run: what is planned, where it lives, and how it ended."""

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
    """The settings under which a run trains, and its purpose.

    `interrupted` and `resumed` runs are strict. They are never counted as repeats, because each
    does only a part of the work.
    """

    STRICT = "strict"
    DEFAULT = "default"
    AUDIT = "audit"
    INTERRUPTED = "interrupted"
    RESUMED = "resumed"

    @property
    def is_strict(self) -> bool:
        """Whether the run needs every setting of a strict run."""
        return self in {RunMode.STRICT, RunMode.INTERRUPTED, RunMode.RESUMED}

    @property
    def of_harness(self) -> str:
        """The mode's name for the harness, which knows only the settings and not the purpose."""
        return RunMode.STRICT.value if self.is_strict else self.value


class Commit(StrEnum):
    """The commit whose code a run trains: the one under test, or the one it is based on."""

    HEAD = "head"
    BASE = "base"


class StoppedBy(StrEnum):
    """Who ended a training: the gate after `train.max_steps`, or the script by itself."""

    MAX_STEPS = "max_steps"
    SCRIPT = "script"


def label_of(mode: RunMode, number: int, commit: Commit = Commit.HEAD) -> str:
    """Return the label of a run, which names its folder and its curve; `number` counts from 1.

    Labels are never parsed: mode and commit are fields of the run.
    """
    if commit is Commit.HEAD:
        return f"{mode.value}-{number}"
    # the base usually runs in strict mode alone, so that mode is left out
    kind = commit.value if mode is RunMode.STRICT else f"{commit.value}-{mode.value}"
    return f"{kind}-{number}"


# the run of the base commit in the environment that the change under test installs
BASE_HERE: Final = "base-here"
# other code compares, packs and shows these two by name
FIRST_STRICT: Final = label_of(RunMode.STRICT, 1)
SECOND_STRICT: Final = label_of(RunMode.STRICT, 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlyEnd:
    """The point at which a run is stopped on purpose, before its training ends.

    The run ends once every optimizer has taken `step` steps; `optimizers` has their number for each
    rank. With `written` the run continues to the next update, so that the script can write its
    files after the step.
    """

    step: int
    optimizers: tuple[int, ...] = (1,)
    written: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceWindow:
    """Tracing of operator calls, from step `first` to the run's end.

    If `end` is None the run ends with the training, but in any case after `max_seconds`. With
    `lines`, the script's lines that ran are traced too.
    """

    first: int
    max_seconds: float
    end: EarlyEnd | None = None
    lines: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Varied:
    """The variation of a shaken run, with its environment variables and time limit.

    `max_seconds` ends a training that hangs because of the variation.
    """

    variation: Variation
    variables: tuple[tuple[str, str], ...] = ()
    max_seconds: float = float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One setting that differs from the settings file in this run; it ends as a `TraceWindow` does.

    A `Setting.KNOB` has a `knob` and its `word`; `fill` is the byte of a `Setting.HEAP_FILL`.
    """

    setting: Setting
    knob: str = ""
    word: str = ""
    fill: int = 0
    max_seconds: float
    end: EarlyEnd | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruption:
    """The interruption of a run after `step` steps, when the next update begins.

    `checkpoint` is the path below the working directory from which it resumes. The harness sends
    SIGTERM to its process. A script with its own SIGTERM handler may take a few more steps if it
    has not written the checkpoint since that step. Then it is killed. With `inside` it is killed
    while it writes the checkpoint after that step.
    """

    step: int
    checkpoint: str
    inside: KillPoint | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedFile:
    """A file of a checkpoint in the gate's own folder.

    `name` is its path in a checkpoint that is a folder, and empty for a checkpoint of one file.
    """

    name: str
    path: Path
    sha256: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedCheckpoint:
    """The checkpoint of the interrupted run, which is all that the resumed run gets of it.

    `place` is a path below the working directory; `step` is the number of steps taken so far.
    """

    place: str
    step: int
    files: tuple[CarriedFile, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """One run of the plan; `label` names its folder, for example `strict-1`.

    - `environment`: the commit whose environment it trains in; the base has a different one if the
      change under test installs its own.
    - `observe`: if False, only loss, time, memory and the end state are recorded.
    - `knobs`: the knobs of a strict run, if they are not all that the settings ask for.
    - `keep_values`: keep the values of the state and of one step's gradients in the evidence.
    - `traced`, `trial`: for a diagnosis; only what the run reports is kept.
    - `varied`: the variation of a shaken run, which is compared and not kept.
    - `preprocesses`: the run does not train, but makes the data.
    - `seed`, `command`, `max_steps`: replace train.seed, train.command and train.max_steps.
    - `variant`: the name of the variant that the command belongs to.
    - `preemption`: interrupts the run. `carried`: is put into its tree before it starts.
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
    preemption: Interruption | None = None
    carried: CarriedCheckpoint | None = None

    @property
    def window(self) -> TraceWindow | Trial | None:
        """Where a run for a diagnosis ends; None for other runs."""
        return self.traced or self.trial

    @property
    def end(self) -> EarlyEnd | None:
        """Where the run is stopped before its training ends; None if it is not."""
        return None if self.window is None else self.window.end

    @property
    def ends_after(self) -> int | None:
        """The steps after which the run is ended on purpose, which may look like a failure."""
        if self.preemption is not None:
            return self.preemption.step
        return None if self.end is None else self.end.step

    @property
    def described(self) -> str:
        """The run in words, for the person who waits."""
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
        """Return words for runs side by side, which name what they share once."""
        runs = (self, *others)
        if not others or any(other._does != self._does for other in others):  # noqa: SLF001 - of this class
            return " and ".join(run.described for run in runs)
        return f"{' and '.join(run.label for run in runs)}: {self._does}, side by side"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFolders:
    """The folders of a run: the same paths for every run, emptied in between.

    `data` contains declared data that has no path in the tree. Only the gate uses `taken`, for
    files that it took over from the run in order to read them.
    """

    tree: Path
    home: Path
    tmp: Path
    out: Path
    data: Path
    harness: Path
    taken: Path


class RunRecord(Document):
    """What the gate itself observed of a run.

    - `begun_seconds`: from the start of the call to the moment when this run was let go.
    - `clock_seconds`, `started_seconds`: the kernel's monotonic clock when the run was let go, and
      when its process started.
    - `lane`: distinguishes runs that went at the same time.
    - `failed_beside`: labels of the runs beside which this one failed before it was repeated alone.
    - `partial`: the run was stopped on purpose before its training ended, so files that only a
      whole training leaves are not required.
    - `stopped_by`: relies on what every rank reported. It is the gate only if the gate ended all
      ranks and none failed; `exit_code` is what a launcher made of that.
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
    """How far one of several ranks came, and how it ended, as far as that is known.

    `last_step` is 0 if it took none. `exit_code` is what its parent saw, negative for a signal, and
    None if nobody saw it end. `failed` is the exception that ended it. `told_its_end` is False if
    the rank was killed, or still ran when the others failed.
    """

    rank: int = Field(ge=0, le=1_000_000)
    node: str = Field(default="", max_length=100)
    last_step: int = Field(default=0, ge=0, le=2**53)
    exit_code: int | None = None
    failed: str = Field(default="", max_length=300)
    told_its_end: bool = False

    @property
    def described(self) -> str:
        """The rank's end in words: `rank 1 on n2: last step 3, killed by SIGKILL`."""
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
    """Return the machine of each rank, or nothing if there is only one, whose name is no news."""
    return nodes if len({*nodes.values()}) > 1 else {}


def rank_on(rank: int, node: str) -> str:
    """Return `rank 1 on n2`, or `rank 1` if the machine's name is unknown."""
    return f"rank {rank} on {node}" if node else f"rank {rank}"


def ended_with(exit_code: int) -> str:
    """Return the end in words: `exit code 7`, or `killed by SIGKILL`."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        # real-time signals have a number and no name here
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"killed by {name}"


class RunEnd(Document):
    """What the processes of a failed run report about its end.

    `stopped` means that the gate had ended every rank, and `by_stop` that the command failed only
    because of that. `failed` are the names of exceptions that ended ranks. `ranks` says how each of
    several ranks ended. `several` says that several processes trained as one rank, and
    `several_hint` what to do then.
    """

    stopped: bool = False
    by_stop: bool = False
    failed: Annotated[tuple[Annotated[str, Field(max_length=300)], ...], Field(max_length=100)] = ()
    ranks: Annotated[tuple[RankEnd, ...], Field(max_length=1000)] = ()
    several: Annotated[str, Field(max_length=300)] = ""
    several_hint: Annotated[str, Field(max_length=300)] = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The exported code under test, and whether all of it is committed.

    `digest` covers names, modes and bytes of every file. `changed_files` lists what differs from
    the commit when a dirty tree was allowed. If runs get only a part of it, `part` is the tree of
    that part and `part_digest` its digest.
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
        """The tree that every run gets a copy of."""
        return self.part or self.tree
