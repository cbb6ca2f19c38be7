"""The committed baseline: one entry for each environment that it was recorded in."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from gate.records.comparison import KnobCosts
from gate.records.document import Document, Timestamp
from gate.records.observed.environment import Environment
from gate.records.observed.evidence import CheckpointManifest, MetricSeries, StepDigest
from gate.records.observed.seeds import SeedResults

BASELINE_SCHEMA: Final = "repro-gate.baseline/1"
MAX_BASELINE_BYTES: Final = 16 * 1024 * 1024
# an artifact that a proposal comes in holds the package with the checkpoint too
MAX_ARTIFACT_BYTES: Final = 4 * 1024**3
# what a gate call would record, beside its other documents; `baseline accept` takes it over
PROPOSED_BASELINE: Final = "proposed-baseline.json"


class BaselineEntry(Document):
    """What the training gave in one environment, and what that was made from.

    `training` holds the settings that change the result (command, steps, seed, threads), each as
    JSON: an entry recorded under others cannot be compared. `steps` keeps the fingerprints of the
    first steps, so that a drift has a cause. `knob_costs` is for reports and decides nothing.
    `seeded` holds what several seeds gave, and variants, where the policy's level asked for that.
    `digest` is the SHA-256 of all the rest: a number that was edited by hand shows.
    """

    commit: str = Field(max_length=64)
    recorded_at: Timestamp
    reason: str = Field(default="", max_length=500)
    training: dict[str, str]
    environment: Environment
    metrics: tuple[MetricSeries, ...]
    steps: tuple[StepDigest, ...]
    checkpoint: CheckpointManifest
    knob_costs: KnobCosts | None = None
    seeded: SeedResults = ()
    digest: str = Field(default="", max_length=64)

    @model_serializer(mode="wrap")
    def _without_empty_seeds(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        """An entry of another level stays as it is, its digest too."""
        written: dict[str, object] = handler(self)
        if not self.seeded:
            written.pop("seeded", None)
        return written


class Baseline(Document):
    """The file `.repro-gate/baseline.json`."""

    schema_version: Literal["repro-gate.baseline/1"] = BASELINE_SCHEMA
    entries: tuple[BaselineEntry, ...]
