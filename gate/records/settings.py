"""What `repro-gate.yml` may say: every key, its type, its default and what it means."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from gate.records.container_settings import ContainerSettings
from gate.records.determinism_settings import DeterminismSettings
from gate.records.document import Document
from gate.records.measure_settings import CostSettings, NoiseSettings
from gate.records.metrics_settings import MetricsSettings
from gate.records.record_settings import RecordSettings
from gate.records.settings_types import (
    Argv,
    RelativePath,
    check_variable_name,
    path_inside_project,
)

SETTINGS_VERSION = 1


class Device(StrEnum):
    """Where the training must run."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class IsolationMode(StrEnum):
    """How far the training is kept from the gate; after `auto`, weakest first."""

    AUTO = "auto"
    NONE = "none"
    UID = "uid"
    SIBLING = "sibling"

    @property
    def strength(self) -> int:
        """Its place in the order of modes; that of `auto` is below all."""
        return tuple(IsolationMode).index(self)


class CheckpointExclusion(Document):
    """Leaves of the saved file that are no part of the result."""

    pattern: str = Field(
        min_length=1,
        max_length=300,
        description="Path of the leaves: * is anything but a slash, ** anything at all.",
    )
    reason: str = Field(min_length=1, max_length=200, description="Why; every report prints it.")


class TrainSettings(Document):
    """The smoke training: what to start and when to stop it."""

    command: Argv = Field(
        description="The training command, as one string or a list of words. Run without a shell."
    )
    max_steps: int = Field(
        ge=1,
        le=100_000,
        description="Optimizer steps after which the guest stops the script cleanly.",
    )
    workdir: RelativePath = Field(
        default=".", description="Working directory, relative to repro-gate.yml."
    )
    seed: int = Field(
        default=42, ge=0, lt=2**32, description="Seed of Python, NumPy and torch, set from outside."
    )
    timeout_seconds: float = Field(default=1800.0, gt=0, description="Wall-clock limit of one run.")
    output_limit_bytes: int = Field(
        default=1_048_576,
        ge=4096,
        le=67_108_864,
        description="Kept output of one run: half from its head, half from its tail.",
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="Variables set for the training process."
    )
    pass_env: tuple[str, ...] = Field(
        default=(),
        description="Names of variables handed on from the gate's own environment. "
        "Everything else stays outside.",
    )
    metrics: MetricsSettings = Field(
        default_factory=MetricsSettings, description="Further sources of metrics."
    )
    checkpoint: RelativePath | None = Field(
        default=None,
        description="File or folder that the script saves, relative to train.workdir, of any "
        "format that is read; what it holds is compared beside the state that the guest captures.",
    )
    checkpoint_exclude: tuple[CheckpointExclusion, ...] = Field(
        default=(),
        max_length=50,
        description="Leaves of it that do not count; each is reported with its reason.",
    )
    device: Device = Field(
        default=Device.AUTO,
        description="`cuda` makes a missing GPU an error; `cpu` hides every GPU; `auto` takes "
        "what is there.",
    )

    @field_validator("workdir", "checkpoint")
    @classmethod
    def _stays_inside(cls, value: str | None) -> str | None:
        return None if value is None else path_inside_project(value)

    @field_validator("env", "pass_env")
    @classmethod
    def _variable_names(
        cls, value: dict[str, str] | tuple[str, ...]
    ) -> dict[str, str] | tuple[str, ...]:
        for name in value:
            check_variable_name(name)
        return value


class Tolerance(Document):
    """How far a metric may be from its baseline; it is within when any one limit holds."""

    metric: str = Field(
        min_length=1, max_length=200, description="Shell-style pattern, for example `*loss`."
    )
    absolute: float = Field(default=0.0, ge=0, allow_inf_nan=False, description="|a - b| limit.")
    relative: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="|a - b| / |baseline| limit."
    )
    ulp: int = Field(
        default=0, ge=0, description="Limit in units in the last place of the metric's dtype."
    )
    steps: Literal["every", "final"] = Field(
        default="every", description="Judge each step, or the last one only."
    )


class NotFiniteAllowed(Document):
    """Tensors of the state that may hold NaN or infinity."""

    pattern: str = Field(
        min_length=1,
        max_length=300,
        description="Name of the tensors, for example `state/model/*/mask`: * is anything but a "
        "slash, ** anything at all.",
    )
    reason: str = Field(min_length=1, max_length=200, description="Why that is meant.")


