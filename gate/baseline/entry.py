"""The committed baseline: one entry, and one file, for each environment it was recorded in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from gate.baseline.acceptance import FarFromPeers, Movement
from gate.baseline.recorded_price import RecordedPrice
from gate.comparison.differences import KnobCosts
from gate.data.data_sets import DataSets
from gate.evidence.given import Given
from gate.evidence.run_evidence import CheckpointManifest, MetricSeries
from gate.evidence.seeds import SeedResults
from gate.evidence.step_columns import StepDigests
from gate.text.records_document import Document, Timestamp
from gate.training.environment import Environment

BASELINE_SCHEMA: Final = "repro-gate.baseline/1"
ENTRY_SCHEMA: Final = "repro-gate.baseline-entry/1"
# of all entries together, and of one
MAX_BASELINE_BYTES: Final = 16 * 1024 * 1024
MAX_ENTRY_BYTES: Final = 8 * 1024 * 1024
MAX_ENTRIES: Final = 500
# what a gate call would record, beside its other documents; `baseline accept` takes it over
PROPOSED_BASELINE: Final = "proposed-baseline.json"
MAX_WHO: Final = 100
MAX_RUN_URL: Final = 300
# calls that must have given the same bits where an entry is far from its peers
CONFIRMING_RECORDINGS: Final = 2


class BaselineEntry(Document):
    """A file of the baseline's folder: what the training gave in one environment, and from what.

    `training` holds the settings that change the result (command, steps, seed, threads), each as
    JSON: an entry recorded under others cannot be compared. `steps` keeps the fingerprints of the
    first steps, so that a drift has a cause, and `given` what steps were given. `knob_costs` and
    `price`, what strict mode cost then, are for reports and decide nothing.
    `seeded` holds what several seeds gave, and variants, where the policy's level asked for that.
    `equal_runs` strict runs gave this result; of the faults that strike one run in ten, so many
    equal runs miss the share `missed_faults`. `accepted_by`, `run_url` and `package_sha256` say who
    took it over, from which run on GitHub and out of which package: claims, empty where not known.
    `moved` says how far it is from the entry that it replaced. `recordings` counts the calls that
    gave these very bits here; one that is `far` from its peers judges after the second.
    `data` is the declared data that it was recorded with. `gate_id` is the id in the settings file
    of the gate that recorded it, where a repository has several: two may train the same command.
    `digest` is the SHA-256 of all the rest: a number that was edited by hand shows.
    """

    schema_version: Literal["repro-gate.baseline-entry/1"] = ENTRY_SCHEMA
    commit: str = Field(max_length=64)
    recorded_at: Timestamp
    reason: str = Field(default="", max_length=500)
    training: dict[str, str]
    environment: Environment
    metrics: tuple[MetricSeries, ...]
    steps: StepDigests
    given: Given = ()
    checkpoint: CheckpointManifest
    knob_costs: KnobCosts | None = None
    equal_runs: int = Field(default=2, ge=2, le=10)
    missed_faults: float = Field(default=0.82, ge=0, le=1)
    accepted_by: str = Field(default="", max_length=MAX_WHO)
    run_url: str = Field(default="", max_length=MAX_RUN_URL)
    package_sha256: str = Field(default="", max_length=64)
    gate_id: str = Field(default="", max_length=100)
    moved: Movement | None = None
    recordings: int = Field(default=1, ge=1)
    far: FarFromPeers | None = None
    seeded: SeedResults = ()
    data: DataSets = ()
    price: RecordedPrice | None = None
    digest: str = Field(default="", max_length=64)

    @model_serializer(mode="wrap")
    def _without_the_undeclared(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Most trainings declare no data, and some have no price: the entry says nothing of it."""
        written: dict[str, object] = handler(self)
        if not self.data:
            written.pop("data", None)
        if not self.given:
            written.pop("given", None)
        if self.price is None:
            written.pop("price", None)
        if not self.gate_id:
            written.pop("gate_id", None)
        return written

    @property
    def provisional(self) -> bool:
        """Whether it may not judge yet: far from its peers, and recorded by one call alone."""
        return self.far is not None and self.recordings < CONFIRMING_RECORDINGS


class Baseline(Document):
    """All entries of the folder `.repro-gate/baseline/`, in the order of their files' names."""

    schema_version: Literal["repro-gate.baseline/1"] = BASELINE_SCHEMA
    entries: tuple[BaselineEntry, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Baselines:
    """The baseline that decides, and the one that the pull request itself brings, if it does.

    `same_code` are the commits of its entries that hold the very files of the commit under test,
    the baseline itself left aside.
    """

    trusted: Baseline | None
    brought: Baseline | None
    same_code: frozenset[str] = frozenset()
