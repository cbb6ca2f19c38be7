"""What a run left: metrics at full precision, per-step digests, tensors, environment."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

from gate.data.data_sets import DataSets, UnrepeatedData
from gate.evidence.columns import MAX_BYTES, MAX_STEP, Memory, Points
from gate.evidence.configuration import ConfigurationValues
from gate.evidence.lock_files import Locks
from gate.evidence.observations import (
    Boundary,
    LiveThreads,
    Override,
    Resumability,
    ResumeAttempt,
    Source,
    UnattestedChild,
    WeakerChild,
)
from gate.evidence.operator_records import OperatorAudit
from gate.evidence.step_columns import MeasuredSeconds, StepDigests, SummedSeconds, Timings
from gate.evidence.step_work import MAX_SEED_RESULTS, Given, SeedResult, Settings
from gate.evidence.trace import TraceFinding, TriedSettings
from gate.system.git.changes import Change
from gate.system.machine import GpuMissed, MachineFacts, RankFacts
from gate.system.node import NodeFacts
from gate.text.document import Document, Timestamp
from gate.training.environment import Environment
from gate.training.runs import BASE_HERE, Commit, RunMode, RunRecord

MAX_MEMBER = 256
Root = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class StateName(StrEnum):
    """Which state: what the harness captured on rank 0, or what the script saved itself."""

    CAPTURED = "captured"
    SAVED = "saved"


class StateRoots(Document):
    """The digest of a state, as `repro-gate digest` gives it for the file or folder at `member`.

    `member` is its place in the package, empty where it is not packed. `parts` holds the roots of
    model, optimizer, random state and the rest, `root` is over them.
    """

    name: StateName
    member: str = Field(default="", max_length=MAX_MEMBER)
    algorithm: str = Field(max_length=40)
    root: Root
    parts: Annotated[dict[Annotated[str, Field(max_length=40)], Root], Field(max_length=10)]


# one of each at most
States = Annotated[tuple[StateRoots, ...], Field(max_length=len(StateName))]


MAX_DISTANCES = 5000
MAX_ELEMENTS = 2**63
Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TensorDistance(Document):
    """One tensor that has other bytes, and the same type and shape, on both sides.

    `differing` of the `elements` have other bits. `relative_l2` is the norm of the difference over
    the larger of the two norms, both over the elements that are finite on both sides; it and
    `max_absolute` are None where there is no such number. `finiteness_moved` says that one side has
    more NaN or infinite elements.
    """

    name: str = Field(max_length=1000)
    elements: int = Field(ge=0, le=MAX_ELEMENTS)
    differing: int = Field(ge=0, le=MAX_ELEMENTS)
    relative_l2: Size | None
    max_absolute: Size | None
    finiteness_moved: bool = False


class StateDistance(Document):
    """The tensors with numbers, worst first; `total` counts those that are not listed as well."""

    total: int = Field(ge=0, le=MAX_ELEMENTS)
    tensors: Annotated[tuple[TensorDistance, ...], Field(max_length=MAX_DISTANCES)]


EVIDENCE_SCHEMA: Final = "repro-gate.evidence/1"
# One is enough to refuse a run; a diverged model has them in every tensor.
MAX_NOT_FINITE = 1000
MAX_KEPT = 3000
# a baseline lists them, and is read by people
MAX_SKETCHES = 4000
MAX_SOURCES = 1000
MAX_PASSED_OVER = 50
# of one rank, and of all: a reader wants those of the first ranks
MAX_PARAMETER_NAMES = 1000
MAX_ALL_PARAMETER_NAMES = 8000
SHA256_PATTERN = r"^[0-9a-f]{64}$"
RUN_FILE = re.compile(
    r"[a-z0-9][a-z0-9-]{0,39}/(output\.txt|state\.safetensors|gradients\.safetensors)"
)
# what a script saved has names of its own choice: such as a package can hold, and no others
SAVED_FILE = re.compile(r"strict-1/model/[!-.0-~](?:[ -~]{0,180}[!-.0-~])?")
PLACE_PATTERN = r"^state(\.rank[0-9]{1,6})?/optimizer/[0-9]{1,6}/state/[0-9]{1,9}$"
FloatType = Literal["float64", "float32", "float16", "bfloat16"]


def _kept_name(name: str) -> str:
    """Refuse a name that could lie outside the folder of its run."""
    safe = {"", ".", ".."}.isdisjoint(name.split("/")) and "\\" not in name
    if not RUN_FILE.fullmatch(name) and not (SAVED_FILE.fullmatch(name) and safe):
        message = "is not the name of a kept file"
        raise ValueError(message)
    return name


KeptName = Annotated[str, Field(max_length=200), AfterValidator(_kept_name)]


class MetricSource(StrEnum):
    """Who says so: all are exact but printed text, which the script rounded."""

    HARNESS = "harness"
    LOGGED = "logged"
    FILE = "file"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    TRACKIO = "trackio"
    STDOUT = "stdout"


class MetricSeries(Document):
    """A metric over the steps of a run, in the order of its steps."""

    name: str = Field(min_length=1, max_length=200)
    source: MetricSource
    dtype: FloatType = "float64"
    points: Points


class RecorderCost(Document):
    """What observing took beside the timed steps of rank 0, and its sampling intervals.

    `sampling_intervals` says for a group of fingerprints that every n-th step was observed: for the
    reader of a report only, no other run is handed it.
    """

    observe_seconds: SummedSeconds
    step_seconds: SummedSeconds
    sampling_intervals: dict[str, int] = Field(default_factory=dict)

    @property
    def share(self) -> float | None:
        """Observing as a part of the time of the steps, or None without a timed step."""
        return self.observe_seconds / self.step_seconds if self.step_seconds else None


SketchText = Annotated[str, Field(pattern=r"^[0-9a-f]{272}$")]
Sketches = Annotated[
    dict[Annotated[str, Field(pattern=SHA256_PATTERN)], SketchText], Field(max_length=MAX_SKETCHES)
]


class TensorDigest(Document):
    """A leaf of a training state: a tensor by type, shape and bytes, or a plain value by its kind.

    `dtype` is upper-case for a tensor (`F32`), lower-case for a value (`int`), whose shape is `()`.
    """

    name: str = Field(min_length=1, max_length=1000)
    dtype: str = Field(max_length=40)
    shape: tuple[int, ...]
    sha256: str = Field(pattern=SHA256_PATTERN)


class CheckpointManifest(Document):
    """Every tensor and every plain value of a training state, sorted by name, and their roots.

    `algorithm` and `hash` name how the digests were made; digests of two kinds are never compared.
    `parts` holds the roots of model, optimizer, random state and the rest; `root` is over them.
    `optimizer_settings` are numbers for a reader, by the name of their leaf; nothing is decided by
    them. `sketches` are those of weights and buffers, by their digest: how far another state is
    from this one can be estimated with them.
    """

    algorithm: str = Field(max_length=40)
    hash: Literal["sha256"] = "sha256"
    tensors: tuple[TensorDigest, ...]
    parts: dict[str, str]
    root: str = Field(pattern=SHA256_PATTERN)
    optimizer_settings: Settings = Field(default_factory=dict)
    sketches: Sketches = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _without_empty_sketches(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        """An entry that has none keeps the digest it was recorded with."""
        written: dict[str, object] = handler(self)
        if not self.sketches:
            written.pop("sketches", None)
        return written

    @field_validator("tensors")
    @classmethod
    def _sorted_and_distinct(cls, value: tuple[TensorDigest, ...]) -> tuple[TensorDigest, ...]:
        names = [tensor.name for tensor in value]
        # two manifests of one state are then the same bytes, and no name can stand there twice
        if names != sorted(set(names)):
            message = "tensor names must be sorted and distinct"
            raise ValueError(message)
        return value


class NotFiniteTensor(Document):
    """A leaf of a training state that holds NaN or infinity, and how many of each."""

    name: str = Field(min_length=1, max_length=1000)
    nan: int = Field(ge=0, le=MAX_BYTES)
    infinite: int = Field(ge=0, le=MAX_BYTES)


class DeviceFacts(Document):
    """A GPU as a process of the training sees it; `used`: torch held memory on it there.

    `slice` is the profile of a part of a GPU (MIG), `memory_bytes` what this device has in all.
    """

    index: int = Field(ge=0, le=1000)
    name: str = Field(max_length=200)
    capability: str = Field(max_length=20)
    multiprocessors: int = Field(ge=0, le=MAX_BYTES)
    memory_bytes: int = Field(ge=0, le=MAX_BYTES)
    slice: str = Field(default="", max_length=40)
    uuid: str = Field(default="", max_length=80)
    used: bool = False


Devices = Annotated[tuple[DeviceFacts, ...], Field(max_length=64)]


class HarnessProcess(Document):
    """What one process of the training attested: which settings it really had.

    `before` is what torch had before, `variables` holds the knobs that are environment variables
    and what else is known to move a result, `devices` every GPU that the process can see. `node` is
    the machine's name, which decides nothing.
    """

    pid: int
    rank: int = 0
    applied: dict[str, str]
    before: dict[str, str] = Field(default_factory=dict)
    device: str = ""
    devices: Devices = ()
    versions: dict[str, str] = Field(default_factory=dict)
    variables: dict[str, str] = Field(default_factory=dict)
    node: str = Field(default="", max_length=100)
    problems: tuple[str, ...] = ()


class UnusedSetting(Document):
    """A setting that had nothing to act on in a run: its key and what it says."""

    key: str = Field(max_length=100)
    value: str = Field(max_length=400)


class WhyPassedOver(StrEnum):
    """Why a value of a script's own log is no metric."""

    TEXT = "is text"
    NUMBER = "is a number in quotes"
    DEPTH = "is nested too deep"
    WIDTH = "has too many values"
    COUNT = "is one nested value too many"
    NAME = "has a name that is too long or not printable"
    LINE = "is too long to search"
    MEDIA = "is media or a table"
    RECORD = "is too long to read"
    PRINTED = "is only printed"


