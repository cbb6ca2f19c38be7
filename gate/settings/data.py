"""The settings about data: the sections `data`, `fetch` and `preprocess`."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from gate.system.login import LOOPBACK
from gate.text.document import (
    MOST_SECONDS,
    Argv,
    Document,
    MachinePath,
    RelativePath,
    SaysSomething,
    folder_inside_project,
    path_inside_project,
)

MAX_SOURCES: Final = 50
GIB: Final = 1024**3
# pydantic's context for a file that a person wrote, as opposed to a record of the gate
TYPED: Final = "typed"
# names in the folder of all data sets: no link upward and no hidden file
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
LOCK_NAME: Final = "dvc.lock"


class DataKind(StrEnum):
    """Where a data set comes from; `preprocess` is the output of the settings' own command."""

    PATH = "path"
    DVC = "dvc"
    LFS = "lfs"
    URL = "url"
    PREPROCESS = "preprocess"


class Verify(StrEnum):
    """How much of a data set is read before each training."""

    FULL = "full"
    CACHED = "cached"
    SAMPLE = "sample"


def _address(value: str) -> str:
    parts = urlsplit(value)
    # reading the port raises `ValueError` for an invalid one now, and not at its first use
    _ = parts.port
    local = parts.hostname in LOOPBACK
    if parts.scheme != "https" and not (parts.scheme == "http" and local):
        message = "must begin with https://"
        raise ValueError(message)
    if not parts.hostname or parts.username or parts.password or not value.isprintable():
        message = "must be an address with a host, without a user name or a password"
        raise ValueError(message)
    return value


DataAddress = Annotated[str, Field(max_length=2000), AfterValidator(_address)]


class DataSource(Document):
    """One data set: exactly one of `path`, `dvc`, `lfs` and `url`."""

    path: MachinePath | None = Field(
        default=None,
        description="A file or folder of the machine, by its absolute path. The training finds "
        "it at `$REPRO_GATE_DATA/<as>`.",
    )
    dvc: RelativePath | None = Field(
        default=None,
        description="A `.dvc` file, or a `dvc.lock`, relative to repro-gate.yml. `dvc pull` "
        "fetches what it names; the training finds it at its own path in the tree.",
    )
    stage: Annotated[str, SaysSomething] | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="With a `dvc.lock`: the stage whose outputs to use. Default: all stages.",
    )
    lfs: RelativePath | None = Field(
        default=None,
        description="Shell-style pattern of files in Git LFS, relative to repro-gate.yml. Each "
        "run gets a copy of them, at their own path in the tree.",
    )
    url: DataAddress | None = Field(
        default=None,
        description="A file on the web, from an address that begins with https://; needs "
        "`sha256`. The training finds it at `$REPRO_GATE_DATA/<as>`.",
    )
    sha256: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{64}$",
        description="With `url`: the SHA-256 of the file.",
    )
    name: str = Field(
        default="",
        alias="as",
        max_length=100,
        description="With `path` or `url`: the name below `$REPRO_GATE_DATA`, and in every "
        "report. Default: the last part of the path or the address.",
    )
    at: RelativePath | None = Field(
        default=None,
        description="With `path` or `url`: where an unmodified script looks for it, relative to "
        "repro-gate.yml. The commit must have nothing at that "
        "path.",
    )
    verify: Verify = Field(
        default=Verify.FULL,
        description="How it is checked before the first run: `full` reads every byte, `cached` "
        "trusts "
        "the digest of a file with unchanged size, times and inode, `sample` reads all names and "
        "sizes and the content of some files.",
    )

    @field_validator("name")
    @classmethod
    def _named_or_left_out(cls, value: str, info: ValidationInfo) -> str:
        # in the gate's own records, an empty name stands for a missing key
        if info.context == TYPED and not value:
            message = "is empty: leave it out to use the last part of the path or the address"
            raise ValueError(message)
        return value

    @model_validator(mode="after")
    def _exactly_one_place(self) -> Self:
        named = [kind for kind in ("path", "dvc", "lfs", "url") if getattr(self, kind) is not None]
        if len(named) != 1:
            message = f"needs exactly one of path, dvc, lfs and url; found {named or 'none'}"
            raise ValueError(message)
        # content from the web is accepted only by its digest
        if (self.sha256 is None) is not (self.url is None):
            message = "url and sha256 belong together: the address says where, the digest what"
            raise ValueError(message)
        if self.stage is not None and (self.dvc or "").rpartition("/")[2] != LOCK_NAME:
            message = f"stage belongs to a {LOCK_NAME}"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _place_in_the_project(self) -> Self:
        if self.at is None:
            return self
        if self.in_tree:
            message = "at belongs to path and url: what dvc and lfs name has its path in the tree"
            raise ValueError(message)
        place = folder_inside_project(self.at)
        if place != self.at or ".git" in place.casefold().split("/") or not place.isprintable():
            message = f"at must be a plain path such as data/train, not {self.at[:80]!r}"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _paths_of_the_project(self) -> Self:
        for value in (self.dvc, self.lfs):
            if value is not None:
                path_inside_project(value)
        last = (self.dvc or "").rpartition("/")[2]
        if self.dvc is not None and last != LOCK_NAME and not last.endswith(".dvc"):
            message = f"dvc must name a file that ends with .dvc, or a {LOCK_NAME}"
            raise ValueError(message)
        if self.in_tree and self.name:
            message = "as belongs to path and url: what dvc and lfs name has its path in the tree"
            raise ValueError(message)
        if not self.in_tree and not NAME.match(self.label):
            message = (
                f"{self.label[:80]!r} cannot be its name: set `as` to letters, digits, dots, "
                "hyphens and underscores"
            )
            raise ValueError(message)
        return self

    @model_serializer(mode="wrap")
    def _as_it_is_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Write the field `name` under the file's key `as`, which is a reserved word in Python."""
        written: dict[str, object] = handler(self)
        if "name" in written:
            written["as"] = written.pop("name")
        return written

    @property
    def kind(self) -> DataKind:
        """Which of the four kinds the data set is."""
        kinds = (DataKind.PATH, DataKind.DVC, DataKind.LFS, DataKind.URL)
        return next(kind for kind in kinds if getattr(self, kind.value) is not None)

    @property
    def in_tree(self) -> bool:
        """Whether the training finds the data at a path of the repository."""
        return self.kind in {DataKind.DVC, DataKind.LFS}

    @property
    def label(self) -> str:
        """The name of the data set in reports, different from every other entry's."""
        if self.name:
            return self.name
        if self.url is not None:
            return urlsplit(self.url).path.rpartition("/")[2]
        if self.path is not None:
            return self.path.rpartition("/")[2]
        # two stages of one dvc.lock are two data sets
        stage = f":{self.stage}" if self.stage else ""
        return f"{self.dvc or self.lfs}{stage}"


