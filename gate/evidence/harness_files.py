"""Read the harness's output folder: find which process wrote which file, and read each file.

The training can write to this folder too. Every file is therefore untrusted: names are matched
strictly, and the size of a file, its lines and its fields are limited.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, model_validator

from gate.checkpoint.untrusted_files import UntrustedFile, open_untrusted
from gate.errors import EvidenceError, StorageError
from gate.evidence.columns import MAX_STEP
from gate.evidence.configuration import ConfigurationValues
from gate.evidence.observations import BoundaryFacts, Carried, KillFacts, OverrideLine, SourceLine
from gate.evidence.run_evidence import MAX_PARAMETER_NAMES, Devices, FloatType
from gate.evidence.step_columns import MeasuredSeconds, SamplingGroup
from gate.evidence.step_work import OptimizerKind, SettingWord
from gate.system.files.port import Files
from gate.system.machine import FactMap, VariableMap
from gate.text.document import Document
from gate.text.documents import read_document
from gate.text.untrusted_text import plain_text
from gate.training.environment import PackageOrigins, PackageTexts
from gate.training.runs import StoppedBy

Text = Annotated[str, Field(max_length=4000)]
Trainer = Literal[
    "jax",
    "keras",
    "lightgbm",
    "numpy",
    "scipy.optimize",
    "sklearn",
    "tensorflow",
    "xgboost",
]
TextMap = Annotated[dict[str, Text], Field(max_length=1000)]
Problems = Annotated[tuple[Text, ...], Field(max_length=1000)]
Count = Annotated[int, Field(ge=0, le=2**63)]
MAX_FINGERPRINTS = 32
# for one step of one optimizer; the harness has the same limit
MAX_SAMPLES = 2**32
# the limits of the harness, which writes no more than this
MAX_EXCEPTIONS = 20
MAX_EXCEPTION_NAME = 200
# some scripts have an optimizer for each parameter
MAX_OPTIMIZERS = 100_000
ParameterPlace = Annotated[str, Field(pattern=r"^[0-9]{1,6}/[0-9]{1,9}$")]
ParameterName = Annotated[str, Field(max_length=200)]
MAX_SAMPLING_INTERVAL = 2**20
# ranks of one process group, and optimizers of a replicated model
MAX_GROUP = 100_000
MAX_REPLICATED = 100
# limit for one optimizer
MAX_SETTINGS = 500
SettingPath = Annotated[str, Field(pattern=r"^[0-9]{1,3}/[A-Za-z0-9_.-][A-Za-z0-9_./-]{0,99}$")]
Digest = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z0-9._/+-]{1,40}:[0-9a-f]{1,80}$")]
FingerprintName = Annotated[str, Field(pattern=r"^[a-z0-9]{1,20}(\.[a-z0-9]{1,20})?$")]


def _power_of_two(number: int) -> int:
    """Refuse a sampling interval that is not a power of two.

    Powers of two are nested: the steps of a larger interval are also steps of every smaller one.
    Two runs with other intervals would have few steps or none to compare.
    """
    if number & (number - 1):
        message = f"{number} is not a power of two"
        raise ValueError(message)
    return number


SamplingInterval = Annotated[
    int, Field(ge=1, le=MAX_SAMPLING_INTERVAL), AfterValidator(_power_of_two)
]


class ExactNumber(Document):
    """A float in the form of `float.hex`, with the type that it had in the training."""

    dtype: FloatType
    hex: str = Field(max_length=40)

    @model_validator(mode="after")
    def _belongs_to_dtype(self) -> ExactNumber:
        try:
            value = float.fromhex(self.hex)
        except (ValueError, OverflowError) as error:
            message = f"hex {self.hex!a} is not a number"
            raise ValueError(message) from error
        if not representable(value, self.dtype):
            message = f"{self.hex} is not a {self.dtype}"
            raise ValueError(message)
        return self

    @property
    def value(self) -> float:
        """The number itself, NaN and infinity included."""
        return float.fromhex(self.hex)


def representable(value: float, dtype: FloatType) -> bool:
    """Return whether a tensor of this dtype can contain this number exactly.

    A number that it cannot contain was not written by the harness, which loses and adds no bits.
    """
    # a Python float is a float64, and every dtype has NaN and infinity
    if dtype == "float64" or not math.isfinite(value):
        return True
    code = "<e" if dtype == "float16" else "<f"
    try:
        packed = struct.pack(code, value)
    except OverflowError:
        return False
    exact: bool = struct.unpack(code, packed)[0] == value
    # a bfloat16 is the upper half of a float32, so the lower half has to be zero
    return exact and (dtype != "bfloat16" or packed[:2] == b"\0\0")


class OwnedDocument(Document):
    """A document that repeats rank and process id of its file's name, so they can be compared."""

    pid: Count
    rank: Count


