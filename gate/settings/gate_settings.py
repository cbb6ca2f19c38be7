"""The schema of `repro-gate.yml`: every key with its type, default and meaning."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from gate.isolation.cluster_settings import ClusterSettings
from gate.isolation.modes import IsolationMode, IsolationSettings
from gate.settings.data import DataSources, FetchSettings, PreprocessSettings
from gate.settings.delivery_sections import (
    PackageSettings,
    Publishing,
    PublishSettings,
    SigningSettings,
)
from gate.settings.levels import (
    EVERY,
    PARTS_SENTENCE,
    CostSettings,
    EnvironmentParts,
    Level,
    LevelPolicy,
    NoiseSettings,
    Quarantines,
    Seeds,
    TensorLimit,
    Tolerance,
    Variants,
    steps_of,
    why_not_judged,
)
from gate.settings.slo import SloSettings
from gate.settings.train_sections import (
    DeterminismSettings,
    DiagnosisSettings,
    EnvironmentSettings,
    MetricsSettings,
    RecordSettings,
    ResumeSettings,
    RunsSettings,
)
from gate.system.gate_names import GATE_ID_PATTERN
from gate.text.document import (
    MOST_SECONDS,
    VARIABLE_NAME,
    Argv,
    Distinct,
    Document,
    RelativePath,
    SaysSomething,
    WholeNumber,
    folder_inside_project,
    path_inside_project,
)
from gate.text.trackers import TRACKERS

FILE_NAME: Final = "repro-gate.yml"


def is_of_github(path: str) -> bool:
    """Decide whether a path is in `.github`: a workflow with this name is no settings file."""
    return ".github" in PurePosixPath(path).parts


class Device(StrEnum):
    """Where the training must run."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class CheckpointExclusion(Document):
    """Values in the script's checkpoint that are not part of the result."""

    pattern: Annotated[str, SaysSomething] = Field(
        min_length=1,
        max_length=300,
        description="Path of the values inside the checkpoint: `*` matches anything but a slash, "
        "`**` anything at all.",
    )
    reason: Annotated[str, SaysSomething] = Field(
        min_length=1,
        max_length=200,
        description="Why they are not compared. Every report prints it.",
    )


FilePattern = Annotated[str, Field(min_length=1, max_length=300), SaysSomething]


# Names of the gate's variables for its harness, and of the runner's variables with tokens and
# inputs.
RESERVED_PREFIXES = ("REPRO_GATE_", "GITHUB_", "ACTIONS_", "INPUT_", "RUNNER_", "VAULT_TOKEN")
# Variables with the credentials that `publish` uses.
RESERVED_NAMES = frozenset(name for tracker in TRACKERS for name in tracker.login)


def check_variable_name(name: str) -> None:
    """Raise `ValueError` for an invalid name, and for names with secrets of gate or runner."""
    if not VARIABLE_NAME.match(name):
        message = f"{name!r} is not the name of an environment variable"
        raise ValueError(message)
    if name.startswith(RESERVED_PREFIXES) or name in RESERVED_NAMES:
        message = f"{name!r} is reserved: the training must not see it"
        raise ValueError(message)


