"""The settings of a cluster: which engine runs the training, on how many nodes."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from gate.text.document import Document, WholeNumber
from gate.text.image_names import IMAGE_BY_DIGEST

# The allowed options of sbatch; the gate sets all others itself (names, output, export, requeue,
# size, time). `clusters` is not allowed, because the gate's queries do not see jobs of another
# cluster.
OPTIONS: Final = frozenset(
    (
        *("account", "partition", "qos", "reservation", "wckey", "nice", "licenses"),
        *("constraint", "nodelist", "exclude", "switches", "contiguous", "exclusive", "tmp"),
        *("cpus-per-task", "mincpus", "mem", "mem-per-cpu", "mem-per-gpu"),
        *("gres", "gpus-per-node", "gpus-per-task"),
    )
)
# options without a value
SWITCHES: Final = frozenset(("contiguous", "exclusive", "nice"))
OPTION_VALUE: Final = re.compile(r"[A-Za-z0-9_.,:;@=+*&|!\[\]()/-]{1,200}\Z", re.ASCII)
PATH: Final = re.compile(r"/[A-Za-z0-9_.+/-]{1,150}\Z", re.ASCII)
# placeholder for a run's folder on the node's own disk; the start script puts the real path in
ON_NODE: Final = PurePosixPath("/@node@")
OptionName = Annotated[str, Field(max_length=40)]
# a word of Kubernetes: a name, a label with its prefix, a quantity such as 64Gi
POD_WORD: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_./-]{0,250}[A-Za-z0-9])?\Z", re.ASCII)
OPTIONS_HINT: Final = "options are those of sbatch; with engine: {0}, {1}"
PodWord = Annotated[str, Field(max_length=253)]


class ClusterEngine(StrEnum):
    """What starts the training."""

    LOCAL = "local"
    SLURM = "slurm"
    EXEC = "exec"
    KUBERNETES = "kubernetes"


def plain_path(value: str) -> str:
    """Return the path; raises `ValueError` if it is relative or a shell could misread it."""
    if not PATH.match(value) or ".." in PurePosixPath(value).parts:
        message = (
            "must be an absolute path of letters, digits and . _ + - /, without '..', and "
            "150 characters at most"
        )
        raise ValueError(message)
    return value


class ClusterPrograms(Document):
    """What stands for a scheduler: docs/cluster.md has the arguments and the answer of each."""

    submit: str = Field(
        description="With `engine: exec`: absolute path of the program that submits a job and "
        "prints the job's name. The job must start a script once on each node."
    )
    wait: str = Field(
        description="With `engine: exec`: absolute path of the program that waits until the job "
        "has ended, and prints why it ended."
    )
    cancel: str = Field(
        description="With `engine: exec`: absolute path of the program that cancels a job."
    )

    @field_validator("submit", "wait", "cancel")
    @classmethod
    def _absolute(cls, value: str) -> str:
        # an absolute path, because a path in the checkout would belong to the pull request (rule
        # T2)
        return plain_path(value)


class PodSettings(Document):
    """What a pod of `engine: kubernetes` is made of."""

    image: str = Field(
        max_length=400,
        pattern=IMAGE_BY_DIGEST,
        description="With `engine: kubernetes`: the image by its digest, `name@sha256:...`. It "
        "must contain git, and the training's environment and the gate at the same paths as "
        "here.",
    )
    volume_claim: PodWord = Field(
        description="The volume claim that every pod and this machine mount at cluster.folder."
    )
    namespace: PodWord | None = Field(
        default=None, description="Namespace of the job. Default: the account's own."
    )
    resources: dict[PodWord, str | int] = Field(
        default_factory=dict,
        max_length=20,
        description="Limits of each pod, which are also its requests: `nvidia.com/gpu: 8`.",
    )
    node_selector: dict[PodWord, PodWord] = Field(
        default_factory=dict, max_length=20, description="Labels that a node must have."
    )
    tolerations: list[PodWord] = Field(
        default_factory=list, max_length=20, description="Keys of taints that a node may have."
    )
    labels: dict[PodWord, PodWord] = Field(
        default_factory=dict,
        max_length=20,
        description="Labels of job and pods, such as `kueue.x-k8s.io/queue-name`.",
    )

    @field_validator("image", mode="before")
    @classmethod
    def _by_digest(cls, value: object) -> object:
        # a tag can move to another image, and a bare id is valid on one machine only
        if isinstance(value, str) and "@sha256:" not in value:
            message = "must name an image by its digest: name@sha256:..."
            raise ValueError(message)
        return value

    @field_validator(
        "volume_claim", "namespace", "resources", "node_selector", "tolerations", "labels"
    )
    @classmethod
    def _plain_words(cls, value: object) -> object:
        words = value if isinstance(value, list) else [value]
        if isinstance(value, dict):
            words = [*value, *value.values()]
        for word in words:
            if word is not None and not POD_WORD.match(str(word)):
                message = f"{str(word)[:100]!a} is not a word of Kubernetes"
                raise ValueError(message)
        return value


class ClusterSettings(Document):
    """The nodes of a run and where they come from; read from the base commit alone."""

    engine: ClusterEngine = Field(
        default=ClusterEngine.LOCAL,
        description="What starts the training: `local` this machine; `slurm` the cluster whose "
        "login node this machine is; `kubernetes` pods of a cluster whose API this machine can "
        "reach; `exec` any other scheduler, through three programs of yours.",
    )
    nodes: int = Field(default=1, ge=1, le=512, description="Number of nodes of a run.")
    tasks_per_node: int = Field(
        default=1,
        ge=1,
        le=128,
        description="How many times train.command starts on each node. With 1, a launcher such as "
        "torchrun starts the ranks of its node.",
    )
    options: dict[OptionName, str | int | bool] = Field(
        default_factory=dict,
        max_length=len(OPTIONS),
        description="Options of `sbatch`, without dashes: `partition: gpu`, `exclusive: true`.",
    )
    programs: ClusterPrograms | None = Field(
        default=None, description="The three programs of `engine: exec`."
    )
    pod: PodSettings | None = Field(
        default=None, description="The pods of `engine: kubernetes`, one for each node."
    )
    folder: str | None = Field(
        default=None,
        description="A folder that this machine and every node see at the same path. Each call "
        "creates a folder in it and removes it at the end.",
    )
    queue_seconds: float = Field(
        default=1200.0,
        gt=0,
        le=7 * 86400,
        allow_inf_nan=False,
        description="How long the job may wait in the queue, in seconds. Then it is cancelled, "
        "which is an error.",
    )
    run_seconds: float = Field(
        default=1800.0,
        gt=0,
        le=86400,
        allow_inf_nan=False,
        description="Time limit of one run on the nodes, in seconds. The job's own limit is "
        "this, times the largest number of runs that a call can need.",
    )

    allocations: Annotated[Literal[1, 2], WholeNumber] = Field(
        default=1,
        description="With 2, the second strict run goes to a second job on different nodes. The "
        "verdict then says that the result repeats there.",
    )

    @field_validator("options")
    @classmethod
    def _known_options(cls, value: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
        for name, text in value.items():
            if name not in OPTIONS:
                message = f"{name!a} is not one of {', '.join(sorted(OPTIONS))}"
                raise ValueError(message)
            if isinstance(text, bool) and name not in SWITCHES:
                message = (
                    f"{name}: {str(text).lower()} is not a value of it; quote it if it is a word"
                )
                raise ValueError(message)
            if not OPTION_VALUE.match(str(text)):
                message = f"{name}: {str(text)[:100]!a} has a character that is not allowed"
                raise ValueError(message)
        return value

    @field_validator("folder")
    @classmethod
    def _plain_path(cls, value: str | None) -> str | None:
        # the path goes into a shell script on each node
        return None if value is None else plain_path(value)

    @model_validator(mode="after")
    def _a_cluster_has_a_folder(self) -> Self:
        if self.on_nodes and self.folder is None:
            message = f"engine: {self.engine} needs folder, a folder that every node sees"
            raise ValueError(message)
        if (self.programs is not None) != (self.engine is ClusterEngine.EXEC):
            message = "programs and engine: exec need each other"
            raise ValueError(message)
        if (self.pod is not None) != (self.engine is ClusterEngine.KUBERNETES):
            message = "pod and engine: kubernetes need each other"
            raise ValueError(message)
        if self.options and self.programs is not None:
            raise ValueError(OPTIONS_HINT.format(self.engine, "programs.submit has them"))
        if self.options and self.pod is not None:
            raise ValueError(OPTIONS_HINT.format(self.engine, "pod says what it needs"))
        for key in ("nodes", "tasks_per_node", "allocations"):
            if not self.on_nodes and getattr(self, key) > 1:
                message = f"{key}: more than one needs an engine, such as engine: slurm"
                raise ValueError(message)
        for key in ("options", "folder", "queue_seconds", "run_seconds"):
            default = type(self).model_fields[key].get_default(call_default_factory=True)
            if not self.on_nodes and getattr(self, key) != default:
                message = f"{key} needs an engine, such as engine: slurm"
                raise ValueError(message)
        return self

    @property
    def on_nodes(self) -> bool:
        """Whether runs go to the nodes of a cluster."""
        return self.engine is not ClusterEngine.LOCAL

    @property
    def described(self) -> str:
        """What is asked for, as in a message: `2 nodes (partition gpu)`."""
        options = ", ".join(
            name if text is True else f"{name} {text}"
            for name, text in sorted(self.options.items())
            if text is not False
        )
        nodes = f"{self.nodes} node{'s' * (self.nodes > 1)}"
        return f"{nodes} ({options})" if options else nodes
