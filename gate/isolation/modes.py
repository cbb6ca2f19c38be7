"""How a training is isolated: the settings, the accounts and containers, and what was achieved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from gate.text.document import Distinct, Document
from gate.text.image_names import IMAGE_BY_DIGEST

GIB = 1024**3
ALL_GPUS = "all"
DeviceName = Annotated[str, Field(pattern=r"^[A-Za-z0-9:-]{1,80}$")]


class IsolationMode(StrEnum):
    """How far the training is kept from the gate; after `auto`, weakest first."""

    AUTO = "auto"
    NONE = "none"
    UID = "uid"
    CONTAINER = "container"

    @property
    def strength(self) -> int:
        """The mode's place from weakest to strongest; `auto` is below all others."""
        return tuple(IsolationMode).index(self)


class ContainerSettings(Document):
    """The keys of `isolation` that apply only to the training's own container."""

    # by digest: a tag can move to another image after the settings were reviewed
    image: str | None = Field(
        default=None,
        max_length=400,
        pattern=IMAGE_BY_DIGEST,
        description="Image that the training runs in, by digest: `name@sha256:...`, or "
        "`sha256:...` for one that the engine already has. It must contain Python, torch and the "
        "project's packages.",
    )
    gpus: Annotated[tuple[DeviceName, ...], Distinct] = Field(
        default=(),
        max_length=64,
        description="GPUs for the container, by index or UUID, or `all`. When empty: all of "
        "them, unless train.device is cpu; with `auto`, none if the engine has none.",
    )
    shm_bytes: int = Field(
        default=GIB,
        ge=1024**2,
        le=1024 * GIB,
        description="Size of the container's /dev/shm, in bytes. DataLoader workers and ranks "
        "share it.",
    )
    memory_bytes: int | None = Field(
        default=None,
        ge=64 * 1024**2,
        le=1024 * 1024 * GIB,
        description="Memory that the container may use, in bytes, swap included.",
    )
    # threads count too (pids controller, cgroups(7)), and data workers on many cores have many
    pids: int = Field(
        default=4096,
        ge=16,
        le=4_194_304,
        description="Maximum number of processes and threads in the container.",
    )


class IsolationSettings(ContainerSettings):
    """How the training process is isolated."""

    mode: IsolationMode = Field(
        default=IsolationMode.AUTO,
        description="`container` runs the training in its own container, `uid` under another "
        "account, `none` under the gate's own account. `auto` takes `container` when "
        "isolation.image is set and a container engine answers, else `uid` when the gate is root "
        "and that works, else `none`.",
    )
    minimum: IsolationMode = Field(
        default=IsolationMode.NONE,
        json_schema_extra={"enum": ["none", "uid", "container"]},
        description="The least isolation to accept: `none`, `uid` or `container`. A machine that "
        "cannot provide it is an error.",
    )
    network: bool = Field(
        default=False,
        description="Let the training reach the network. The verdict then says so. Under `uid`, "
        "ranks need it to talk over loopback.",
    )

    @model_validator(mode="after")
    def _container_has_an_image(self) -> Self:
        if IsolationMode.CONTAINER in {self.mode, self.minimum} and self.image is None:
            message = "mode container needs isolation.image, the image to train in, by digest"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _a_container_is_sized(self) -> Self:
        for name, field in ContainerSettings.model_fields.items():
            if self.image is None and getattr(self, name) != field.default:
                message = f"{name} needs isolation.image: it is a limit of the container"
                raise ValueError(message)
        if ALL_GPUS in self.gpus and len(self.gpus) > 1:
            message = "gpus: all includes every other one: name all, or single GPUs"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _mode_reaches_minimum(self) -> Self:
        if self.minimum is IsolationMode.AUTO:
            message = "minimum: auto is not a minimum; name a mode"
            raise ValueError(message)
        if IsolationMode.AUTO is not self.mode and self.mode.strength < self.minimum.strength:
            message = f"mode: {self.mode.value} is weaker than minimum: {self.minimum.value}"
            raise ValueError(message)
        return self


class JobIsolation(StrEnum):
    """What separates a run on a cluster's nodes from the gate, weakest first.

    `USER` runs under the account that submitted the job, on other machines. It gets the gate's list
    of variables and nothing else of the gate.
    """

    USER = "job user"


class WriteGuard(StrEnum):
    """What keeps an account from writing outside the folders of its run, strongest first.

    `MOUNT_NAMESPACE` shows each run a read-only machine with its own temporary folders. `LANDLOCK`
    refuses writes anywhere else.
    """

    # the order matters: the first one that works on this machine is taken
    MOUNT_NAMESPACE = "mount namespace"
    LANDLOCK = "landlock"
    NONE = "permissions only"


