"""Small, valid records for tests; each test changes the one thing that it checks."""

from __future__ import annotations

import hashlib

from gate.checkpoint.digest import LeafDigest
from gate.checkpoint.tensor_hashing import WHOLE, tensor_head
from gate.evidence.columns import Points
from gate.evidence.run_evidence import (
    CheckpointManifest,
    EvidenceSet,
    HarnessProcess,
    MetricSeries,
    MetricSource,
    RunEvidence,
)
from gate.evidence.saved_state import ReadState, manifest
from gate.evidence.step_columns import StepDigest, StepDigests, StepTiming, Timings
from gate.isolation.modes import IsolationMode, RunIsolation
from gate.settings.gate_settings import GateSettings
from gate.training.environment import Environment
from gate.training.runs import Commit, RunMode, RunRecord

CREATED_AT = "2026-01-02T03:04:05+00:00"
COMMIT = "a" * 40
LOSSES = (2.5, 2.25, 2.125)
PARTS = {"python": "3.11.7", "torch": "2.13.0", "device": "cpu", "cpu": "one", "threads": "1"}


def settings_of(**sections: object) -> GateSettings:
    """Return settings with the three required keys, and these sections."""
    train = {"command": ("python", "train.py"), "max_steps": 3}
    return GateSettings.model_validate({"version": 1, "train": train, **sections})


def series_of(
    values: tuple[float, ...] = LOSSES,
    *,
    name: str = "loss",
    source: MetricSource = MetricSource.HARNESS,
) -> MetricSeries:
    """Return a float64 series with a value per step, from step 1 on."""
    return MetricSeries(name=name, source=source, points=Points(enumerate(values, start=1)))


def manifest_of(**contents: bytes) -> CheckpointManifest:
    """Return a manifest with one U8 vector for each name."""
    leaves = tuple(
        LeafDigest(name, "model", "U8", (len(data),), len(data), _leaf(data))
        for name, data in contents.items()
    )
    return manifest((ReadState(leaves=leaves),))


def _leaf(data: bytes) -> bytes:
    return hashlib.sha256(tensor_head(WHOLE, "U8", (len(data),)) + data).digest()


# the mode that the first word of a label means, if that is not a strict run
MODES = {mode.value: mode for mode in RunMode}


def record_of(label: str = "strict-1") -> RunRecord:
    """Return the record of a successful run."""
    return RunRecord(
        label=label,
        mode=MODES.get(label.partition("-")[0], RunMode.STRICT),
        commit=Commit.BASE if label.startswith("base") else Commit.HEAD,
        argv=("python", "train.py"),
        exit_code=0,
        timed_out=False,
        wall_seconds=1.5,
        output_bytes=10,
        isolation=RunIsolation(mode=IsolationMode.NONE),
    )


def evidence_of(
    label: str = "strict-1",
    *,
    values: tuple[float, ...] = LOSSES,
    weights: bytes = b"weights",
    parts: dict[str, str] | None = None,
    step_seconds: tuple[float, ...] = (0.1, 0.1, 0.1),
    memory: int = 1000,
) -> RunEvidence:
    """Return the evidence of a run with as many steps as there are values."""
    return RunEvidence(
        run=record_of(label),
        metrics=(series_of(values),),
        steps=StepDigests.of(
            StepDigest(step=step, parameters=f"sha256:{value.hex()}")
            for step, value in enumerate(values, start=1)
        ),
        timings=Timings.of(
            StepTiming(step=step, seconds=seconds)
            for step, seconds in enumerate(step_seconds, start=1)
        ),
        checkpoint=manifest_of(weight=weights, bias=b"bias"),
        environment=Environment(parts=PARTS if parts is None else parts),
        processes=(HarnessProcess(pid=7, applied={}),),
        peak_memory_bytes=memory,
    )


def evidence_set_of(*runs: RunEvidence, changed_files: tuple[str, ...] = ()) -> EvidenceSet:
    """Return the evidence set of these runs, all of one commit."""
    return EvidenceSet(
        commit=COMMIT,
        base_commit=None,
        snapshot_digest="1" * 64,
        settings_digest="2" * 64,
        training_digest="3" * 64,
        changed_files=changed_files,
        created_at=CREATED_AT,
        runs=runs,
    )
