"""Gate calls whose runs go to a simulated cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from gate_bench import FILES, Bench, gate_call
from played_training import WITH_RANKS, Project

from gate.isolation.stop_signals import StopSignals
from gate.pipelines.adapters import Adapters
from gate.pipelines.call_setup import build_adapters
from gate.pipelines.case import Gated
from gate.system.console import QuietProgress

SECRET = "a-token-of-the-gate"
SETTINGS = "version: 1\ntrain: {command: python3 train.py, max_steps: 3}\ncost: {when: never}\n"


class PlayedCluster(Protocol):
    """A simulated cluster: its settings, and the variables that lead to its programs."""

    def settings(self, **keys: object) -> str:
        """Return the cluster section of a settings file, with these keys."""
        ...

    def variables(self, own: Mapping[str, str]) -> dict[str, str]:
        """Return the gate's variables, with access to this cluster."""
        ...


class ClusterBench(Bench):
    """A project whose gate calls run on a simulated cluster."""

    whole = True
    priced = False

    def __init__(self, project: Project, out: Path, cluster: PlayedCluster) -> None:
        super().__init__(project, out)
        self.cluster = cluster
        project.write("train.py", WITH_RANKS)

    def settings(self, **keys: object) -> None:
        """Commit settings with these keys of the cluster section."""
        self.project.write("repro-gate.yml", SETTINGS + self.cluster.settings(**keys))
        self.project.commit()

    def adapters(self) -> Adapters:
        """Return the real adapters of a gate that has secrets in its variables."""
        own = {**os.environ, "GITHUB_TOKEN": SECRET, "REPRO_GATE_PASSPHRASE": SECRET}
        variables = self.cluster.variables(own)
        top = self.project.path
        return build_adapters(FILES, top, QuietProgress(), StopSignals(), variables)

    def gate(self, **options: object) -> Gated:
        """Make one gate call."""
        return gate_call(self.request(**options), self.adapters())
