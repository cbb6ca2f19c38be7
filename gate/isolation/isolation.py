"""How the training is isolated, and what its own container is made of."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from gate.text.records_document import Document

GIB = 1024**3
# https://pkg.go.dev/github.com/distribution/reference, "Grammar": no `..`, no scheme, no empty part
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*(?::[0-9]{{1,5}})?"
_PART = "[a-z0-9]+(?:(?:[.]|_|__|-+)[a-z0-9]+)*"
_TAG = ":[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
# what names bytes and nothing else: `name@sha256:…` as a registry has it, or an image's own id
IMAGE_BY_DIGEST = rf"^(?:(?:{_HOST}/)?{_PART}(?:/{_PART})*(?:{_TAG})?@)?sha256:[0-9a-f]{{64}}$"
DeviceName = Annotated[str, Field(pattern=r"^[A-Za-z0-9:-]{1,80}$")]


class IsolationMode(StrEnum):
    """How far the training is kept from the gate; after `auto`, weakest first."""

    AUTO = "auto"
    NONE = "none"
    UID = "uid"
    CONTAINER = "container"

    @property
    def strength(self) -> int:
        """Its place in the order of modes; that of `auto` is below all."""
        return tuple(IsolationMode).index(self)


class ContainerSettings(Document):
    """The keys of `isolation` that apply only to the training's own container."""

    # by digest: a tag can be moved to another image after the settings were reviewed
    image: str | None = Field(
        default=None,
        max_length=400,
        pattern=IMAGE_BY_DIGEST,
        description="Image that the training runs in, by digest: `name@sha256:...`, or "
        "`sha256:...` for one that the engine already has. It must contain Python, torch and the "
        "project's packages.",
    )
    gpus: tuple[DeviceName, ...] = Field(
        default=(),
        max_length=64,
        description="GPUs for the container, by index or UUID, or `all`. When empty, the "
        "container gets all of them, unless train.device is cpu; with `auto`, it gets none if "
        "the engine has none.",
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
    # threads count too (cgroups, pids controller), and data workers with many cores have many
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
    def _mode_reaches_minimum(self) -> Self:
        if self.minimum is IsolationMode.AUTO:
            message = "minimum: auto is no minimum; name a mode"
            raise ValueError(message)
        if IsolationMode.AUTO is not self.mode and self.mode.strength < self.minimum.strength:
            message = f"mode: {self.mode.value} is weaker than minimum: {self.minimum.value}"
            raise ValueError(message)
        return self
