"""The settings about runs: determinism, metrics, recording, environment."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from gate.settings.knobs import OFF, ON, Profile, check_override
from gate.text.document import (
    Argv,
    Distinct,
    Document,
    OperatorName,
    RelativePath,
    SaysSomething,
    folder_inside_project,
    path_inside_project,
)


class OnOverride(StrEnum):
    """What happens when the training overrides what strict mode set."""

    OBSERVE = "observe"
    RESTORE = "restore"
    FAIL = "fail"


def _word(value: object) -> object:
    """Accept `on`, `off` and bare numbers, which YAML parses as truth values and numbers."""
    if isinstance(value, bool):
        return ON if value else OFF
    return str(value) if isinstance(value, int) else value


Word = Annotated[str, BeforeValidator(_word, json_schema_input_type=str | bool | int)]


class DeterminismSettings(Document):
    """What the strict runs pin. Threads are pinned in every run: they are part of the result."""

    threads: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="CPU threads of every run. Results depend on it, so it never follows the "
        "machine.",
    )
    fill_uninitialized_memory: bool = Field(
        default=False,
        description="Let torch fill new memory with NaN in strict runs. That is slower, and it "
        "hides reads of uninitialised memory.",
    )
    allow_operators: Annotated[tuple[OperatorName, ...], Distinct] = Field(
        default=(),
        description="Operators without a deterministic implementation that strict runs may still "
        "use, named as in the error message. That is a weaker level, and the verdict says so.",
    )
    profile: Profile = Field(
        default=Profile.STRICT,
        description="What strict runs set: `strict` sets every knob, `default` only seeds and "
        "threads.",
    )
    knobs: dict[str, Word] = Field(
        default_factory=dict,
        description="Single knobs that override the profile: `on`, `off`, `keep` (leave it as it "
        "is) or a value. docs/knobs.md has the table of knobs.",
    )
    on_override: OnOverride = Field(
        default=OnOverride.OBSERVE,
        description="What to do when the script overrides a setting: `observe` reports it, "
        "`restore` sets it again and reports it, `fail` makes the run an error.",
    )

    @field_validator("knobs")
    @classmethod
    def _known_knobs(cls, value: dict[str, str]) -> dict[str, str]:
        for name, word in value.items():
            check_override(name, word)
        return value

    @property
    def overrides(self) -> dict[str, str]:
        """The knobs set one by one; `knobs.memory_fill` overrides `fill_uninitialized_memory`."""
        return ({"memory_fill": ON} if self.fill_uninitialized_memory else {}) | self.knobs

    def parts_of_the_experiment(self) -> dict[str, object]:
        """Return the settings that change the numbers of a training, without those at the default.

        Threads and memory fill are always included, because baselines from before the knobs contain
        them.
        """
        # only `restore` changes what is computed; the other two observe or refuse
        left_out = {"on_override"} if self.on_override is not OnOverride.RESTORE else set()
        changed = self.model_dump(mode="json", exclude_defaults=True, exclude=left_out)
        return changed | {
            "threads": self.threads,
            "fill_uninitialized_memory": self.fill_uninitialized_memory,
        }


# found lock files are read beyond this number, see gate/evidence/lock_files.py
MAX_NAMED_LOCKS = 10
NamePattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9*?\[\]!._-]{1,200}$")]


class EnvironmentSettings(Document):
    """Which installed packages count, and which files lock them."""

    ignore: Annotated[tuple[NamePattern, ...], Distinct] = Field(
        default=(),
        max_length=200,
        description="Shell-style patterns of packages to ignore, for example `tqdm` or "
        "`opentelemetry-*`. Packages that the training does not import never count.",
    )
    locks: Annotated[tuple[RelativePath, ...], Distinct] = Field(
        default=(),
        max_length=MAX_NAMED_LOCKS,
        description="Further lock files of the training's packages, relative to repro-gate.yml. "
        "The gate itself finds these next to it and at the repository's root: uv.lock, "
        "poetry.lock, Pipfile.lock, pylock.toml, pixi.lock, kernels.lock, requirements*.txt "
        "with hashes, and conda's explicit lists.",
    )

    @field_validator("locks")
    @classmethod
    def _stay_inside(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(path_inside_project, value))


TagPatterns = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=200), SaysSomething], ...], Distinct
]
EVERY_TAG: Final = ("*",)


class MetricsSettings(Document):
    """Where metrics come from, besides the loss that the harness records by itself."""

    file: RelativePath | None = Field(
        default=None,
        description="JSON Lines file that the script writes, relative to train.workdir: one "
        "object per line, with `step` and numbers, read without rounding. Objects and lists "
        "become names such as `file.eval.loss` and `file.per_class.0`; text is not compared.",
    )
    stdout_pattern: str | None = Field(
        default=None,
        description="Regular expression with named groups that is searched for in each line of "
        "output: the group `step` is the step, every other group a metric. It is a weaker "
        "source, because print() rounds.",
    )

    tensorboard: RelativePath | None = Field(
        default=None,
        description="Folder of TensorBoard event files, relative to train.workdir, with its "
        "subfolders. Their scalars are float32; everything else is ignored.",
    )
    tensorboard_tags: TagPatterns = Field(
        default=EVERY_TAG,
        min_length=1,
        max_length=100,
        description="Shell-style patterns of the TensorBoard tags to compare, for example "
        "`train/*`. Leave out tags that depend on time.",
    )

    wandb: RelativePath | None = Field(
        default=None,
        description="Folder where Weights & Biases writes its offline run, relative to "
        "train.workdir, usually `wandb`. Set `train.env: {WANDB_MODE: offline}`. Every logged "
        "number becomes a metric such as `wandb.eval/loss`.",
    )
    wandb_keys: TagPatterns = Field(
        default=EVERY_TAG,
        min_length=1,
        max_length=100,
        description="Shell-style patterns of the logged names to compare, for example `train/*`. "
        "Leave out names that depend on time.",
    )

    trackio: RelativePath | None = Field(
        default=None,
        description="Folder where trackio writes its run, relative to train.workdir. Set "
        "`train.env: {TRACKIO_DIR: trackio, TRACKIO_STORAGE_MODE: jsonl}` for the folder "
        "`trackio`. Every logged number becomes a metric such as `trackio.eval/loss`.",
    )
    trackio_keys: TagPatterns = Field(
        default=EVERY_TAG,
        min_length=1,
        max_length=100,
        description="Shell-style patterns of the logged names to compare, for example `train/*`. "
        "Leave out names that depend on time.",
    )

    @field_validator("file", "tensorboard", "wandb", "trackio")
    @classmethod
    def _file_stays_inside(cls, value: str | None) -> str | None:
        return None if value is None else path_inside_project(value)

    @field_validator("stdout_pattern")
    @classmethod
    def _pattern_names_groups(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            groups = re.compile(value).groupindex
        except re.error as error:
            message = f"is not a regular expression: {error}"
            raise ValueError(message) from error
        if not set(groups) - {"step"}:
            message = "needs a named group for each metric, for example (?P<loss>[0-9.]+)"
            raise ValueError(message)
        return value

    @model_validator(mode="after")
    def _patterns_have_a_source(self) -> Self:
        for source, patterns in SOURCE_PATTERNS.items():
            if getattr(self, source) is None and getattr(self, patterns) != EVERY_TAG:
                message = f"{patterns} selects from {source}, which is not set: name its folder"
                raise ValueError(message)
        return self


SOURCE_PATTERNS: Final = {
    "tensorboard": "tensorboard_tags",
    "wandb": "wandb_keys",
    "trackio": "trackio_keys",
}


class RecordSettings(Document):
    """How much of a step's time the recorder may take for itself."""

    overhead_budget: float = Field(
        default=0.02,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description="The share of the steps' time that digests may take. If they take more, they "
        "are "
        "recorded at every 2nd, 4th, 8th, ... step. The first step, the last and every loss are "
        "always recorded.",
    )
    free_seconds: float = Field(
        default=2.0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Digests may always take this many seconds of a run: at any step of a run "
        "below 100 steps, at the first ten steps of a longer one.",
    )