class TrainSettings(Document):
    """The smoke training: what to start and when to stop it."""

    command: Argv = Field(
        description="The training command, as one string or as a list of words. It runs without a "
        "shell."
    )
    max_steps: int = Field(
        ge=1,
        le=100_000,
        description="Number of optimizer steps after which the script is stopped cleanly.",
    )
    workdir: RelativePath = Field(
        default=".", description="Working directory of the command, relative to repro-gate.yml."
    )
    # numpy.random.seed accepts 32 bits, and all generators get the same seed
    seed: int = Field(
        default=42,
        ge=0,
        lt=2**32,
        description="Seed for Python, NumPy and torch. It is set from outside: the script needs "
        "no change.",
    )
    timeout_seconds: float = Field(
        default=1800.0,
        gt=0,
        le=MOST_SECONDS,
        allow_inf_nan=False,
        description="Time limit of one run, in seconds of wall-clock time.",
    )
    output_limit_bytes: int = Field(
        default=1_048_576,
        ge=4096,
        le=67_108_864,
        description="How many bytes of a run's output are kept: half from its start, half from "
        "its end.",
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="Environment variables to set for the training."
    )
    pass_env: Annotated[tuple[str, ...], Distinct] = Field(
        default=(),
        description="Names of environment variables to pass on from the gate's own environment. "
        "Of all other variables, only those that locate programs, libraries and GPUs are passed "
        "on.",
    )
    metrics: MetricsSettings = Field(
        default_factory=MetricsSettings,
        description="Where metrics come from, besides the recorded loss.",
    )
    checkpoint: RelativePath | None = Field(
        default=None,
        description="File or folder that the script saves, relative to train.workdir. Its content "
        "is compared in addition to the captured state of model and optimizer.",
    )
    checkpoint_exclude: tuple[CheckpointExclusion, ...] = Field(
        default=(),
        max_length=50,
        description="Values in the checkpoint that are not compared. Each rule is reported with "
        "its reason.",
    )
    files: Annotated[tuple[FilePattern, ...], Distinct] = Field(
        default=(),
        max_length=200,
        description="Files of the commit that the training gets, as patterns of paths from the "
        "repository's root: `*` matches anything but a slash, `**` anything at all; a folder "
        "includes everything below it. Every run gets only these files. When empty, it gets "
        "every file.",
    )
    device: Device = Field(
        default=Device.AUTO,
        description="Where to train: `cuda` makes a missing GPU an error, `cpu` hides every GPU, "
        "`auto` uses a GPU if one is available.",
    )

    @field_validator("workdir", "checkpoint")
    @classmethod
    def _stays_inside(cls, value: str | None) -> str | None:
        return None if value is None else path_inside_project(value)

    @field_validator("files")
    @classmethod
    def _from_the_root(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(path_inside_project, value))

    @field_validator("env", "pass_env")
    @classmethod
    def _variable_names(
        cls, value: dict[str, str] | tuple[str, ...]
    ) -> dict[str, str] | tuple[str, ...]:
        for name in value:
            check_variable_name(name)
        for name, text in value.items() if isinstance(value, dict) else ():
            # execve(2) ends a variable at the first zero byte
            if "\0" in text:
                message = f"{name} contains a zero byte, which no variable can hold"
                raise ValueError(message)
        return value

    @model_validator(mode="after")
    def _one_value_for_a_variable(self) -> Self:
        twice = next((name for name in self.pass_env if name in self.env), None)
        if twice is not None:
            message = f"{twice} is in env and in pass_env: remove it from one of them"
            raise ValueError(message)
        return self


class NotFiniteAllowed(Document):
    """Tensors that may hold NaN or infinity."""

    pattern: Annotated[str, SaysSomething] = Field(
        min_length=1,
        max_length=300,
        description="Name of the tensors, for example `state/model/*/mask`: `*` matches anything "
        "but a slash, `**` anything at all.",
    )
    reason: Annotated[str, SaysSomething] = Field(
        min_length=1,
        max_length=200,
        description="Why they may contain them. Every report prints it.",
    )


# the loss that the harness records; its steps are those of the optimizer
RECORDED_LOSS: Final = "loss"


def why_undecided(tolerances: Sequence[Tolerance], max_steps: int) -> str:
    """Return a sentence about a tolerance that can decide no step of any metric, or nothing."""
    for place, rule in enumerate(tolerances):
        steps = steps_of(rule.steps)
        # only the loss is checked: the steps of other metrics are the script's own and unknown here
        if steps and rule.metric == RECORDED_LOSS and not 0 < steps[0] <= max_steps:
            return (
                f"compare.tolerances[{place}].steps is {rule.steps}, and the steps of the loss "
                f"count from 1 to train.max_steps, {max_steps}"
            )
        # an earlier rule for all metrics or the same pattern, and for the same or all steps, wins
        # always
        for before, earlier in enumerate(tolerances[:place]):
            if earlier.metric in {rule.metric, "*"} and earlier.steps in {rule.steps, EVERY}:
                return (
                    f"compare.tolerances[{place}] is never used: compare.tolerances[{before}] "
                    "matches the same metrics and steps, and the first match applies"
                )
    return ""


class ComparisonSettings(Document):
    """What counts as the same."""

    tolerances: tuple[Tolerance, ...] = Field(
        default=(),
        description="How far metrics may be from the baseline. The first pattern that matches "
        "decides. A metric that none matches must be equal, bit for bit.",
    )
    tensors: TensorLimit | None = Field(
        default=None,
        description="How far weights and buffers may be from the baseline. Without it, and with "
        "`tolerances`, nothing limits them: the comment shows how far they moved. Without either, "
        "every tensor must be equal, bit for bit.",
    )
    allow_not_finite: tuple[NotFiniteAllowed, ...] = Field(
        default=(),
        max_length=50,
        description="Tensors that may contain NaN or infinity, such as a mask of minus "
        "infinity. In any other tensor, and in every metric, such a number is an error.",
    )
    # torch, CUDA, driver and device are left out: their kernels compute the result
    comparable_environment: EnvironmentParts = Field(
        default=("cpu", "cpu_capability", "os", "packages", "python"),
        description="Parts of the environment that may differ from the baseline's: a result within "
        f"tolerance then still passes. {PARTS_SENTENCE}",
    )


