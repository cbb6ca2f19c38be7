"""What `repro-gate.yml` may say about what is installed: section `environment`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from gate.text.document import RelativePath, path_inside_project
from gate.text.records_document import Document

# with those that are found a few more are read, see gate/evidence/lock_files.py
MAX_NAMED_LOCKS = 10
NamePattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9*?\[\]!._-]{1,200}$")]


class EnvironmentSettings(Document):
    """Which installed packages count, and which files lock them."""

    ignore: tuple[NamePattern, ...] = Field(
        default=(),
        max_length=200,
        description="Shell-style patterns of packages whose version may move without any effect "
        "on what is compared, for example `tqdm` or `opentelemetry-*`. What the training does not "
        "import never counts.",
    )
    locks: tuple[RelativePath, ...] = Field(
        default=(),
        max_length=MAX_NAMED_LOCKS,
        description="Lock files of the training's packages, relative to repro-gate.yml, beside "
        "those that are found next to it and at the root of the repository: uv.lock, poetry.lock, "
        "Pipfile.lock, pylock.toml, pixi.lock, kernels.lock, requirements*.txt with hashes, and "
        "conda's explicit lists.",
    )

    @field_validator("locks")
    @classmethod
    def _stay_inside(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(path_inside_project, value))
