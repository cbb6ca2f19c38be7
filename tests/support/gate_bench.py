"""A project and the real adapters to gate it with."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from baseline_cases import FOLDER
from git_workshop import Repository
from real_reader import kept
from recorded_trainings import recorded
from scenes import baseline_of

from gate.baseline.folder import write_entries
from gate.isolation.stop_signals import StopSignals
from gate.pipelines.adapters import Adapters
from gate.pipelines.call_setup import LocalCall, build_adapters, local_request
from gate.pipelines.case import Gated
from gate.pipelines.gate import gate, record_baseline
from gate.pipelines.snapshots import lines_of_the_change
from gate.system.console import QuietProgress
from gate.system.files.files import LocalFiles
from gate.verdict.request import GateRequest

FILES = LocalFiles()


def gate_call(request: GateRequest, adapters: Adapters) -> Gated:
    """Make a gate call, including the changed lines that a delivered verdict has."""
    return gate(request, adapters, lines_of_the_change(request, adapters.git))


def adapters_at(top: Path) -> Adapters:
    """Return the real adapters, with the reading process started once per test worker."""
    built = build_adapters(FILES, top, QuietProgress(), StopSignals(), dict(os.environ))
    return replace(built, answering=kept(built.answering))


class Bench:
    """A project and the real adapters to gate it with.

    With `priced` calls make default runs too. Without it they are judged as under
    `cost: {when: never}`, which takes half of the trainings. With `whole` every training runs, and
    none is replayed from a recording. `alike` says that how a kind of bench calls the gate changes
    no result.
    """

    priced = True
    whole = False
    alike = False

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

    def adapters(self) -> Adapters:
        known = adapters_at(self.project.path)
        return known if self.whole else recorded(known)

    def gate(self, **options: object) -> Gated:
        request = self.request(**options)
        if not self.priced:
            cost = request.settings.cost.model_copy(update={"when": "never"})
            request = replace(request, settings=request.settings.model_copy(update={"cost": cost}))
        return gate_call(request, self.adapters())

    def record(self) -> str:
        """Commit the baseline, which is recorded once per test run and commit."""
        folder = self.project.path / Path(self.config).parent / FOLDER
        # a subclass that changes the request or the adapters must record its own baseline
        own = (type(self).request, type(self).adapters)
        plain = self.alike or own == (Bench.request, Bench.adapters)
        if not (plain and baseline_of(self.project, self.config, "recorded", self._record)):
            self._record(folder)
        return self.project.commit()

    def _record(self, folder: Path) -> None:
        baseline = record_baseline(self.request(), self.adapters(), "first")
        write_entries(FILES, folder, None, baseline)