class FetchSettings(Document):
    """Where fetched data is kept, and how much of it."""

    cache: MachinePath | None = Field(
        default=None,
        description="Folder for fetched data, by its absolute path; gates on one machine share "
        "it. The gate creates it if its parent exists; it must contain nothing else. Default: "
        "`repro-gate/data` in the cache folder of the gate's account.",
    )
    max_bytes: int = Field(
        default=100 * GIB,
        ge=1,
        le=2**60,
        description="Size limit of that folder, in bytes. The least recently used data is removed "
        "first.",
    )
    timeout_seconds: float = Field(
        default=3600.0,
        gt=0,
        le=MOST_SECONDS,
        allow_inf_nan=False,
        description="Time limit for fetching one entry of `data`, in seconds.",
    )


class PreprocessSettings(Document):
    """A command that makes the training's data out of the commit and the declared data."""

    command: Argv = Field(
        description="The command, as one string or as a list of words. It runs twice, without a "
        "shell, "
        "in fresh copies of the commit, isolated like the training."
    )
    out: RelativePath = Field(
        description="The file or folder that the command writes, relative to repro-gate.yml. "
        "The trainings find the second run's output there."
    )
    timeout_seconds: float = Field(
        default=1800.0,
        gt=0,
        le=MOST_SECONDS,
        allow_inf_nan=False,
        description="Time limit of one run of the command, in seconds.",
    )
    max_bytes: int = Field(
        default=10 * GIB,
        ge=1,
        le=2**50,
        description="Size limit of the command's output, in bytes.",
    )

    @model_validator(mode="after")
    def _writes_below_the_project(self) -> Self:
        folder_inside_project(self.out)
        return self


def distinct_names(sources: tuple[DataSource, ...]) -> tuple[DataSource, ...]:
    """Raise `ValueError` for two entries that the training would find in one place."""
    seen: set[str] = set()
    for source in sources:
        # some file systems do not distinguish upper and lower case
        label = source.label.casefold()
        if label in seen:
            message = f"two entries have the name {source.label!r}: set `as` in one of them"
            raise ValueError(message)
        seen.add(label)
    places = [source.at for source in sources if source.at is not None]
    for number, place in enumerate(places):
        inside = next((earlier for earlier in places[:number] if _overlap(earlier, place)), None)
        if inside is not None:
            message = f"two entries are at one place: {inside!r} and {place!r}"
            raise ValueError(message)
    return sources


def _overlap(first: str, second: str) -> bool:
    """Decide whether two places are equal or nested, on file systems that ignore case too."""
    left, right = (f"{place.casefold()}/" for place in (first, second))
    return left.startswith(right) or right.startswith(left)


DataSources = Annotated[
    tuple[DataSource, ...],
    Field(
        max_length=MAX_SOURCES,
        description="Data that the training reads and the commit does not contain. Every run finds "
        "it "
        "read-only at the same path; its digest is part of the baseline.",
    ),
    AfterValidator(distinct_names),
]
