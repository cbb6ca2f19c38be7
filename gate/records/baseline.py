"""The committed baseline: one entry, and one file, for each environment it was recorded in."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from gate.records.comparison import KnobCosts
from gate.records.document import Document, Timestamp
from gate.records.observed.environment import Environment
from gate.records.observed.evidence import CheckpointManifest, MetricSeries, StepDigest

BASELINE_SCHEMA: Final = "repro-gate.baseline/1"
ENTRY_SCHEMA: Final = "repro-gate.baseline-entry/1"
# of all entries together, and of one
MAX_BASELINE_BYTES: Final = 16 * 1024 * 1024
MAX_ENTRY_BYTES: Final = 8 * 1024 * 1024
MAX_ENTRIES: Final = 500
# an artifact that a proposal comes in holds the package with the checkpoint too
MAX_ARTIFACT_BYTES: Final = 4 * 1024**3
# what a gate call would record, beside its other documents; `baseline accept` takes it over
PROPOSED_BASELINE: Final = "proposed-baseline.json"


class BaselineEntry(Document):
    """A file of the baseline's folder: what the training gave in one environment, and from what.

    `training` holds the settings that change the result (command, steps, seed, threads), each as
    JSON: an entry recorded under others cannot be compared. `steps` keeps the fingerprints of the
    first steps, so that a drift has a cause. `knob_costs` is for reports and decides nothing.
    `digest` is the SHA-256 of all the rest: a number that was edited by hand shows.
    """

    schema_version: Literal["repro-gate.baseline-entry/1"] = ENTRY_SCHEMA
    commit: str = Field(max_length=64)
    recorded_at: Timestamp
    reason: str = Field(default="", max_length=500)
    training: dict[str, str]
    environment: Environment
    metrics: tuple[MetricSeries, ...]
    steps: tuple[StepDigest, ...]
    checkpoint: CheckpointManifest
    knob_costs: KnobCosts | None = None
    digest: str = Field(default="", max_length=64)


class Baseline(Document):
    """All entries of the folder `.repro-gate/baseline/`, in the order of their files' names."""

    schema_version: Literal["repro-gate.baseline/1"] = BASELINE_SCHEMA
    entries: tuple[BaselineEntry, ...]
