"""What the training's own container is made of: image, limits, devices."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gate.records.document import Document

GIB = 1024**3
# what names bytes and nothing else: `name@sha256:…` as a registry has it, or an image's own id
IMAGE_BY_DIGEST = r"^(?:[a-z0-9][A-Za-z0-9._:/-]{0,254}@)?sha256:[0-9a-f]{64}$"
DeviceName = Annotated[str, Field(pattern=r"^[A-Za-z0-9:-]{1,80}$")]


class ContainerSettings(Document):
    """The keys of `isolation` that apply only to the training's own container."""

    # by digest: a tag can be moved to another image after the settings were reviewed
    image: str | None = Field(
        default=None,
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