MAX_LANES: Final = 16


class RunsSettings(Document):
    """How many runs a call makes, and how many may go at the same time."""

    parallel: Literal["auto", "never"] | Annotated[int, Field(ge=2, le=MAX_LANES)] = Field(
        default="auto",
        description="Strict runs side by side, each on its own CPU cores: `auto` as many as "
        "cores and memory allow, `never` one after the other, a number at most that many.",
    )
    when_reproduced: Literal["all", "one"] = Field(
        default="all",
        description="Strict runs if the first one equals the baseline: `all`, or `one`, which "
        "stops there if the entry was recorded in exactly this environment, with this data and "
        "from at least `baseline.record_repeats` equal runs. Calls by a schedule, by hand or by "
        "a push to the default branch always make all. `one` needs `cost.when: nightly` or "
        "`never`.",
    )
    unaffected: Literal["answer", "train"] = Field(
        default="train",
        description="For a pull request that changes nothing that the training gets: `train` "
        "anyway, or `answer` without a run if every file of train.files, the settings, the data "
        "and the environment equal those of a baseline entry.",
    )


class DiagnosisSettings(Document):
    """What the gate does to find a cause once the outcome is known."""

    escalate: bool = Field(
        default=True,
        description="After a difference, train twice more and trace every operator call. If "
        "runs of one commit differ, also try settings that may make them agree. The outcome "
        "does not change.",
    )
    budget_seconds: float | None = Field(
        default=None,
        gt=0,
        le=86_400,
        allow_inf_nan=False,
        description="Time limit of all these runs together, in seconds. Default: as long as all "
        "other runs of the call took, including those left out, and at least 60.",
    )

    @model_validator(mode="after")
    def _has_runs_to_limit(self) -> Self:
        if self.budget_seconds is not None and not self.escalate:
            message = "budget_seconds limits the runs that escalate: false leaves out: remove one"
            raise ValueError(message)
        return self