class PassedOver(Document):
    """What a script logged and nobody compared: its name there, or the line, and why."""

    source: MetricSource
    name: str = Field(max_length=200)
    why: WhyPassedOver


MAX_RANKS = 1000
MAX_NODE = 100
MAX_DRIFTED_NAMES = 20


class RankRecord(Document):
    """What one rank of several recorded: its own digests, and its metrics where it is not rank 0.

    `node` is the machine's name, for a reader only.
    """

    rank: int = Field(ge=0, le=1_000_000)
    node: str = Field(default="", max_length=MAX_NODE)
    steps: StepDigests
    metrics: tuple[MetricSeries, ...] = ()


class ReplicaDrift(Document):
    """Ranks that DistributedDataParallel keeps equal, and whose weights are not after `step`.

    `ranks` have other weights than rank `like`, which has those of most ranks. `equal_until` is the
    last step before it at which all of them were seen to be equal. `at_end`: only the states at the
    end show it, since no later step has fingerprints; `step` is then the last one. `parameters`
    names those that differ at the end, of `differing` in all.
    """

    step: int = Field(ge=1, le=MAX_STEP)
    equal_until: int | None = None
    at_end: bool = False
    like: int = Field(ge=0, le=1_000_000)
    ranks: Annotated[tuple[int, ...], Field(min_length=1, max_length=MAX_RANKS)]
    parameters: Annotated[
        tuple[Annotated[str, Field(max_length=1000)], ...], Field(max_length=MAX_DRIFTED_NAMES)
    ] = ()
    differing: int = Field(default=0, ge=0)


