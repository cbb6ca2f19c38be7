"""The records that the files of a run become: metrics, step digests, tensors, environment.

`RunEvidence` has everything that one run is judged by. `EvidenceSet` has all runs of one gate call.
The training writes most of this content, so texts and counts are limited.
"""

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
    """Which state a digest covers: the one captured on rank 0, or the one that the script saved."""

    CAPTURED = "captured"
    SAVED = "saved"


class StateRoots(Document):
    """The digest of a state, as `repro-gate digest` gives it for the file or folder at `member`.

    `member` is the place of the state in the package; it is empty for a state that is not packed.
    `parts` has the roots of model, optimizer, random state and the rest; `root` is the digest
    over all of them.
    """

    name: StateName
    member: str = Field(default="", max_length=MAX_MEMBER)
    algorithm: str = Field(max_length=40)
    root: Root
    parts: Annotated[dict[Annotated[str, Field(max_length=40)], Root], Field(max_length=10)]


# at most one entry for each name
States = Annotated[tuple[StateRoots, ...], Field(max_length=len(StateName))]


MAX_DISTANCES = 5000
MAX_ELEMENTS = 2**63
Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TensorDistance(Document):
    """How far apart two tensors of the same name, type and shape are whose bytes differ.

    `differing` is the number of `elements` whose bits differ. `relative_l2` is the norm of the
    difference divided by the larger of the two norms, `max_absolute` the largest difference. Both
    use only elements that are finite on both sides, and are None where there is no such number.
    `finiteness_moved` is true if one side has more NaN or infinite elements than the other.
    """

    name: str = Field(max_length=1000)
    elements: int = Field(ge=0, le=MAX_ELEMENTS)
    differing: int = Field(ge=0, le=MAX_ELEMENTS)
    relative_l2: Size | None
    max_absolute: Size | None
    finiteness_moved: bool = False


class StateDistance(Document):
    """The distances between the tensors of two states, worst first.

    `total` is the number of tensors that differ, including those that are not listed.
    """

    total: int = Field(ge=0, le=MAX_ELEMENTS)
    tensors: Annotated[tuple[TensorDistance, ...], Field(max_length=MAX_DISTANCES)]


EVIDENCE_SCHEMA: Final = "repro-gate.evidence/1"
# one such tensor is enough to refuse a run, and a diverged model has NaN in every tensor
MAX_NOT_FINITE = 1000
MAX_KEPT = 3000
# a committed baseline lists every sketch, and people review it
MAX_SKETCHES = 4000
MAX_SOURCES = 1000
MAX_PASSED_OVER = 50
# the first number limits one rank, the second all ranks: readers look up the first ranks only
MAX_PARAMETER_NAMES = 1000
MAX_ALL_PARAMETER_NAMES = 8000
SHA256_PATTERN = r"^[0-9a-f]{64}$"
RUN_FILE = re.compile(
    r"[a-z0-9][a-z0-9-]{0,39}/(output\.txt|state\.safetensors|gradients\.safetensors)"
)
# The script chooses the names of the files that it saves. Only names that a package can hold are
# accepted: printable ASCII without a leading slash.
SAVED_FILE = re.compile(r"strict-1/model/[!-.0-~](?:[ -~]{0,180}[!-.0-~])?")
PLACE_PATTERN = r"^state(\.rank[0-9]{1,6})?/optimizer/[0-9]{1,6}/state/[0-9]{1,9}$"
FloatType = Literal["float64", "float32", "float16", "bfloat16"]


def _kept_name(name: str) -> str:
    """Refuse a name that could lead out of the folder of its run.

    Raises `ValueError` for any name that is neither a file of a run nor a file that the script
    saved.
    """
    safe = {"", ".", ".."}.isdisjoint(name.split("/")) and "\\" not in name
    if not RUN_FILE.fullmatch(name) and not (SAVED_FILE.fullmatch(name) and safe):
        message = "is not the name of a kept file"
        raise ValueError(message)
    return name


KeptName = Annotated[str, Field(max_length=200), AfterValidator(_kept_name)]


class MetricSource(StrEnum):
    """Where a metric comes from.

    All sources give exact numbers, except printed text (`STDOUT`), which the script rounded.
    """

    HARNESS = "harness"
    LOGGED = "logged"
    FILE = "file"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    TRACKIO = "trackio"
    STDOUT = "stdout"


# one training may use every source, and each notes up to its own limit
MAX_ALL_PASSED_OVER: Final = len(MetricSource) * MAX_PASSED_OVER


class MetricSeries(Document):
    """One metric of a run, with its points in the order of the steps."""

    name: str = Field(min_length=1, max_length=200)
    source: MetricSource
    dtype: FloatType = "float64"
    points: Points