class BaselineSettings(Document):
    """Where the committed baseline lies."""

    path: RelativePath = Field(
        default=".repro-gate/baseline",
        description="The folder of the committed baseline, relative to repro-gate.yml.",
    )
    stale_after_days: int = Field(
        default=90,
        ge=1,
        le=3660,
        description="When the baseline is older than this, the comment suggests recording it "
        "again.",
    )
    record_repeats: int = Field(
        default=2,
        ge=2,
        le=10,
        description="Number of equal strict runs that an entry needs: `baseline record` makes at "
        "least "
        "as many, and `baseline accept` refuses fewer.",
    )
    quarantine: Quarantines = Field(
        default=(),
        max_length=20,
        description="Entries, or single metrics of them, to ignore for a few weeks. Results are "
        "compared with the base commit instead, run on the same machine. Read from the base "
        "commit.",
    )

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, value: str) -> str:
        # a trailing slash names the same folder
        return folder_inside_project(value)


ImagePattern = Annotated[str, Field(min_length=1, max_length=300), SaysSomething]


class PolicySettings(LevelPolicy):
    """Which outcomes pass. Read from the base commit on a pull request."""

    require_bitwise: bool = Field(
        default=False,
        description="Let `within-tolerance` fail: only bit-for-bit equal results pass.",
    )
    allow_baseline_change: bool = Field(
        default=True,
        description=(
            "Let a pull request include a new baseline that its own run reproduces exactly."
        ),
    )
    run_base_on_drift: bool = Field(
        default=True,
        description="If the environment is not the baseline's, run the base commit on this "
        "machine too, and compare with it.",
    )
    environment_drift: Literal["pass", "fail"] = Field(
        default="pass",
        description="If the machine is not the baseline's, and the base commit gives the same "
        "result as this change here: `pass`, or `fail` until the baseline is recorded again.",
    )
    data_drift: Literal["fail", "pass"] = Field(
        default="fail",
        description="If declared data differs from the baseline's, and the result does too: "
        "`fail`, or `pass` if the result is within tolerance anyway. What `level` lets pass, "
        "passes either way.",
    )
    resume: Literal["fail", "warn"] = Field(
        default="fail",
        description="If a resumed run gives a different result than the uninterrupted one: "
        "`fail`, or `warn`, which makes it a finding. Nothing is resumed without the section "
        "`resume`.",
    )
    images: Annotated[tuple[ImagePattern, ...], Distinct] = Field(
        default=(),
        max_length=50,
        description="Images that a pull request may train in by changing isolation.image: "
        "patterns of the name, such as `ghcr.io/team/*`, or whole digests. Any other is an error.",
    )

    @model_validator(mode="after")
    def _levels_exclude_bitwise(self) -> Self:
        if self.level is not Level.NUMERICAL and self.require_bitwise:
            message = f"level: {self.level} and require_bitwise: true exclude each other"
            raise ValueError(message)
        return self


class CommentPolicy(StrEnum):
    """After which results a comment is written; one that is there is always kept up to date."""

    ALWAYS = "always"
    CHANGES = "changes"
    FAILURES = "failures"
    NEVER = "never"


class ReportSettings(Document):
    """What the pull request sees."""

    # the id is written into an HTML comment, which a `>` could end
    gate_id: str = Field(
        default="default",
        pattern=GATE_ID_PATTERN,
        description="Name of this gate. There is one comment for each id: give each gate of a "
        "repository its own.",
    )
    comment: CommentPolicy = Field(
        default=CommentPolicy.ALWAYS,
        description="When the pull request gets a comment: `always`, on `changes` (anything but "
        "an equal result), on `failures` or `never`. An existing one is kept up to date.",
    )
    history: bool = Field(
        default=False,
        description="Keep a line of each verdict of the default branch on the branch "
        "`repro-gate-history`, and show the last ones. Writing needs `contents: write`.",
    )


