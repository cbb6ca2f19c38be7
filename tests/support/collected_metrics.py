"""The metrics that the gate collects from a made-up run, under given settings."""

from __future__ import annotations

from evidence_cases import record_of
from harness_folder import HarnessFolder

from gate.evidence.collect import collect_run
from gate.settings.gate_settings import TrainSettings
from gate.settings.train_sections import MetricsSettings
from gate.system.files.files import LocalFiles


def collected_names(harness: HarnessFolder, metrics: MetricsSettings) -> list[str]:
    """Return the names of the collected metrics; the work folder contains the harness's folder."""
    evidence = collect_run(
        files=LocalFiles(),
        run=record_of(),
        out=harness.path,
        workdir_tree=harness.path.parent,
        output=b"",
        train=TrainSettings(command=("python", "train.py"), max_steps=2, metrics=metrics),
    )
    return [series.name for series in evidence.metrics]