class RecorderCost(Document):
    """The time that observing took on rank 0 beside its timed steps, and the sampling intervals.

    `sampling_intervals` maps a group of fingerprints to n where every n-th step was observed. Only
    the reader of a report uses it. It is never handed to another run, because no run may set a
    number that another run reads.
    """

    observe_seconds: SummedSeconds
    step_seconds: SummedSeconds
    sampling_intervals: dict[str, int] = Field(default_factory=dict)

    @property
    def share(self) -> float | None:
        """The observation time as a fraction of the step time, or None without a timed step."""
        return self.observe_seconds / self.step_seconds if self.step_seconds else None


SketchText = Annotated[str, Field(pattern=r"^[0-9a-f]{272}$")]
Sketches = Annotated[
    dict[Annotated[str, Field(pattern=SHA256_PATTERN)], SketchText], Field(max_length=MAX_SKETCHES)
]


class TensorDigest(Document):
    """The digest of one leaf of a training state, which is a tensor or a plain value.

    `sha256` covers type, shape and bytes of a tensor, or kind and content of a value. `dtype` is
    upper-case for a tensor (`F32`) and lower-case for a value (`int`). The shape of a value is
    `()`.
    """

    name: str = Field(min_length=1, max_length=1000)
    dtype: str = Field(max_length=40)
    shape: tuple[int, ...]
    sha256: str = Field(pattern=SHA256_PATTERN)


class CheckpointManifest(Document):
    """Every tensor and plain value of a training state, sorted by name, with the roots over them.

    `algorithm` and `hash` name how the digests were computed; digests of different algorithms are
    never compared. `parts` has the roots of model, optimizer, random state and the rest; `root`
    is the digest over these. `optimizer_settings` maps the name of a leaf to its number; it is
    shown to readers and ignored by the decision. `sketches` maps the digest of a weight or buffer
    to its sketch, from which the distance to another state can be estimated.
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
        """Leave `sketches` out where it is empty.

        An entry that was recorded before sketches existed has no such key. Writing an empty one
        would change the digest of that entry.
        """
        written: dict[str, object] = handler(self)
        if not self.sketches:
            written.pop("sketches", None)
        return written

    @field_validator("tensors")
    @classmethod
    def _sorted_and_distinct(cls, value: tuple[TensorDigest, ...]) -> tuple[TensorDigest, ...]:
        names = [tensor.name for tensor in value]
        # a fixed order makes two manifests of one state the same bytes, and no name can occur twice
        if names != sorted(set(names)):
            message = "tensor names must be sorted and distinct"
            raise ValueError(message)
        return value


class NotFiniteTensor(Document):
    """A leaf of a training state that contains NaN or infinity, with the number of each."""

    name: str = Field(min_length=1, max_length=1000)
    nan: int = Field(ge=0, le=MAX_BYTES)
    infinite: int = Field(ge=0, le=MAX_BYTES)


class DeviceFacts(Document):
    """A GPU as one process of the training sees it.

    `used` is true if torch held memory on this GPU. `slice` is the profile of a MIG slice and empty
    for a whole GPU. `memory_bytes` is the total memory of this device.
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
    """The settings that one process of the training attested, read back from torch.

    `before` has the settings that torch had before the harness changed any, `applied` those
    after. `variables` has the knobs that are environment variables, and other variables that are
    known to change results. `devices` lists every GPU that the process can see. `node` is the name
    of the machine; it is informational.
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
    """A setting that had no effect in a run because the run had nothing it applies to.

    `key` is the setting's key, `value` the value that it was given.
    """

    key: str = Field(max_length=100)
    value: str = Field(max_length=400)


class WhyPassedOver(StrEnum):
    """Why a value of the script's own log is not compared as a metric."""

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
    """A logged value or a line that is not compared, and why.

    `name` is the name of the value in the script's log, or the place of the line.
    """

    source: MetricSource
    name: str = Field(max_length=200)
    why: WhyPassedOver


MAX_RANKS = 1000
MAX_NODE = 100
MAX_DRIFTED_NAMES = 20


class RankRecord(Document):
    """The digests that one of several ranks recorded, and its metrics.

    `metrics` is empty for rank 0, whose metrics are those of the run. `node` is the name of the
    machine, for readers only.
    """

    rank: int = Field(ge=0, le=1_000_000)
    node: str = Field(default="", max_length=MAX_NODE)
    steps: StepDigests
    metrics: tuple[MetricSeries, ...] = ()


