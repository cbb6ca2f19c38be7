"""What a diagnosis says: a class of cause, the first divergence, the lines that fit."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Final

from pydantic import Field

from gate.comparison.differences import Comparison, EventKind, OptimizerSettingChange
from gate.evidence.columns import MAX_STEP
from gate.evidence.observations import KilledSave, Kills, ResumeFault
from gate.evidence.trace import TraceFinding, TriedSettings
from gate.settings.variations import KillPoint
from gate.text.document import Document


class CauseClass(StrEnum):
    """The glossary of causes, in its fixed order: what comes before explains what follows.

    Uninitialised memory, one operator, a race of threads, a kernel and a collective are proved by
    runs that are made for it; fingerprints alone never name them. A race of messages is a receive
    from any rank, or a message that nobody waited for.
    """

    ENVIRONMENT = "environment"
    DEPENDENCY = "dependency"
    RUN_SETTINGS = "run-settings"
    DATA = "data"
    STRUCTURE = "structure"
    SEED = "initialisation-or-seed"
    DATA_ORDER = "data-order"
    RANDOM_STATE = "random-state-use"
    UNINITIALISED_MEMORY = "uninitialised-memory"
    OPERATOR = "operator-nondeterminism"
    THREAD_RACE = "thread-race-or-reduction-order"
    KERNEL = "compiled-or-custom-kernel"
    PRECISION = "precision"
    OPTIMIZER = "optimizer-or-schedule"
    COLLECTIVE = "collective"
    MESSAGE_RACE = "message-race"
    CHECKPOINT = "checkpoint-only"
    RESUME = "resume"
    CODE = "code-change"


MAX_POINTS: Final = 16
Step = Annotated[int, Field(ge=0, le=MAX_STEP)]
Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class GrowthShape(StrEnum):
    """The curve that the difference follows; `UNCLEAR` where none fits, or several do.

    `CONSTANT`: the same amount at each step. `PROPORTIONAL`: the same part of the value. `STEADY`:
    a power of the steps since it began. `EXPONENTIAL`: by the same factor at each step.
    """

    CONSTANT = "constant"
    PROPORTIONAL = "proportional"
    STEADY = "steady"
    EXPONENTIAL = "exponential"
    UNCLEAR = "unclear"


class GrowthPoint(Document):
    """The difference at a step, in the metric's unit, and as a part of the expected value."""

    step: Step
    absolute: Size
    relative: Size | None = None


class Growth(Document):
    """The shape of one metric's difference, over `points_used` steps at which it is not zero.

    `factor` is by how much it grows a step where that is exponential, `power` that of the steps
    where it is steady. `until` is the step up to which the shape holds, where it levels off after
    it. `sentence` says it without a full stop; `points` are some of them, evenly spaced.
    """

    metric: str
    shape: GrowthShape
    sentence: str
    points_used: int
    first: GrowthPoint
    last: GrowthPoint
    factor: float | None = None
    power: float | None = None
    until: Step | None = None
    points: Annotated[tuple[GrowthPoint, ...], Field(max_length=MAX_POINTS)] = ()


class CodePlace(Document):
    """A line of the training's code; `file` counts from the folder where the training began."""

    file: str
    line: int

    @classmethod
    def known(cls, file: str, line: int) -> CodePlace | None:
        """The line, or None where its file is not known."""
        return cls(file=file, line=line) if file else None

    def held_by(self, lines: Mapping[str, int], folder: str) -> str:
        """Its path in the repository where the commit has that line of Python, else empty.

        `lines` are the Python files of the commit, with how many lines each has; a run may name any
        place. `folder` is where the training began.
        """
        path = str(PurePosixPath(folder, self.file))
        return path if 1 <= self.line <= lines.get(path, 0) else ""


class SuspectKind(StrEnum):
    """What a suspected line did.

    `unseeded` is a generator that was given no seed, `seed` one whose seed differs between the
    runs, `setting` an override, `child` an uninstrumented subprocess; the others are the kinds of
    `gate/evidence/observations.py`.
    """

    UNSEEDED = "unseeded"
    SEED = "seed"
    COMPLETION = "completion"
    ENTROPY = "entropy"
    DRAW = "draw"
    ORDER = "order"
    PRECISION = "precision"
    READ = "read"
    SETTING = "setting"
    PROCESS = "process"
    ADDRESS = "address"
    THREAD = "thread"
    CHILD = "child"
    CLOCK = "clock"


class Suspect(Document):
    """A line of the training's that may be the cause.

    `call` is what it called, seeded, turned or read; of what it turned `before` and `after` are
    words, and of a file that it read they are its size and time of change in each run.
    `used` says where that shows first, such as `step 1's batch`. `possible` means that it would
    explain the difference, but gives the same answer in two runs as well as another. `stack` holds
    the user's innermost frames, `file:line function`.
    """

    place: str
    kind: SuspectKind
    call: str
    step: int
    before: str = ""
    after: str = ""
    used: str = ""
    possible: bool = False
    stack: tuple[str, ...] = ()
    code_place: CodePlace | None = None
    rank: int = 0

    @property
    def code_places(self) -> tuple[CodePlace, ...]:
        """Its line, and those of the script that called it, innermost first."""
        own = () if self.code_place is None else (self.code_place,)
        frames = (frame.partition(" ")[0].rpartition(":") for frame in self.stack)
        callers = (
            CodePlace(file=file, line=int(line))
            for file, _, line in frames
            if file and line.isascii() and line.isdigit()
        )
        return tuple(dict.fromkeys((*own, *callers)))

    @property
    def begins_a_message(self) -> bool:
        """Whether it begins a message or a collective that the script did not wait for."""
        return self.kind is SuspectKind.THREAD and self.call.startswith("torch.distributed.")

    @property
    def changed_file(self) -> bool:
        """Whether it reads a file that was another in each run, and was read in both."""
        return self.kind is SuspectKind.READ and bool(self.before) and bool(self.after)