class ComparisonSettings(Document):
    """What counts as the same."""

    tolerances: tuple[Tolerance, ...] = Field(
        default=(),
        description="First matching pattern wins. A metric that none matches must be bit-equal.",
    )
    tensors_within_tolerance: bool = Field(
        default=True,
        description="Where a tolerance is given, tensors and step digests may differ as long as "
        "every metric is inside its own. Without any tolerance they must be equal.",
    )
    allow_not_finite: tuple[NotFiniteAllowed, ...] = Field(
        default=(),
        max_length=50,
        description="Tensors that may hold NaN or infinity, such as a mask of minus infinity. In "
        "any other one such a number is an error, and so it is in every metric.",
    )
    comparable_environment: tuple[str, ...] = Field(
        default=("cpu", "cpu_capability", "os", "packages", "python"),
        description="Parts of the environment that may differ and still be compared within "
        "tolerance.",
    )


class BaselineSettings(Document):
    """Where the committed baseline lies."""

    path: RelativePath = Field(
        default=".repro-gate/baseline.json", description="Relative to repro-gate.yml."
    )
    stale_after_days: int = Field(
        default=90, ge=1, description="From this age on the comment suggests recording it again."
    )

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, value: str) -> str:
        return path_inside_project(value)


class PolicySettings(Document):
    """Which outcomes pass. Read from the base commit on a pull request."""

    require_bitwise: bool = Field(
        default=False, description="`within-tolerance` fails: only equal bits pass."
    )
    allow_baseline_change: bool = Field(
        default=True,
        description="A pull request may carry a new baseline that its own run reproduces exactly.",
    )
    run_base_on_drift: bool = Field(
        default=True,
        description="When the environment moved, run the base commit here too and judge by that.",
    )


class IsolationSettings(ContainerSettings):
    """How the training process is kept apart."""

    mode: IsolationMode = Field(
        default=IsolationMode.AUTO,
        description="`auto` takes a container of the training's own when isolation.image is set "
        "and a container engine answers, else another uid when the gate is root and that works, "
        "else none.",
    )
    minimum: IsolationMode = Field(
        default=IsolationMode.NONE,
        description="A machine that can only do less is an error: `none`, `uid`, `sibling`.",
    )
    network: bool = Field(
        default=False,
        description="Let the training reach the network; the verdict then says so. Ranks talk "
        "over loopback, which under `uid` needs it.",
    )

    @model_validator(mode="after")
    def _sibling_has_an_image(self) -> Self:
        if IsolationMode.SIBLING in {self.mode, self.minimum} and self.image is None:
            message = "mode sibling needs isolation.image, the image to train in, by digest"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _mode_reaches_minimum(self) -> Self:
        if self.minimum is IsolationMode.AUTO:
            message = "minimum: auto is no minimum; name a mode"
            raise ValueError(message)
        if IsolationMode.AUTO is not self.mode and self.mode.strength < self.minimum.strength:
            message = f"mode: {self.mode.value} is weaker than minimum: {self.minimum.value}"
            raise ValueError(message)
        return self


class SigningSettings(Document):
    """Which keys count."""

    trusted_keys: RelativePath = Field(
        default=".repro-gate/trusted-keys.json",
        description="Public keys that `verify` trusts, relative to repro-gate.yml.",
    )


class ReportSettings(Document):
    """What the pull request sees."""

    gate_id: str = Field(
        default="default",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$",
        description="One comment per id: set it when a repository has several gates.",
    )


class GateSettings(Document):
    """The whole of `repro-gate.yml`."""

    version: Literal[1] = Field(description="Version of this file's schema.")
    train: TrainSettings = Field(description="The smoke training.")
    determinism: DeterminismSettings = Field(
        default_factory=DeterminismSettings, description="What strict runs pin."
    )
    compare: ComparisonSettings = Field(
        default_factory=ComparisonSettings, description="What counts as the same."
    )
    baseline: BaselineSettings = Field(
        default_factory=BaselineSettings, description="The committed baseline."
    )
    policy: PolicySettings = Field(
        default_factory=PolicySettings, description="Which outcomes pass."
    )
    record: RecordSettings = Field(
        default_factory=RecordSettings, description="How closely steps are observed."
    )
    cost: CostSettings = Field(
        default_factory=CostSettings, description="The price of determinism."
    )
    census: bool = Field(
        default=False,
        description="One more run that counts operators without a deterministic form, by step.",
    )
    noise: NoiseSettings = Field(
        default_factory=NoiseSettings, description="The noise floor of the default mode."
    )
    isolation: IsolationSettings = Field(
        default_factory=IsolationSettings, description="Training apart from the gate."
    )
    signing: SigningSettings = Field(default_factory=SigningSettings, description="Keys.")
    report: ReportSettings = Field(default_factory=ReportSettings, description="The comment.")