class RunEvidence(Document):
    """Everything that a run is judged by.

    `constant_infinities` are leaves that held the same infinities before the first forward pass:
    they are none of `not_finite`. `left_out` are sentences about tensors and values of kinds that
    cannot be read, `notes` those about all else that was left out. `parameter_names` has, for the
    place of a parameter's state in an optimizer, the leaf that is the parameter: for a reader only,
    nothing is decided by it.
    `given` is what steps of rank 0 were given, which a diagnosis compares and nothing else.
    `resumability` is what train.checkpoint lacks for an exact resume, for a finding only.
    `rank_facts` are reported and decide nothing. `sources` is what it took from its surroundings,
    `live_threads` where the number of Python's threads changed on rank 0: for a diagnosis only.
    `boundaries` is what each rank stood with where it was interrupted, or had been resumed.
    `nodes` are those of a cluster that it ran on; what they are is a part of its environment.
    `ranks` is what each rank recorded by itself, empty where only one trained; `metrics` and
    `steps` are rank 0's and those of all ranks together. `replica_drift` is where replicas of one
    model first differ, for a finding only. `configuration` is what rank 0 parsed, composed and read
    from files of the commit.

    `first_step_seconds` is the cold start: from the start of the process to the end of step 1,
    without what it waited for its turn. `ready_seconds` are those of it until it could be let go,
    and `first_step_clock_seconds` is the kernel's monotonic clock at the end of step 1.
    """

    schema_version: Literal["repro-gate.evidence/1"] = EVIDENCE_SCHEMA
    run: RunRecord
    metrics: tuple[MetricSeries, ...]
    steps: StepDigests
    given: Given = ()
    timings: Timings
    checkpoint: CheckpointManifest
    not_finite: Annotated[tuple[NotFiniteTensor, ...], Field(max_length=MAX_NOT_FINITE)] = ()
    constant_infinities: Annotated[
        tuple[Annotated[str, Field(max_length=1000)], ...], Field(max_length=MAX_NOT_FINITE)
    ] = ()
    environment: Environment
    rank_facts: Annotated[tuple[RankFacts, ...], Field(max_length=1000)] = ()
    processes: tuple[HarnessProcess, ...]
    peak_memory_bytes: int = Field(ge=0, le=MAX_BYTES)
    device_memory_bytes: int = Field(default=0, ge=0, le=MAX_BYTES)
    memory: Memory = Memory()
    recorder: RecorderCost | None = None
    first_step_seconds: MeasuredSeconds | None = None
    first_step_clock_seconds: MeasuredSeconds | None = None
    ready_seconds: MeasuredSeconds = 0.0
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    resumability: Resumability | None = None
    operator_audit: OperatorAudit = OperatorAudit()
    overrides: tuple[Override, ...] = ()
    overridden: int = Field(default=0, ge=0)
    sources: Annotated[tuple[Source, ...], Field(max_length=MAX_SOURCES)] = ()
    live_threads: Annotated[tuple[LiveThreads, ...], Field(max_length=MAX_STEP)] = ()
    children: tuple[UnattestedChild, ...] = ()
    unused_settings: Annotated[tuple[UnusedSetting, ...], Field(max_length=100)] = ()
    passed_over: Annotated[tuple[PassedOver, ...], Field(max_length=2 * MAX_PASSED_OVER)] = ()
    weaker_children: tuple[WeakerChild, ...] = ()
    parameter_names: Annotated[
        dict[Annotated[str, Field(pattern=PLACE_PATTERN)], Annotated[str, Field(max_length=1000)]],
        Field(max_length=MAX_ALL_PARAMETER_NAMES),
    ] = Field(default_factory=dict)
    boundaries: Annotated[tuple[Boundary, ...], Field(max_length=1000)] = ()
    nodes: Annotated[tuple[NodeFacts, ...], Field(max_length=512)] = ()
    ranks: Annotated[tuple[RankRecord, ...], Field(max_length=MAX_RANKS)] = ()
    replica_drift: ReplicaDrift | None = None
    configuration: ConfigurationValues = Field(default_factory=dict)

    @field_validator("metrics")
    @classmethod
    def _each_name_is_there_once(cls, value: tuple[MetricSeries, ...]) -> tuple[MetricSeries, ...]:
        # of two series with one name a reader would compare one
        if len({series.name for series in value}) != len(value):
            message = "two metrics have one name"
            raise ValueError(message)
        return value