class Attestation(OwnedDocument):
    """`process-rR-P.json`: the settings that a process read back from torch, and its devices.

    `before` holds the settings that torch had before the harness changed any. `late` is true if
    CUDA had already started by then.
    """

    applied: TextMap
    before: TextMap = Field(default_factory=dict)
    late: bool = False
    parent: Count = 0
    started: Literal["program", "worker"] = "program"
    device: Text = ""
    devices: Devices = ()
    versions: TextMap = Field(default_factory=dict)
    variables: TextMap = Field(default_factory=dict)
    node: Annotated[str, Field(max_length=100)] = ""
    world_size: Count = 1
    problems: Problems


class Untrained(OwnedDocument):
    """`untrained-rR-P.json`: a process that ended by itself without an optimizer step.

    `torch` is true if the process imported torch. `stopped` is true if the harness ended it because
    no optimizer step came in `backwards` backward passes. `imported` names libraries that the
    process imported and that train without torch's optimizers.
    """

    torch: bool
    backwards: Count
    stopped: bool
    imported: Annotated[tuple[Trainer, ...], Field(max_length=20)] = ()


class Ended(OwnedDocument):
    """`ended-rR-P.json`: how a process ended that trained or that was ended by an exception.

    `exceptions` has the name of the exception and of the exceptions that it contains. The gate's
    stop is left out of the names; `stopped` is true if it was among them.
    """

    trained: bool
    stopped: bool
    exceptions: Annotated[
        tuple[Annotated[str, Field(max_length=MAX_EXCEPTION_NAME)], ...],
        Field(max_length=MAX_EXCEPTIONS),
    ]


class ExitLine(Document):
    """A line of `exits-rR-P.jsonl`: a process that this process started has failed.

    `code` is negative for a signal. `rank` is the variable RANK that the process was started with,
    or None.
    """

    pid: Count
    rank: Count | None = None
    code: int = Field(ge=-1000, le=2**32)


class BoundaryFile(OwnedDocument, BoundaryFacts):
    """`boundary-rR-P.json`: the state of a process where it was interrupted or was resumed."""


class KillFile(OwnedDocument, KillFacts):
    """`kill-rR-P.json`: what a process writes right before it is killed inside a save."""


class StepLine(Document):
    """A line of `steps-rR-P.jsonl`: one step of one optimizer.

    docs/harness-protocol.md describes each field.
    """

    step: int = Field(ge=1, le=MAX_STEP)
    optimizer: int = Field(ge=0, lt=MAX_OPTIMIZERS)
    loss: ExactNumber | None
    losses: Annotated[tuple[ExactNumber | None, ...], Field(max_length=256)] = ()
    skipped: bool | None = None
    backwards: Count
    samples: Annotated[int, Field(ge=0, le=MAX_SAMPLES)] | None = None
    rows: Annotated[int, Field(ge=0, le=MAX_SAMPLES)] | None = None
    parameters: Digest | None
    fingerprints: Annotated[dict[FingerprintName, Digest], Field(max_length=MAX_FINGERPRINTS)] = (
        Field(default_factory=dict)
    )
    unobserved: Annotated[tuple[SamplingGroup, ...], Field(max_length=MAX_FINGERPRINTS)] = ()
    seconds: MeasuredSeconds | None
    harness_seconds: MeasuredSeconds = 0.0
    threads: Count = 1
    memory_bytes: Count = 0
    device_bytes: Count = 0
    observe_seconds: MeasuredSeconds = 0.0
    settings: Annotated[dict[SettingPath, SettingWord], Field(max_length=MAX_SETTINGS)] | None = (
        None
    )
    kind: OptimizerKind | Literal[""] = ""


class MetricLine(ExactNumber):
    """A line of `metrics-rR-P.jsonl`: one number that the script logged through the harness."""

    name: str = Field(min_length=1, max_length=200)
    step: int = Field(ge=0, le=MAX_STEP)


class Replicated(Document):
    """An optimizer whose parameters one DistributedDataParallel keeps equal on all of `ranks`."""

    optimizer: Annotated[int, Field(ge=0, lt=MAX_OPTIMIZERS)]
    ranks: Annotated[tuple[Count, ...], Field(max_length=MAX_GROUP)]


