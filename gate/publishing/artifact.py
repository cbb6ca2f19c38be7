"""Records and protocols of publishing: what is sent to a registry or a tracker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

PACKAGE_FILE: Final = "package.tar"
# The names of seals that a call writes beside the package. No other file that a registry names is
# fetched.
SEAL_FILE: Final = re.compile(r"package\.((provenance\.)?(dsse|sigstore)\.json|model\.sig)\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class SealedFile:
    """A file that was written completely; `sha256` is in hexadecimal."""

    name: str
    path: Path
    sha256: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SealedArtifact:
    """A package and its seals; `created_at` is the verdict's time (ISO 8601), `commit` a full hash.

    `gate_id` distinguishes the gates of a repository.
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
    """The package to fetch: a commit's (full hash) or, with `digest`, a certain one of it.

    `digest` is `sha256:` and 64 hexadecimal digits, or empty. A package above `max_bytes` is
    refused.
    """

    commit: str
    gate_id: str
    digest: str
    max_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Pushed:
    """Where a package was pushed; `reference` names it by digest, and `notes` are sentences."""

    reference: str
    tag: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulled:
    """What a registry returned; commit, outcome and time are its claims, which a seal may confirm.

    `files` are the names of the files that were written.
    """

    reference: str
    commit: str
    outcome: str
    created_at: str
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedPackage:
    """A package that a registry lists by `digest`; commit and time are the registry's claims.

    `created_at` is empty if the tag names something that is not a package.
    """

    tag: str
    commit: str
    digest: str
    created_at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedMetric:
    """A metric's value at a step of the first strict run."""

    name: str
    step: int
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedRun:
    """What a tracker records of a sealed pass; `milliseconds` is the verdict's time since 1970."""

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
    """The run that a tracker made, and the model's version if one was registered."""

    run_id: str
    model_version: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedPackage:
    """What the reports say about publishing; `faults` and `notes` are whole sentences.

    `tracker` is the title of the tracker that has `tracked_run`.
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
        """The reports' name for the tracker's run."""
        return f"{self.tracker} run"

    @property
    def lines(self) -> tuple[str, ...]:
        """All facts for a log, one a line; empty if nothing was to be published."""
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
        """Push package and seals under a tag; never moves another package's tag."""
        ...

    def pull(self, reference: WantedPackage, out: Path) -> Pulled:
        """Write package and seals into a folder, with all digests checked; replaces no file."""
        ...


class Tracker(Protocol):
    """A server that records runs of experiments; failures are `GateError`s."""

    def track(self, run: TrackedRun) -> Tracked:
        """Make a new run for this call, with all its data."""
        ...