class SeededRun(Document):
    """A strict run with a seed of its own; `not_finite` says which number is NaN or infinite."""

    run: RunRecord
    result: SeedResult
    not_finite: str = Field(default="", max_length=400)


class KeptFile(Document):
    """A file beside the documents of a run, and the SHA-256 of the bytes that were read of it."""

    name: KeptName
    sha256: str = Field(pattern=SHA256_PATTERN)


class SavedFiles(Document):
    """Whether what the script saved is a folder, and why it is not kept where it is not."""

    is_folder: bool
    left_out: str = Field(default="", max_length=400)


class DivergedStates(Document):
    """The second strict run's state, kept because it is another than the first's.

    It lies beside the documents and is not packed. `distance` is None when the two could not be
    compared number by number.
    """

    state: KeptFile
    distance: StateDistance | None = None


class EvidenceSet(Document):
    """All runs of one gate call, in the order in which they ran.

    `kept` names what lies beside the documents and is packed: outputs, and of the first strict run
    its state and, where there is `saved`, the files that the script saved. `machine` is what the
    gate itself saw, `locks` are the lock files of the commit, `base_locks` those of the base.
    `apart` is there when the second strict run ended in another state, `gpu_missed` when runs that
    might have used a GPU of the machine could not. `trace` is what traced runs, made after a
    difference, say of it, and `tried` what runs with one setting moved say; `seeded` are results of
    further seeds, and of variants. `data` is what was declared,
    as the runs found it, `base_data` the same for the base commit, and `unrepeated` what the
    preprocessing command wrote differently when it ran again.
    `change` is what the base commit and this one do not share, where both are known. `resume` is
    what became of the interrupted run's checkpoint. `files_digest` covers the files that the runs
    got, where the settings name them.
    """

    schema_version: Literal["repro-gate.evidence/1"] = EVIDENCE_SCHEMA
    commit: str
    base_commit: str | None
    snapshot_digest: str = Field(pattern=SHA256_PATTERN)
    settings_digest: str = Field(pattern=SHA256_PATTERN)
    training_digest: str = Field(pattern=SHA256_PATTERN)
    changed_files: tuple[str, ...] = ()
    created_at: Timestamp
    runs: tuple[RunEvidence, ...]
    kept: Annotated[tuple[KeptFile, ...], Field(max_length=MAX_KEPT)] = ()
    saved: SavedFiles | None = None
    apart: DivergedStates | None = None
    gpu_missed: GpuMissed | None = None
    seeded: Annotated[tuple[SeededRun, ...], Field(max_length=MAX_SEED_RESULTS)] = ()
    machine: MachineFacts | None = None
    locks: Locks = ()
    base_locks: Locks = ()
    trace: TraceFinding | None = None
    tried: TriedSettings | None = None
    data: DataSets = ()
    base_data: DataSets = ()
    unrepeated: UnrepeatedData | None = None
    change: Change | None = None
    resume: ResumeAttempt | None = None
    files_digest: str = Field(default="", max_length=64)

    def runs_of(self, mode: RunMode, commit: Commit = Commit.HEAD) -> tuple[RunEvidence, ...]:
        """The runs of one kind, in order; `base_here` is not among those of the base commit."""
        return tuple(
            run
            for run in self.runs
            if (run.run.mode, run.run.commit) == (mode, commit) and run.run.label != BASE_HERE
        )

    @property
    def base_here(self) -> RunEvidence | None:
        """The base commit in the change's environment, where its own runs had its own."""
        return next((run for run in self.runs if run.run.label == BASE_HERE), None)