class Summary(Document):
    """`summary-rR-P.json`: the last file that a process writes.

    Its presence shows that the process ended normally and that its other files are complete.
    """

    steps: Count
    stopped_by: StoppedBy
    environment: TextMap
    packages: PackageTexts = ()
    imported: PackageTexts = ()
    origins: PackageOrigins = Field(default_factory=dict)
    facts: FactMap = Field(default_factory=dict)
    variables: VariableMap = Field(default_factory=dict)
    peak_memory_bytes: Count
    device_memory_bytes: Count
    sampling_intervals: dict[SamplingGroup, SamplingInterval] = Field(default_factory=dict)
    optimizer_numbers: Annotated[tuple[Count, ...], Field(max_length=MAX_OPTIMIZERS)] = ()
    parameter_names: Annotated[
        dict[ParameterPlace, ParameterName], Field(max_length=MAX_PARAMETER_NAMES)
    ] = Field(default_factory=dict)
    observe_seconds: MeasuredSeconds = 0.0
    first_step_seconds: MeasuredSeconds | None = None
    first_step_clock_seconds: MeasuredSeconds | None = None
    ready_seconds: MeasuredSeconds = 0.0
    overridden: Count = 0
    constant_infinities: Annotated[
        tuple[Annotated[str, Field(max_length=1000)], ...], Field(max_length=1000)
    ] = ()
    carried: Carried | None = None
    replicated: Annotated[tuple[Replicated, ...], Field(max_length=MAX_REPLICATED)] = ()
    configuration: ConfigurationValues = Field(default_factory=dict)
    problems: Problems
    left_out: Problems = ()


MAX_NAMES = 20_000
MAX_HARNESS_FILES = 10_000
MAX_DOCUMENT_BYTES = 8 * 1024 * 1024
MAX_LINES_BYTES = 256 * 1024 * 1024
MAX_LINE_BYTES = 64 * 1024
MAX_LINES = 1_000_000
# large enough that the cost of each block does not matter
BLOCK_LINES = 2000
NumberedLines = list[tuple[int, bytes]]
# The harness writes at most this many lines of overrides, started processes and sources. A longer
# file was not written by the harness.
MAX_NOTED_LINES = 200
# The length that the records allow. Escaping untrusted text can make it longer, so it is cut again.
MAX_TEXT = 200
Record = TypeVar("Record", bound=Document)
Owned = TypeVar("Owned", bound=OwnedDocument)


class HarnessFile(StrEnum):
    """The kinds of harness files; each value is the first word of the file's name."""

    PROCESS = "process"
    STEPS = "steps"
    METRICS = "metrics"
    STATE = "state"
    LEAVES = "leaves"
    SUMMARY = "summary"
    OPERATOR_AUDIT = "operators"
    OVERRIDES = "overrides"
    CHILDREN = "children"
    TRACE = "trace"
    SOURCES = "sources"
    UNTRAINED = "untrained"
    ENDED = "ended"
    EXITS = "exits"
    BOUNDARY = "boundary"
    KILL = "kill"


KIND_PATTERN = "|".join(HarnessFile)
# Without leading zeros each process has exactly one name. Otherwise `r0-7` and `r0-07` could both
# claim to be the same process.
PROCESS_PATTERN = r"-r(0|[1-9][0-9]{0,5})-(0|[1-9][0-9]{0,9})\.(jsonl|json|safetensors)"
NAME = re.compile(rf"({KIND_PATTERN}){PROCESS_PATTERN}\Z")
ENDINGS = {
    HarnessFile.PROCESS: "json",
    HarnessFile.SUMMARY: "json",
    HarnessFile.LEAVES: "json",
    HarnessFile.OPERATOR_AUDIT: "json",
    HarnessFile.UNTRAINED: "json",
    HarnessFile.ENDED: "json",
    HarnessFile.BOUNDARY: "json",
    HarnessFile.KILL: "json",
    HarnessFile.STEPS: "jsonl",
    HarnessFile.METRICS: "jsonl",
    HarnessFile.STATE: "safetensors",
    HarnessFile.OVERRIDES: "jsonl",
    HarnessFile.CHILDREN: "jsonl",
    HarnessFile.EXITS: "jsonl",
    HarnessFile.TRACE: "jsonl",
    HarnessFile.SOURCES: "jsonl",
}


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class ProcessFiles:
    """The files that one process left; `kinds` names those that exist."""

    rank: int
    pid: int
    kinds: tuple[HarnessFile, ...]

    def name(self, kind: HarnessFile) -> str:
        """Return the name of this process's file of a kind, whether it exists or not."""
        return f"{kind.value}-r{self.rank}-{self.pid}.{ENDINGS[kind]}"