class GateSettings(Document):
    """The whole of `repro-gate.yml`."""

    version: Annotated[Literal[1], WholeNumber] = Field(
        description="Version of this file's schema."
    )
    train: TrainSettings = Field(
        description="The smoke training: what to start, and when to stop it."
    )
    determinism: DeterminismSettings = Field(
        default_factory=DeterminismSettings, description="What strict runs pin."
    )
    compare: ComparisonSettings = Field(
        default_factory=ComparisonSettings, description="What counts as the same result."
    )
    environment: EnvironmentSettings = Field(
        default_factory=EnvironmentSettings,
        description="The packages of the training: which ones count, and which files lock them.",
    )
    baseline: BaselineSettings = Field(
        default_factory=BaselineSettings, description="The committed baseline."
    )
    policy: PolicySettings = Field(
        default_factory=PolicySettings,
        description="Which outcomes pass. On a pull request this section is read from the base "
        "commit.",
    )
    repeats: int = Field(
        default=2,
        ge=2,
        le=10,
        description="Number of strict runs, which must all be equal. Two runs miss most rare "
        "faults; the report says how many.",
    )
    resume: ResumeSettings | None = Field(
        default=None,
        description="Two more strict runs: one is interrupted, the other resumes from its "
        "checkpoint and must give the uninterrupted run's result.",
    )
    runs: RunsSettings = Field(
        default_factory=RunsSettings,
        description="How many runs a call makes, and which ones run at the same time.",
    )
    cluster: ClusterSettings = Field(
        default_factory=ClusterSettings,
        description="Which engine starts the training, and on how many nodes. Read from the base "
        "commit.",
    )
    data: DataSources = ()
    fetch: FetchSettings = Field(
        default_factory=FetchSettings, description="Where fetched data is kept, and how much."
    )
    preprocess: PreprocessSettings | None = Field(
        default=None,
        description="A command that creates the training's data. It runs before the first "
        "training.",
    )
    seeds: Seeds = ()
    variants: Variants = Field(default_factory=dict)
    record: RecordSettings = Field(
        default_factory=RecordSettings, description="How much time recording may take."
    )
    diagnosis: DiagnosisSettings = Field(
        default_factory=DiagnosisSettings,
        description="How the cause of a difference is found.",
    )
    cost: CostSettings = Field(
        default_factory=CostSettings, description="How the overhead of determinism is measured."
    )
    operator_audit: bool = Field(
        default=False,
        description="Add a run that counts operators without a deterministic form, step by step.",
    )
    noise: NoiseSettings = Field(
        default_factory=NoiseSettings,
        description="How `repro-gate noise` measures the noise of the default mode.",
    )
    isolation: IsolationSettings = Field(
        default_factory=IsolationSettings,
        description="How the training is isolated from the gate.",
    )
    signing: SigningSettings = Field(
        default_factory=SigningSettings,
        description="Which keys are trusted, and which services certify a keyless seal.",
    )
    package: PackageSettings = Field(
        default_factory=PackageSettings, description="What the reproducibility package contains."
    )
    publish: Publishing = PublishSettings()
    slo: SloSettings = Field(
        default_factory=SloSettings,
        description="Service levels for `repro-gate slo`, over a history. They change no verdict.",
    )
    report: ReportSettings = Field(
        default_factory=ReportSettings, description="The comment on the pull request."
    )

    @model_validator(mode="after")
    def _seeds_fit_the_level(self) -> Self:
        level, seed = self.policy.level, self.train.seed
        message = why_not_judged(level, seed, self.seeds, self.variants)
        if message:
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _one_run_has_no_price(self) -> Self:
        if self.runs.when_reproduced == "one" and self.cost.when == "always":
            message = (
                "runs.when_reproduced: one needs cost.when: nightly or never: with always, every "
                "call makes the runs that the price is measured from"
            )
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _each_tolerance_decides_something(self) -> Self:
        message = why_undecided(self.compare.tolerances, self.train.max_steps)
        if message:
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _fits_a_cluster(self) -> Self:
        if not self.cluster.on_nodes:
            return self
        elsewhere = (
            ("resume", self.resume is not None),
            ("preprocess", self.preprocess is not None),
            ("isolation.image", self.isolation.image is not None),
            (
                f"isolation.mode: {self.isolation.mode.value}",
                self.isolation.mode not in {IsolationMode.AUTO, IsolationMode.NONE},
            ),
        )
        # the second allocation is for the second strict run, which then may not take place
        if self.cluster.allocations > 1 and self.runs.when_reproduced == "one":
            message = (
                "cluster.allocations is 2, and with runs.when_reproduced: one there may be no "
                "second run"
            )
            raise ValueError(message)
        for key, is_set in elsewhere:
            if is_set:
                message = (
                    f"cluster.engine is {self.cluster.engine.value}, and {key} works on the "
                    "gate's own machine alone: remove one of them"
                )
                raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _a_gpu_is_not_hidden(self) -> Self:
        if self.isolation.gpus and self.train.device is Device.CPU:
            message = (
                "isolation.gpus names GPUs, and train.device: cpu hides every one: remove "
                "isolation.gpus, or change train.device"
            )
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _an_answer_knows_the_files(self) -> Self:
        if self.runs.unaffected == "answer" and not self.train.files:
            message = (
                "runs.unaffected: answer needs train.files, the files that the training gets, for "
                "example train: {files: [train.py, src]}"
            )
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _something_is_left_to_resume(self) -> Self:
        resume, steps = self.resume, self.train.max_steps
        if resume is not None and resume.at_step >= steps:
            message = (
                f"resume.at_step is {resume.at_step} and train.max_steps is {steps}: no step is "
                "left for the resumed run; lower resume.at_step, or raise train.max_steps"
            )
            raise ValueError(message)
        return self
