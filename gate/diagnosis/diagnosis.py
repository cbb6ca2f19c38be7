"""The records of a diagnosis: class of cause, first divergence, suspected lines, resume result.

They are documents: verdict.json, reports and the fleet's history contain them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Final

from pydantic import Field

from gate.comparison.differences import Comparison, EventKind, OptimizerSettingChange
from gate.evidence.columns import MAX_STEP
from gate.evidence.observations import KilledSave, Kills, ResumeFault
from gate.evidence.trace import ChangedNumber, TraceFinding, TriedSettings
from gate.settings.variations import KillPoint
from gate.text.document import Document


class CauseClass(StrEnum):
    """The classes of cause, in causal order: an earlier class can explain a later one.

    Fingerprints alone never prove uninitialised memory, one operator, a race of threads, a kernel
    or a collective. Those classes need traced runs, or runs with one setting changed. A message
    race is a receive from any rank, or a message that nobody waited for.
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
    """The curve that the difference follows; `UNCLEAR` where no curve fits, or several do.

    - `CONSTANT`: the difference is the same amount at each step.
    - `PROPORTIONAL`: it is the same share of the value at each step.
    - `STEADY`: it is a power of the number of steps since it began.
    - `EXPONENTIAL`: it grows by the same factor at each step.
    """

    CONSTANT = "constant"
    PROPORTIONAL = "proportional"
    STEADY = "steady"
    EXPONENTIAL = "exponential"
    UNCLEAR = "unclear"


class GrowthPoint(Document):
    """The difference at a step: `absolute` in the metric's unit, `relative` to its value."""

    step: Step
    absolute: Size
    relative: Size | None = None


class Growth(Document):
    """The shape of one metric's difference, fitted to `points_used` steps at which it is not zero.

    `factor` is the growth per step of an exponential shape. `power` is the exponent of a steady
    shape. `until` is the last step of the shape if the curve levels off after it, else None.
    `sentence` has no full stop. `points` is an evenly spaced sample of at most `MAX_POINTS` points.
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
    """A line of the training's code; `file` is relative to the folder where training started."""

    file: str
    line: int

    @classmethod
    def known(cls, file: str, line: int) -> CodePlace | None:
        """Return the place, or None where the file is not known."""
        return cls(file=file, line=line) if file else None

    def held_by(self, lines: Mapping[str, int], folder: str) -> str:
        """Return the file's path in the repository if the commit contains this line, else "".

        `lines` maps each Python file of the commit to its number of lines. `folder` is where the
        training started. The check is needed because the run is untrusted and may name any file and
        line.
        """
        path = str(PurePosixPath(folder, self.file))
        return path if 1 <= self.line <= lines.get(path, 0) else ""


class SuspectKind(StrEnum):
    """What a suspected line did.

    `unseeded` is a generator that was given no seed, and `seed` one whose seed differs between the
    runs. `setting` is an override. `child` is an uninstrumented subprocess. The other kinds are
    those of `gate/evidence/observations.py`.
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
    """A line of the training that may be the cause.

    `call` is the function that the line called, the generator that it seeded, the setting that it
    changed or the file that it read. `before` and `after` are the values of a changed setting, or a
    file's size and time of change in each run. `used` says where the effect shows first, such as
    `step 1's batch`. `possible` means that the line would explain the difference, but may just as
    well give the same answer in two runs. `stack` contains the user's innermost frames, as
    `file:line function`.
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
        """The suspected line and the lines of the script that called it, innermost first."""
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
        """Whether the line starts a message or collective that the script did not wait for."""
        return self.kind is SuspectKind.THREAD and self.call.startswith("torch.distributed.")

    @property
    def changed_file(self) -> bool:
        """Whether the line read a file in both runs, and the file was different in each."""
        return self.kind is SuspectKind.READ and bool(self.before) and bool(self.after)


class Diagnosis(Document):
    """Where two results first differ, and what class of cause that points to.

    `kind` is the kind of quantity that differs first and `subject` is its name. `cause` is one
    sentence without its full stop. `guess` is the end of `cause` that is not proven. `details` are
    whole sentences about what followed and what was not observed. `cause_class` is None where
    fingerprints leave several classes open.

    `first_step` is the step of the first difference. `unrecorded_from` is the step after the last
    one with all fingerprints that precede the difference: the difference may have begun there. A
    trace may have moved `first_step` back towards it.

    `suspects` are lines that would explain the difference, likeliest first. `decides` says how to
    distinguish the first two. `optimizer_settings` are the settings that explain the difference,
    such as `lr`; `settings_beside` differ as early but do not explain it. `work` are the numbers of
    samples, rows or passes that differ in each step. `ranks` are the ranks that differ first, empty
    if all do.

    `trace` is what two traced runs show; `traced` says that it is the cause. `tried` records which
    setting, changed alone, makes the runs agree. `growth` is how the difference develops, None
    where there are too few steps.
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
    work: tuple[ChangedNumber, ...] = ()
    trace: TraceFinding | None = None
    traced: bool = False
    growth: Growth | None = None
    tried: TriedSettings | None = None
    ranks: tuple[int, ...] = ()

    @property
    def begun_in_a_trace(self) -> bool:
        """Whether only a trace shows the first step, because fingerprints left it open."""
        begin, first, trace = self.unrecorded_from, self.first_step, self.trace
        if begin is None or first is None or trace is None or not trace.names_a_call:
            return False
        return begin <= first == trace.step

    @property
    def likely(self) -> tuple[Suspect, ...]:
        """The suspects that give a different answer in each run."""
        return tuple(suspect for suspect in self.suspects if not suspect.possible)


MAX_CAUSES: Final = 20
MAX_EVIDENCE: Final = 20


class ResumeCauseKind(StrEnum):
    """What the resume did not restore, in causal order: an earlier kind can explain a later one."""

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
    """One state that was not restored: a sentence without a full stop, and the evidence for it.

    `rank` is the only rank that lacks the state. It is None where all ranks do, or there is only
    one.
    """

    kind: ResumeCauseKind
    sentence: str = Field(max_length=400)
    evidence: Annotated[tuple[str, ...], Field(max_length=MAX_EVIDENCE)] = ()
    rank: int | None = None


Causes = Annotated[tuple[ResumeCause, ...], Field(max_length=MAX_CAUSES)]


class ResumeState(StrEnum):
    """The result of a resume check; `not-checked` always comes with the reason."""

    EXACT = "exact"
    WITHIN = "within-tolerance"
    DIFFERS = "differs"
    NOT_REPEATED = "not-repeated"
    NOT_CHECKED = "not-checked"


class ResumeResult(Document):
    """The result of interrupting a run after `step` of `steps` and resuming from its checkpoint.

    The resumed run gets the checkpoint and nothing else. `checkpoint` is its path; it has `files`
    files, and `sha256` is one digest over all of them. `compared` is the resumed run against the
    uninterrupted one. For `not-repeated` it is the interrupted run against the first steps of the
    uninterrupted one. `fault` says why nothing was compared. `kills` are the runs that were killed
    inside the save, empty if none were requested.
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
        """Whether a run was killed at each point inside the save and each left a complete file."""
        return [kill.point for kill in self.kills if kill.is_good] == list(KillPoint)
