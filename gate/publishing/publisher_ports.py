"""Who takes a sealed package."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from gate.publishing.artifact import (
    Pulled,
    Pushed,
    SealedArtifact,
    Tracked,
    TrackedRun,
    WantedPackage,
)


class PackageRegistry(Protocol):
    """A name in a registry, where sealed packages outlive their job; failures are `GateError`s."""

    def push(self, artifact: SealedArtifact) -> Pushed:
        """Have package and seals there, under a tag; no tag of another package is moved."""
        ...

    def pull(self, wanted: WantedPackage, out: Path) -> Pulled:
        """Write package and seals into a folder, each byte checked; nothing there is replaced."""
        ...


class Tracker(Protocol):
    """A server that keeps runs of experiments; failures are `GateError`s."""

    def track(self, run: TrackedRun) -> Tracked:
        """Make a run of its own for this call, with all of it."""
        ...
