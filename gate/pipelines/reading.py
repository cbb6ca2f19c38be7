"""What the gate asks the process that reads what a run left, and what that answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.baseline.entry import Baseline, BaselineEntry
from gate.comparison.measurements import ReductionSpread, WeightDistance
from gate.data.data_sets import MAX_STATISTICS, DataPointers, DataStatistics, PointerFile
from gate.evidence.lock_files import Locks, PinnedPackages
from gate.evidence.operators import Refusal
from gate.evidence.run_evidence import MAX_NOT_FINITE, SHA256_PATTERN, RunEvidence, StateDistance
from gate.evidence.trace import Traces
from gate.settings.gate_settings import GateSettings, TrainSettings
from gate.settings.policy_files import PolicyChange
from gate.text.document import Document
from gate.training.runs import RunEnd, RunRecord
from gate.verdict.history import MAX_HISTORY_LINES, HistoryLine

REQUEST_SCHEMA: Final = "repro-gate.reading-request/1"
ANSWER_SCHEMA: Final = "repro-gate.reading-answer/1"
MAX_TEXT = 4000
MAX_POINTER_FILES: Final = 2000
Text = Annotated[str, Field(max_length=MAX_TEXT)]


class ReadingTask(StrEnum):
    """What is to be read.

    A run, which operators a failed one was refused and how its processes ended, a kept state, what
    the script saved, or two states, how far apart, tensor by tensor or all weights together; kept
    gradients, how far their sums move; of a pull request's head its settings, its baseline, and
    what it changes in the files that decide; a proposed entry of a baseline, as a file or in the
    archive of an artifact; earlier runs; lock files, each by its path; the operator traces of a
    run; where two files that preprocessing wrote first differ; pointers to declared data, and
    simple statistics of it; kept runs of a base commit; what of a requirements file may be
    installed.
    """

    RUN = "run"
    REFUSALS = "refusals"
    END = "end"
    STATE = "state"
    SAVED = "saved"
    DISTANCE = "distance"
    WEIGHTS = "weights"
    REDUCTION = "reduction"
    SETTINGS = "settings"
    BASELINE = "baseline"
    ENTRY = "entry"
    ARCHIVED_ENTRY = "archived-entry"
    HISTORY = "history"
    SETTINGS_CHANGES = "settings-changes"
    BASELINE_CHANGES = "baseline-changes"
    KEY_CHANGES = "key-changes"
    ROOT_CHANGES = "root-changes"
    LOCKS = "locks"
    TRACES = "traces"
    DATA_DIFFERENCE = "data-difference"
    DATA_STATISTICS = "data-statistics"
    DATA_POINTERS = "data-pointers"
    PINNED_PACKAGES = "pinned-packages"


class ReadingRequest(Document):
    """The file that the reading process is started with; all paths are absolute.

    `out` is the harness's folder, or the kept file's own path for the tasks that are about one;
    `against` is the other state, where there are two. `tree` is the training's working directory,
    `output` the file with what it printed, `taken` the copies that are read in the place of the
    harness's files of those names, or of lock files by their paths. For files of a head, `out` is
    the head's and `against` the base's, empty where there is none, and `shown` the name for
    messages; a baseline is a folder. `pointer_files` are copied into `out`. For statistics `out` is
    the data's file or folder, and `shown` a name whose suffix tells the format of a file.
    """

    schema_version: Literal["repro-gate.reading-request/1"] = REQUEST_SCHEMA
    task: ReadingTask
    out: str
    against: str = ""
    tree: str = ""
    shown: str = Field(default="", max_length=MAX_TEXT)
    output: str = ""
    taken: dict[str, str] = Field(default_factory=dict)
    run: RunRecord | None = None
    train: TrainSettings | None = None
    pointer_files: Annotated[tuple[PointerFile, ...], Field(max_length=MAX_POINTER_FILES)] = ()


class ReadingFault(Document):
    """A fault that the reading process found; `kind` is the name of its class."""

    kind: Literal["DataError", "DocumentError", "EvidenceError", "SettingsError", "StorageError"]
    message: Text
    hint: Text = ""
    details: Annotated[tuple[Text, ...], Field(max_length=200)] = ()


class ReadLeaf(Document):
    """A tensor of a kept state, as `TensorDigest` has it."""

    name: str = Field(max_length=1000)
    sha256: str = Field(pattern=SHA256_PATTERN)


class ReadingAnswer(Document):
    """The one document that the reading process writes: a fault, or what its task asks for."""

    schema_version: Literal["repro-gate.reading-answer/1"] = ANSWER_SCHEMA
    fault: ReadingFault | None = None
    evidence: RunEvidence | None = None
    refused: Annotated[tuple[Refusal, ...], Field(max_length=1000)] = ()
    end: RunEnd | None = None
    leaves: tuple[ReadLeaf, ...] = ()
    not_finite: Annotated[tuple[str, ...], Field(max_length=MAX_NOT_FINITE)] = ()
    distance: StateDistance | None = None
    weights: WeightDistance | None = None
    reduction: ReductionSpread | None = None
    settings: GateSettings | None = None
    baseline: Baseline | None = None
    entry: BaselineEntry | None = None
    changes: Annotated[tuple[PolicyChange, ...], Field(max_length=1000)] = ()
    history: Annotated[tuple[HistoryLine, ...], Field(max_length=MAX_HISTORY_LINES)] = ()
    history_problem: Text = ""
    locks: Locks = ()
    pinned: PinnedPackages = ()
    traces: Traces = ()
    where: Text = ""
    statistics: Annotated[tuple[DataStatistics, ...], Field(max_length=MAX_STATISTICS)] = ()
    pointers: DataPointers = ()
