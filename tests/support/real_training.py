"""Run real trainings with the real launcher and adapters: files in, evidence or an error out."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gate.evidence.collect import collect_run
from gate.evidence.run_evidence import MetricSeries, RunEvidence
from gate.isolation.modes import Isolation, IsolationMode
from gate.isolation.process_request import ProcessResult
from gate.isolation.processes import LocalProcesses
from gate.settings.gate_settings import Device, GateSettings
from gate.system.clock import SystemClock
from gate.system.console import QuietProgress
from gate.system.files.files import LocalFiles
from gate.training.child_environment import path_with_interpreter
from gate.training.launch import Launcher, run_folders
from gate.training.run_folders import made_harness
from gate.training.runs import PlannedRun, RunMode, Snapshot
from gate.training.timeline import CallTime

FILES = LocalFiles()
# only a guard against a training that hangs: a busy machine compiles for minutes
TIMEOUT_SECONDS = 600
ALONE = Isolation(mode=IsolationMode.NONE, credentials=None, reason="a test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """The result of one run."""

    evidence: RunEvidence
    result: ProcessResult
    root: Path

    @property
    def text(self) -> str:
        """Everything that the training printed."""
        return self.result.output.decode("utf-8", "replace")

    def series(self, name: str) -> list[float]:
        """Return the values of one metric."""
        (found,) = [series for series in self.evidence.metrics if series.name == name]
        return values(found)

    def passes(self) -> list[float]:
        """Return the losses of all backward passes of the first optimizer, in order."""
        found = [
            (point.step, int(series.name.rpartition("pass")[2]), point.value)
            for series in self.evidence.metrics
            for point in series.points
            if series.name.startswith("loss.pass")
        ]
        return [value for _, _, value in sorted(found)]

    def tensors(self) -> dict[str, str]:
        """Return the digest of each tensor of the final state, by name."""
        return {tensor.name: tensor.sha256 for tensor in self.evidence.checkpoint.tensors}


def values(series: MetricSeries) -> list[float]:
    """Return the values of a series."""
    return [point.value for point in series.points]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainings:
    """Runs trainings, each in a separate folder below `root`."""

    root: Path

    def run(
        self,
        script: str,
        *,
        command: tuple[str, ...] = (),
        others: Mapping[str, str] | None = None,
        mode: RunMode = RunMode.STRICT,
        **train: object,
    ) -> Trained:
        """Run `script` as train.py, beside `others`, three steps long if `train` says no other."""
        place = Path(tempfile.mkdtemp(dir=self.root))
        tree = place / "code"
        for name, text in {"train.py": script, **(others or {})}.items():
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                path.chmod(0o755)
        asked = {"command": command or (sys.executable, "train.py"), "max_steps": 3, **train}
        settings = GateSettings.model_validate(
            {
                "version": 1,
                "train": {"timeout_seconds": TIMEOUT_SECONDS, "device": Device.CPU, **asked},
            }
        )
        return _run(settings, tree, place / "run", mode)


def _run(settings: GateSettings, tree: Path, place: Path, mode: RunMode) -> Trained:
    place.mkdir()
    folders = run_folders(place)
    path = path_with_interpreter(os.environ["PATH"], Path(sys.executable), beside_torch=True)
    launcher = Launcher(
        files=FILES,
        processes=LocalProcesses(),
        progress=QuietProgress(),
        settings=settings,
        isolation=ALONE,
        host={"PATH": path},
        harness=made_harness(FILES),
        call=CallTime(SystemClock()),
    )
    snapshot = Snapshot(commit="a" * 40, tree=tree, workdir=".", digest="0" * 64)
    record, result = launcher.run(PlannedRun(label="strict-1", mode=mode), snapshot, folders)
    evidence = collect_run(FILES, record, folders.out, folders.tree, result.output, settings.train)
    return Trained(evidence=evidence, result=result, root=place)
