"""A project and the real edges to gate it with."""

from __future__ import annotations

import os
from pathlib import Path

from git_workshop import Repository

from gate.codec.documents import write_document
from gate.edges.console import QuietProgress
from gate.edges.files import LocalFiles
from gate.edges.interrupts import Interrupts
from gate.entry import LocalCall, build_edges, local_request
from gate.pipeline import Gated, gate, record_baseline
from gate.records.request import GateRequest
from gate.session import Edges

FILES = LocalFiles()


class Bench:
    """A project and the real edges to gate it with."""

    def __init__(self, project: Repository, out: Path, *, config: str = "") -> None:
        self.project = project
        self.out = out
        self.config = config

    def request(self, **options: object) -> GateRequest:
        call = {"config": self.config, "base": "", "commit": "", "allow_dirty": False, **options}
        return local_request(
            LocalCall(start=self.project.path, out=self.out, **call),  # type: ignore[arg-type] # by name
            FILES,
        )

    def edges(self) -> Edges:
        return build_edges(
            FILES, self.project.path, QuietProgress(), Interrupts(), dict(os.environ)
        )

    def gate(self, **options: object) -> Gated:
        return gate(self.request(**options), self.edges())

    def record(self) -> str:
        """Record the baseline and commit it."""
        baseline = record_baseline(self.request(), self.edges(), "first")
        path = self.project.path / Path(self.config).parent / ".repro-gate/baseline.json"
        FILES.write_bytes(path, write_document(baseline))
        return self.project.commit()
