"""The harness's files as records; docs/harness-protocol.md describes them for both sides."""

from __future__ import annotations

import math
import struct
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from gate.evidence.fingerprints import SamplingGroup
from gate.evidence.given import OptimizerKind, SettingWord
from gate.evidence.point import MAX_STEP
from gate.evidence.run_evidence import MAX_PARAMETER_NAMES, Devices, FloatType
from gate.evidence.timings import MeasuredSeconds
from gate.system.facts import FactMap, VariableMap
from gate.text.records_document import Document
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
# of one step of one optimizer, as the harness counts
MAX_SAMPLES = 2**32
# as the harness counts
MAX_EXCEPTIONS = 20
MAX_EXCEPTION_NAME = 200
# some scripts have an optimizer for each parameter
MAX_OPTIMIZERS = 100_000
ParameterPlace = Annotated[str, Field(pattern=r"^[0-9]{1,6}/[0-9]{1,9}$")]
ParameterName = Annotated[str, Field(max_length=200)]
MAX_SAMPLING_INTERVAL = 2**20
# of one optimizer
MAX_SETTINGS = 500
SettingPath = Annotated[str, Field(pattern=r"^[0-9]{1,3}/[A-Za-z0-9_.-][A-Za-z0-9_./-]{0,99}$")]
Digest = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z0-9._/+-]{1,40}:[0-9a-f]{1,80}$")]
FingerprintName = Annotated[str, Field(pattern=r"^[a-z0-9]{1,20}(\.[a-z0-9]{1,20})?$")]


def _power_of_two(number: int) -> int:
    """Nested intervals only: others would leave two runs with little or nothing to compare."""
    if number & (number - 1):
        message = f"{number} is not a power of two"
        raise ValueError(message)
    return number


SamplingInterval = Annotated[
    int, Field(ge=1, le=MAX_SAMPLING_INTERVAL), AfterValidator(_power_of_two)
]


class ExactNumber(Document):
    """A float as `float.hex` writes it, and the type that it had in the training."""

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
    """Whether a value of this type can be that number: no type gains bits on the way here."""
    # Python's own float is float64, and every type has NaN and infinity
    if dtype == "float64" or not math.isfinite(value):
        return True
    code = "<e" if dtype == "float16" else "<f"
    try:
        packed = struct.pack(code, value)
    except OverflowError:
        return False
    exact: bool = struct.unpack(code, packed)[0] == value
    # A bfloat16 is the upper half of a float32.
    return exact and (dtype != "bfloat16" or packed[:2] == b"\0\0")


class OwnedDocument(Document):
    """A document that repeats whose it is; the file's name says it too."""

    pid: Count
    rank: Count


class Attestation(OwnedDocument):
    """`process-rR-P.json`: which settings a process read back from torch, and what it runs on.

    `before` is what torch had before the harness set anything, `late` that CUDA had started by
    then.
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
    problems: Problems


class Untrained(OwnedDocument):
    """`untrained-rR-P.json`: a process that ended by itself without an optimizer step.

    `torch` says whether it imported torch, `stopped` that the harness ended it after so many
    `backwards`, `imported` which libraries were there that train without torch's optimizers.
    """

    torch: bool
    backwards: Count
    stopped: bool
    imported: Annotated[tuple[Trainer, ...], Field(max_length=20)] = ()


class Ended(OwnedDocument):
    """`ended-rR-P.json`: how a process ended that trained, or that an exception ended.

    `exceptions` are the names of that one and of those that it holds, but for the gate's stop;
    `stopped` says that this is among them.
    """

    trained: bool
    stopped: bool
    exceptions: Annotated[
        tuple[Annotated[str, Field(max_length=MAX_EXCEPTION_NAME)], ...],
        Field(max_length=MAX_EXCEPTIONS),
    ]


class StepLine(Document):
    """A line of `steps-rR-P.jsonl`: one optimizer step."""

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
    """A line of `metrics-rR-P.jsonl`: one number that the script logged."""

    name: str = Field(min_length=1, max_length=200)
    step: int = Field(ge=0, le=MAX_STEP)


class Summary(Document):
    """`summary-rR-P.json`: written last, so its presence says that the process ended well."""

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
    problems: Problems
    left_out: Problems = ()