class ReplicaDrift(Document):
    """Ranks whose weights differ after `step` although DistributedDataParallel keeps them equal.

    `ranks` have different weights from rank `like`, whose weights most ranks share. `equal_until`
    is the last earlier step at which all ranks were seen to be equal. `at_end` is true if only the
    states at the end show the difference, because no later step has fingerprints; `step` is then
    the last step. `parameters` names some of the parameters that differ at the end, and `differing`
    is the number of all of them.
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
    """Everything that one run is judged by.

    `metrics` are those of rank 0, and `steps` the digests of all ranks together. `ranks` has the
    record of each rank; it is empty if only one rank trained. `nodes` are the nodes of a cluster
    that the run used; their facts are part of the environment.

    `constant_infinities` names leaves that held the same infinities before the first forward pass;
    `not_finite` does not list these leaves. `left_out` has a sentence for each kind of tensor or
    value that cannot be read, `notes` one for everything else that was left out.

    `first_step_seconds` is the cold start: the time from the start of the process to the end of
    step 1, without the time that the process waited for its turn. `ready_seconds` is the part of it
    before torch was imported. `first_step_clock_seconds` is the kernel's monotonic clock at the end
    of step 1.

    These fields serve only a diagnosis, a finding or a reader, and never decide an outcome: `given`
    is what each step of rank 0 was given. `sources` is what the training took from its
    surroundings. `live_threads` has each step at which the number of Python threads on rank 0
    changed. `resumability` is what train.checkpoint lacks for an exact resume. `replica_drift` is
    where replicas of one model first differ. `parameter_names` maps the place of a parameter's
    optimizer state to the leaf that is the parameter. `rank_facts` has facts about each rank's
    process and machine.

    `boundaries` has the state of each rank where it was interrupted, or before its first update
    after it was resumed. `configuration` has the values that rank 0 parsed, composed and read from
    files of the commit.
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
    passed_over: Annotated[tuple[PassedOver, ...], Field(max_length=MAX_ALL_PASSED_OVER)] = ()
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
        # a reader that looks a metric up by its name would compare only one of two such series
        if len({series.name for series in value}) != len(value):
            message = "two metrics have one name"
            raise ValueError(message)
        return value


class SeededRun(Document):
    """A strict run with a seed of its own, and its result.

    `not_finite` names the number that is NaN or infinite; it is empty if all are finite.
    """

    run: RunRecord
    result: SeedResult
    not_finite: str = Field(default="", max_length=400)


class KeptFile(Document):
    """A file that is kept beside a run's documents, with the SHA-256 of the bytes read from it."""

    name: KeptName
    sha256: str = Field(pattern=SHA256_PATTERN)


class SavedFiles(Document):
    """Whether the script saved a folder or a single file.

    `left_out` says why the saved files are not kept; it is empty if they are.
    """

    is_folder: bool
    left_out: str = Field(default="", max_length=400)


class DivergedStates(Document):
    """The state of the second strict run, kept because it differs from the first run's state.

    The file is beside the documents and is not packed. `distance` is None if the two states cannot
    be compared number by number.
    """

    state: KeptFile
    distance: StateDistance | None = None


class EvidenceSet(Document):
    """All runs of one gate call, in the order in which they ran.

    Files: `kept` names the files beside the documents that are packed. These are the outputs and,
    of the first strict run, the captured state and the files that the script `saved`. `apart` is
    set if the second strict run ended in a different state. `files_digest` covers the files that
    the runs got, where the settings name them.

    Machine and packages: `machine` is what the gate itself saw. `gpu_missed` is set if the runs
    could not use a GPU that this machine has. `locks` are the lock files of the commit,
    `base_locks` those of the base commit.

    Data: `data` is the declared data as the runs found it, `base_data` the same for the base
    commit. `unrepeated` is what the preprocessing command wrote differently when it ran again.

    Diagnosis: `trace` is what traced runs showed, which are made only after a difference. `tried`
    is what runs with one changed setting showed. `change` is the difference between the base commit
    and this commit, where both are known.

    Further runs: `seeded` has the results of further seeds and of variants. `resume` is the outcome
    for the checkpoint of the interrupted run.
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
        """Return the runs of one mode and commit, in order.

        The run `base_here` is left out: it trains the base commit in another environment than the
        base commit's other runs do.
        """
        return tuple(
            run
            for run in self.runs
            if (run.run.mode, run.run.commit) == (mode, commit) and run.run.label != BASE_HERE
        )

    @property
    def base_here(self) -> RunEvidence | None:
        """The run of the base commit in the head's environment, or None.

        It exists only where the base commit's other runs have an environment of their own.
        """
        return next((run for run in self.runs if run.run.label == BASE_HERE), None)
