"""A sealed package outside its job: what is sent to a registry or a tracker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

PACKAGE_FILE: Final = "package.tar"
# as a call writes them beside the package; nothing else that a registry names is taken from it
SEAL_FILE: Final = re.compile(r"package\.((provenance\.)?(dsse|sigstore)\.json|model\.sig)\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class SealedFile:
    """A file that was written whole; `sha256` in hex."""

    name: str
    path: Path
    sha256: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SealedArtifact:
    """A package and its seals; `created_at` is the verdict's time (ISO 8601), `commit` a full hash.

    `gate_id` tells the gates of a repository apart.
    """

    package: SealedFile
    seals: tuple[SealedFile, ...]
    commit: str
    repository: str
    outcome: str
    created_at: str
    gate_id: str = "default"


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedPackage:
    """Which package to fetch: that of a commit (a full hash), or with `digest` a certain one of it.

    `digest` is `sha256:` and 64 hex digits, or empty; a package above `max_bytes` is refused.
    """

    commit: str
    gate_id: str
    digest: str
    max_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Pushed:
    """Where a package lies now: `reference` names it by digest; `notes` are whole sentences."""

    reference: str
    tag: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulled:
    """What a registry gave; commit, outcome and times are its own words, which a seal may confirm.

    `files` are the names that were written.
    """

    reference: str
    commit: str
    outcome: str
    created_at: str
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedPackage:
    """A package that a registry lists; commit and time are its own words, `digest` names it.

    `created_at` is empty where the registry has something else under the tag.
    """

    tag: str
    commit: str
    digest: str
    created_at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedMetric:
    """A number of the first strict run at a step."""

    name: str
    step: int
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedRun:
    """What a tracker is told of one sealed pass; `milliseconds` since 1970, the verdict's time."""

    name: str
    commit: str
    milliseconds: int
    parameters: Mapping[str, str]
    metrics: tuple[TrackedMetric, ...]
    tags: Mapping[str, str]
    files: tuple[SealedFile, ...]
    passes: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracked:
    """The run that a tracker made, and the version of the model where one was registered."""

    run_id: str
    model_version: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedPackage:
    """What the reports tell of publishing; `faults` are whole sentences, and so are `notes`.

    `tracker` is the title of the one that `tracked_run` is of.
    """

    reference: str = ""
    tag: str = ""
    tracker: str = ""
    tracked_run: str = ""
    model_version: str = ""
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def run_title(self) -> str:
        """What reports call the tracker's run."""
        return f"{self.tracker} run"

    @property
    def lines(self) -> tuple[str, ...]:
        """All of it for a log, a line each; none where nothing was asked for."""
        facts = (
            ("published", self.reference),
            (self.run_title, self.tracked_run),
            ("registered model", self.model_version),
        )
        lines = tuple(f"{name}: {value}" for name, value in facts if value)
        return (*lines, *self.notes, *self.faults)


NOT_PUBLISHED: Final = PublishedPackage()


class PackageRegistry(Protocol):
    """A name in a registry, where sealed packages outlive their job; failures are `GateError`s."""

    def push(self, artifact: SealedArtifact) -> Pushed:
        """Have package and seals there, under a tag; no tag of another package is moved."""
        ...

    def pull(self, reference: WantedPackage, out: Path) -> Pulled:
        """Write package and seals into a folder, each byte checked; nothing there is replaced."""
        ...


class Tracker(Protocol):
    """A server that keeps runs of experiments; failures are `GateError`s."""

    def track(self, run: TrackedRun) -> Tracked:
        """Make a run of its own for this call, with all of it."""
        ...