def find_processes(files: Files, out: Path) -> tuple[ProcessFiles, ...]:
    """Return the processes that left a harness file, sorted by rank and process id.

    Files with other names are ignored. Raises `EvidenceError` if the folder cannot be read, or if
    it has too many harness files.
    """
    try:
        names = files.list_names(out, max_names=MAX_NAMES)
    except StorageError as error:
        raise EvidenceError(
            f"the run's output folder cannot be read: {error.message}",
            hint="Only the harness writes there; the training may have filled or replaced it.",
        ) from error
    kinds: dict[tuple[int, int], list[HarnessFile]] = {}
    # the training can write to this folder too, so other files are no fault of the harness
    for match in filter(None, map(NAME.match, names)):
        kind = HarnessFile(match[1])
        if match[4] == ENDINGS[kind]:
            kinds.setdefault((int(match[2]), int(match[3])), []).append(kind)
    if sum(map(len, kinds.values())) > MAX_HARNESS_FILES:
        raise EvidenceError(
            f"the run left more than {MAX_HARNESS_FILES:,} files of the harness",
            hint="The training starts too many processes; use fewer data workers.",
        )
    return tuple(
        ProcessFiles(rank=rank, pid=pid, kinds=tuple(kinds_of_process))
        for (rank, pid), kinds_of_process in sorted(kinds.items())
    )


def read_harness_document(files: Files, out: Path, name: str, model: type[Record]) -> Record:
    """Read one JSON file of the harness as a record of type `model`.

    Raises `EvidenceError` if the file cannot be read or is too large, and `DocumentError` if its
    content does not fit the model.
    """
    with open_untrusted(files, out / name, name, max_bytes=MAX_DOCUMENT_BYTES) as opened:
        return read_document(model, opened.read_at(0, opened.size_bytes), name)


def read_own_document(
    files: Files, out: Path, process: ProcessFiles, kind: HarnessFile, model: type[Owned]
) -> Owned:
    """Read a process's JSON file, and check that it names the same process as its file name.

    Raises `EvidenceError` if it names a different one.
    """
    name = process.name(kind)
    document = read_harness_document(files, out, name, model)
    if (document.rank, document.pid) != (process.rank, process.pid):
        raise EvidenceError(
            f"{name}: names process {document.pid}, rank {document.rank} inside",
            hint="Only the harness may write into its output folder.",
        )
    return document


def read_harness_lines(
    files: Files, out: Path, name: str, model: type[Record]
) -> tuple[Record, ...]:
    """Read one JSON Lines file of the harness; errors name the file and the line."""
    with open_untrusted(files, out / name, name, max_bytes=MAX_LINES_BYTES) as opened:
        return tuple(
            read_document(model, line, f"{name}: line {number}")
            for number, line in numbered_lines(opened)
        )


def told_lines(
    files: Files,
    out: Path,
    processes: tuple[ProcessFiles, ...],
    kind: HarnessFile,
    model: type[Record],
) -> Iterator[tuple[Record, ProcessFiles]]:
    """Yield each line of one kind of file, with the process that wrote it, in the order of ranks.

    Raises `EvidenceError` for a file that is malformed or longer than the harness writes.
    """
    for process in processes:
        if kind not in process.kinds:
            continue
        name = process.name(kind)
        lines = read_harness_lines(files, out, name, model)
        if len(lines) > MAX_NOTED_LINES:
            raise EvidenceError(
                f"{name}: {len(lines):,} lines, the harness writes {MAX_NOTED_LINES} at most",
                hint="Only the harness may write into its output folder.",
            )
        yield from ((line, process) for line in lines)


def plain_fields(line: OverrideLine | SourceLine, texts: tuple[str, ...]) -> dict[str, object]:
    """Return the fields of a line, with the script's own text made safe to show.

    `texts` names the fields with such text. They and the stack appear in reports, so control
    characters are escaped and the text is cut.
    """
    shown = {name: _plain(getattr(line, name)) for name in texts}
    return {**line.model_dump(), **shown, "stack": tuple(map(_plain, line.stack))}


def _plain(text: str) -> str:
    return plain_text(text)[:MAX_TEXT]


def numbered_lines(opened: UntrustedFile) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers from 1, without line ends; skip empty lines."""
    # `readline` gets a limit of one byte more than a line may have. A file without any line end is
    # therefore never read into memory as a whole.
    lines = iter(partial(opened.stream.readline, MAX_LINE_BYTES + 1), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_LINE_BYTES:
            raise opened.fault(f"line {number}: longer than {MAX_LINE_BYTES:,} bytes")
        if number > MAX_LINES:
            raise opened.fault(f"more than {MAX_LINES:,} lines")
        if line.strip():
            yield number, line.rstrip(b"\r\n")


def line_blocks(opened: UntrustedFile) -> Iterator[NumberedLines]:
    """Yield the lines of a file in blocks of at most `BLOCK_LINES`.

    If a line is faulty, the lines before it are yielded first and the error is raised after that.
    An error in an earlier line is thus reported first, as it would be when reading line by line.
    """
    lines = numbered_lines(opened)
    fault: EvidenceError | None = None
    while fault is None:
        held: NumberedLines = []
        try:
            held.extend(islice(lines, BLOCK_LINES))
        except EvidenceError as error:
            fault = error
        if held:
            yield held
        elif fault is None:
            return
    raise fault