class Diagnosis(Document):
    """Where two results first differ and what class of cause that points to.

    `kind` is what differs first and `subject` its name; `cause` is one sentence without its full
    stop, at whose end `guess` is only what may have done it; `details` are whole ones on what
    followed and what was not seen. `cause_class` is None
    where fingerprints leave several open. `optimizer_settings` are those that explain it, such as
    `lr`, and `settings_beside` those that differ as early and do not; `suspects` are lines that
    would explain it, likeliest first, and `decides` says what would tell the first two apart.
    `ranks` are those that differ first where fewer than all do, empty else.
    `unrecorded_from` is the step behind the last one that has the fingerprints which come before
    the first difference: it may have begun there, and a trace may have set `first_step` so.
    `trace` is what two traced runs say (`traced`: it is the cause), `tried` which setting,
    moved alone, makes the runs agree,
    `growth` how the difference goes on over the steps; None where there are too few of them.
    """

    first_step: int | None
    unrecorded_from: int | None = None
    kind: EventKind
    subject: str
    cause: str
    remedy: str
    cause_class: CauseClass | None = None
    details: str = ""
    guess: str = ""
    suspects: tuple[Suspect, ...] = ()
    decides: str = ""
    optimizer_settings: tuple[OptimizerSettingChange, ...] = ()
    settings_beside: tuple[OptimizerSettingChange, ...] = ()
    trace: TraceFinding | None = None
    traced: bool = False
    growth: Growth | None = None
    tried: TriedSettings | None = None
    ranks: tuple[int, ...] = ()

    @property
    def begun_in_a_trace(self) -> bool:
        """Whether fingerprints left open at which step it begins, and a trace shows that."""
        begin, first, trace = self.unrecorded_from, self.first_step, self.trace
        if begin is None or first is None or trace is None or not trace.names_a_call:
            return False
        return begin <= first == trace.step

    @property
    def likely(self) -> tuple[Suspect, ...]:
        """The suspects that give another answer in each run."""
        return tuple(suspect for suspect in self.suspects if not suspect.possible)


MAX_CAUSES: Final = 20
MAX_EVIDENCE: Final = 20


class ResumeCauseKind(StrEnum):
    """What was not restored, in the order in which one explains the next."""

    IGNORED = "checkpoint-ignored"
    WEIGHTS = "weights"
    OPTIMIZER = "optimizer"
    LOSS_SCALE = "loss-scale"
    REPEATED = "data-repeated"
    SCHEDULE = "schedule"
    SAMPLER = "sampler"
    RANDOM = "random-state"
    AVERAGE = "average"


class ResumeCause(Document):
    """One state that was not restored: a sentence without a full stop, and what shows it.

    `rank` is the only rank that lacks it, None where all do or there is but one.
    """

    kind: ResumeCauseKind
    sentence: str = Field(max_length=400)
    evidence: Annotated[tuple[str, ...], Field(max_length=MAX_EVIDENCE)] = ()
    rank: int | None = None


Causes = Annotated[tuple[ResumeCause, ...], Field(max_length=MAX_CAUSES)]


class ResumeState(StrEnum):
    """What a resume came to. `not-checked`: why nothing can be said stands beside it."""

    EXACT = "exact"
    WITHIN = "within-tolerance"
    DIFFERS = "differs"
    NOT_REPEATED = "not-repeated"
    NOT_CHECKED = "not-checked"


class ResumeResult(Document):
    """A run was interrupted after `step` of `steps` steps, and resumed from its checkpoint alone.

    `checkpoint` consists of so many `files`, with one digest over all of them. `compared` is the
    resumed run against the uninterrupted one, or, where `not-repeated`, the interrupted run against
    the first steps of that one. `fault` says why nothing was compared. `kills` are the runs that
    were killed inside the save, none where that was not asked for.
    """

    state: ResumeState
    checkpoint: str = Field(max_length=500)
    step: int = Field(ge=0)
    steps: int = Field(ge=0)
    files: int = Field(default=0, ge=0)
    size_bytes: int = Field(default=0, ge=0)
    sha256: str = ""
    causes: Causes = ()
    compared: Comparison | None = None
    fault: ResumeFault | None = None
    kills: Kills = ()

    @property
    def torn(self) -> KilledSave | None:
        """The first run that left no complete checkpoint when it was killed inside the save."""
        return next((kill for kill in self.kills if kill.is_bad), None)

    @property
    def survives_kills(self) -> bool:
        """Whether runs were killed at each point inside the save, and each left a complete one."""
        return [kill.point for kill in self.kills if kill.is_good] == list(KillPoint)
