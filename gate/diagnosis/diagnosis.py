"""What a diagnosis says: a class of cause, the first divergence, the lines that fit."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath

from gate.comparison.differences import EventKind, OptimizerSettingChange
from gate.diagnosis.determinism_causes import CauseClass
from gate.diagnosis.measured_growth import Growth
from gate.evidence.trace import TraceFinding
from gate.evidence.tried import TriedSettings
from gate.text.records_document import Document


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

    @property
    def changed_file(self) -> bool:
        """Whether it reads a file that was another in each run, and was read in both."""
        return self.kind is SuspectKind.READ and bool(self.before) and bool(self.after)


class Diagnosis(Document):
    """Where two results first differ and what class of cause that points to.

    `kind` is what differs first and `subject` its name; `cause` is one sentence without its full
    stop, `details` are whole ones on what followed and what was not seen. `cause_class` is None
    where fingerprints leave several open. `optimizer_settings` are those that explain it, such as
    `lr`, and `settings_beside` those that differ as early and do not; `suspects` are lines that
    would explain it, likeliest first, and `decides` says what would tell the first two apart.
    `trace` is what two traced runs say, `tried` which setting, moved alone, makes the runs agree,
    `growth` how the difference goes on over the steps; None where there are too few of them.
    """

    first_step: int | None
    kind: EventKind
    subject: str
    cause: str
    remedy: str
    cause_class: CauseClass | None = None
    details: str = ""
    suspects: tuple[Suspect, ...] = ()
    decides: str = ""
    optimizer_settings: tuple[OptimizerSettingChange, ...] = ()
    settings_beside: tuple[OptimizerSettingChange, ...] = ()
    trace: TraceFinding | None = None
    growth: Growth | None = None
    tried: TriedSettings | None = None

    @property
    def likely(self) -> tuple[Suspect, ...]:
        """The suspects that give another answer in each run."""
        return tuple(suspect for suspect in self.suspects if not suspect.possible)