class ResumeSettings(Document):
    """A run that is interrupted, and one that goes on from its checkpoint alone.

    `command` is None where the training command resumes by itself.
    """

    command: Argv | None = Field(
        default=None,
        description="The command that continues from the checkpoint, as one string or as a list of "
        "words. Default: train.command, for a script that finds its checkpoint by itself.",
    )
    checkpoint: RelativePath = Field(
        description="The file or folder that the script resumes from, relative to train.workdir. "
        "The resumed run starts in a fresh copy of the commit and gets nothing else of the "
        "interrupted one."
    )
    at_step: int = Field(
        ge=1,
        lt=100_000,
        description="The optimizer step after which the run is interrupted as by a "
        "preemption: SIGTERM when the script goes on to the next update, then SIGKILL.",
    )
    kill_while_saving: bool = Field(
        default=False,
        description="Kill three more runs inside the next save after `at_step`: after its first "
        "byte, in the middle, and before its last byte. Each must leave a complete checkpoint.",
    )
    when: Literal["always", "nightly"] = Field(
        default="always",
        description="Which gate calls make these runs: `always` all, `nightly` those started by "
        "a schedule, by hand or by a push to the default branch.",
    )

    @field_validator("checkpoint")
    @classmethod
    def _stays_inside(cls, value: str) -> str:
        # a trailing slash names the same folder
        return folder_inside_project(value)


# how torchrun, accelerate, deepspeed and mpirun get the number of processes
RANK_OPTIONS: Final = (
    *("--nproc-per-node", "--nproc_per_node", "--num_processes", "--num-processes"),
    *("--num_gpus", "--num-gpus", "-np"),
)
RANKS_WORD: Final = "{ranks}"


def with_ranks(command: tuple[str, ...], ranks: int | str) -> tuple[str, ...] | None:
    """Return the command with another number of ranks; None if it does not contain their number."""
    if any(RANKS_WORD in word for word in command):
        return tuple(word.replace(RANKS_WORD, str(ranks)) for word in command)
    words = list(command)
    for place, word in enumerate(words):
        option, equals, _ = word.partition("=")
        if option in RANK_OPTIONS and (equals or place + 1 < len(words)):
            words[place if equals else place + 1] = f"{option}={ranks}" if equals else str(ranks)
            return tuple(words)
    return None