class Separation(StrEnum):
    """A resource that each run has for itself, so that runs cannot communicate through it.

    `PROCESSES` is a process table with its own numbers. `FILES` are its own inodes for all that it
    can read, because locks and watches belong to inodes. `CACHE` is what it reads into memory. That
    is emptied when the run ends, so it does not separate two runs at the same time.
    """

    PROCESSES = "processes"
    NETWORK = "network"
    TERMINALS = "terminals"
    FILES = "files"
    CACHE = "cache"


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """The account that a training runs under, if it is not the gate's own.

    `guard` keeps its processes from writing outside `ProcessRequest.writable`. `shared` are
    temporary folders of all accounts that Landlock leaves open to them too. `groups` own the GPU
    device files, and are the account's only extra right. `own` lists what each run has for itself.
    """

    uid: int
    gid: int
    guard: WriteGuard = WriteGuard.NONE
    shared: tuple[Path, ...] = ()
    groups: tuple[int, ...] = ()
    own: tuple[Separation, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingContainer:
    """The training's own container, beside the gate's and under the same engine.

    `image_id` is the engine's digest of the image. `run` marks every container of one gate call.
    `limits` are the settings for the container, and `gpus` its devices.
    """

    image_id: str
    run: str
    limits: ContainerSettings
    gpus: tuple[str, ...] = ()


class RunIsolation(Document):
    """How a run was isolated, as its record reports it; the fields are those of `Isolation`.

    `image` is the engine's digest of the container's image. A run on the nodes of a cluster has a
    `job`; its `mode` is the isolation on the gate's machine. With `other_nodes` the second strict
    run went to other nodes than the first, which is the stronger claim.
    """

    mode: IsolationMode
    guard: WriteGuard | None = None
    network: bool = False
    device_groups: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=2**32)], ...], Field(max_length=64)
    ] = ()
    image: str = ""
    own: Annotated[tuple[Separation, ...], Field(max_length=len(Separation))] = ()
    job: JobIsolation | None = None
    other_nodes: bool = False

    @field_validator("mode")
    @classmethod
    def _chosen(cls, value: IsolationMode) -> IsolationMode:
        # a record reports what was used; what was asked for is in the settings
        if value is IsolationMode.AUTO:
            message = "must be the mode that was chosen"
            raise ValueError(message)
        return value

    @property
    def described(self) -> str:
        """The isolation in a few words: the mode, its guard, and what was left open."""
        guards = [self.guard.value] if self.guard is not None else []
        if self.own:
            guards.append(f"own {', '.join(separation.value for separation in self.own)}")
        guard = f" ({'; '.join(guards)})" if guards else ""
        network = ", network open" if self.network else ""
        numbers = " ".join(map(str, self.device_groups))
        if self.job is not None:
            repeat = "; repeated on other nodes" if self.other_nodes else ""
            return f"{self.job.value} ({self.mode.value} on the gate's machine{repeat})"
        return f"{self.mode.value}{guard}{network}{f', device groups {numbers}' if numbers else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Isolation:
    """How the training is isolated, and why in this way; `mode` is never `auto`.

    - `network`: the training may use the network on purpose. Under `none` nothing stops it anyway.
    - `reading`: why the gate's account, and not the training's, reads what the runs left.
    - `guard`: what confines a separate account to the folders of its run; other modes have none.
    - `writable_paths`: files and folders outside the run's own that its account can write all the
      same. `paths_uncounted` says that there may be more, beyond the search limit.
    - `device_groups`: groups that the account got because they own GPU device files.
    - `gpu_refusal`: why the engine gave the container no GPU although one was asked for.
    - `own`: what each run has for itself; `shares`: why some of it is missing.
    - `job`: what separates the run on the nodes of a cluster, None on this machine. `other_nodes`:
      the repeat goes to other nodes.
    """

    mode: IsolationMode
    credentials: Credentials | None
    reason: str
    network: bool = False
    container: TrainingContainer | None = None
    reading: str = ""
    guard: WriteGuard | None = None
    writable_paths: tuple[Path, ...] = ()
    paths_uncounted: bool = False
    device_groups: tuple[int, ...] = ()
    gpu_refusal: str = ""
    own: tuple[Separation, ...] = ()
    shares: str = ""
    job: JobIsolation | None = None
    other_nodes: bool = False

    @property
    def own_accounts(self) -> tuple[Credentials, ...]:
        """The account that trains and owns a run's folders, empty if that is the gate's own."""
        return () if self.credentials is None else (self.credentials,)

    @property
    def in_container(self) -> bool:
        """Whether the training runs in its own container."""
        return self.container is not None

    @property
    def shows_mounts(self) -> bool:
        """Whether a run can see a folder of the machine at another path, read-only."""
        return self.in_container or self.guard is WriteGuard.MOUNT_NAMESPACE

    @property
    def marked_containers(self) -> tuple[str, ...]:
        """The mark of all containers of this call, empty without containers."""
        return () if self.container is None else (self.container.run,)

    @property
    def needs_restricted_paths(self) -> bool:
        """Whether folders must be closed to the training while it runs.

        A container contains only its own folders, and under the gate's own account nothing can be
        closed.
        """
        return bool(self.own_accounts) and not self.in_container

    def host_variables(
        self, host: Mapping[str, str], pass_env: tuple[str, ...]
    ) -> Mapping[str, str]:
        """Return the gate's variables that are valid where the training runs.

        A container has its own programs, libraries and devices, so it gets only variables that the
        user passes by name.
        """
        if not self.in_container:
            return host
        return {name: host[name] for name in pass_env if name in host}

    @property
    def of_a_run(self) -> RunIsolation:
        """The isolation as each run's record keeps it."""
        return RunIsolation(
            mode=self.mode,
            guard=self.guard,
            network=self.network,
            device_groups=self.device_groups,
            image="" if self.container is None else self.container.image_id,
            own=self.own,
            job=self.job,
            other_nodes=self.other_nodes,
        )

    @property
    def described(self) -> str:
        """The isolation in a few words, for documents."""
        return self.of_a_run.described

    @property
    def announced(self) -> str:
        """The isolation as a sentence for the person who waits, before the first run."""
        reason = self.reason
        # running under one's own account is normal on a laptop, so the sentence must not sound like
        # a fault
        if self.mode is IsolationMode.NONE and self.job is None:
            reason = (
                "the training runs under your own account, which is fine for your own code "
                f"({reason})"
            )
        return f"isolation: {self.described}. {reason[:1].upper()}{reason[1:]}."
