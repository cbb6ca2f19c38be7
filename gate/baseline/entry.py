"""The committed baseline: one entry, and one file, for each environment it was recorded in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from gate.baseline.acceptance import FarFromPeers, Movement, RecordedPrice
from gate.comparison.differences import KnobCosts
from gate.data.data_sets import DataSets
from gate.evidence.configuration import ConfigurationValues
from gate.evidence.run_evidence import CheckpointManifest, MetricSeries, RankRecord
from gate.evidence.step_columns import StepDigests
from gate.evidence.step_work import Given, SeedResults
from gate.text.digests import sha256_hex
from gate.text.document import Document, Timestamp
from gate.text.json_text import canonical_json
from gate.training.environment import CPU, DEVICE, Environment

BASELINE_SCHEMA: Final = "repro-gate.baseline/1"
ENTRY_SCHEMA: Final = "repro-gate.baseline-entry/1"
# of all entries together, and of one
MAX_BASELINE_BYTES: Final = 16 * 1024 * 1024
MAX_ENTRY_BYTES: Final = 8 * 1024 * 1024
MAX_ENTRIES: Final = 500
# what a gate call would record, beside its other documents; `baseline accept` takes it over
PROPOSED_BASELINE: Final = "proposed-baseline.json"
MAX_REASON: Final = 500
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
    `files_sha256` is the digest of the files that the training got and of the settings, empty where
    it got all of the commit, or where something that it did might have read others.
    `configuration` is what the training parsed, composed and read, for a reader alone.
    `digest` is the SHA-256 of all the rest: a number that was edited by hand shows.
    """

    schema_version: Literal["repro-gate.baseline-entry/1"] = ENTRY_SCHEMA
    commit: str = Field(max_length=64)
    recorded_at: Timestamp
    reason: str = Field(default="", max_length=MAX_REASON)
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
    files_sha256: str = Field(default="", max_length=64)
    configuration: ConfigurationValues = Field(default_factory=dict)
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
        if not self.files_sha256:
            written.pop("files_sha256", None)
        if not self.configuration:
            written.pop("configuration", None)
        return written

    @property
    def ranks(self) -> tuple[RankRecord, ...]:
        """None: an entry is a page for people, and has what all ranks recorded together."""
        return ()

    @property
    def provisional(self) -> bool:
        """Whether it may not judge yet: far from its peers, and recorded by one call alone."""
        return self.far is not None and self.recordings < CONFIRMING_RECORDINGS

    def age_days(self, now: str) -> int:
        """Whole days since it was recorded; a clock that runs behind makes no age negative."""
        elapsed = datetime.fromisoformat(now) - datetime.fromisoformat(self.recorded_at)
        return max(0, elapsed.days)


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

    base: Baseline | None
    head: Baseline | None
    same_code: frozenset[str] = frozenset()


SUFFIX: Final = ".json"
DIGITS: Final = 6
MAX_DEVICE: Final = 40
MAX_VERSION: Final = 20
# small letters alone: two names that differ in their case are one file on some disks
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,149}\.json")
_OTHER: Final = re.compile(r"[^a-z0-9.]+")


def entry_name(entry: BaselineEntry) -> str:
    """For example `cpu-1-rank-torch-2.13.0-1f65dc-2eb18f.json`.

    The words are for people; the digits at the end, of a SHA-256 over all parts of the environment
    and the training, make it the name of no other entry. So entries of different environments are
    different files, and a merge never meets two of them in one.
    """
    where = entry.environment
    device = where.part(DEVICE) if where.on_gpu else CPU
    ranks = where.part("world_size")
    ranks = ranks if ranks.isascii() and ranks.isdecimal() else "1"
    torch = where.part("torch").partition("+")[0]
    digest = sha256_hex(canonical_json([entry.training, where.parts]))
    words = (
        _plain(device, MAX_DEVICE) or "unknown",
        ranks[:MAX_VERSION],
        "rank" if ranks == "1" else "ranks",
        "torch",
        _plain(torch, MAX_VERSION) or "unknown",
        # apart, since seven and more are taken for a commit wherever a comment names the file
        digest[:DIGITS],
        digest[DIGITS : 2 * DIGITS],
    )
    return "-".join(words) + SUFFIX


def may_be_entry(name: str) -> bool:
    """Whether a file of this name could be an entry; such a name is safe as a path."""
    return _NAME.fullmatch(name) is not None


def _plain(text: str, most: int) -> str:
    return _OTHER.sub("-", text.lower())[:most].strip("-.")


SHOWN_SCHEMA: Final = "repro-gate.baseline-shown/1"
MAX_COMMITS: Final = 5


class EntryCommit(Document):
    """A commit that changed an entry's file.

    `reason` is the one that the entry gave then; None where it could not be read, such as in a
    commit that removed the file.
    """

    commit: str = Field(max_length=64)
    committed_at: str = Field(max_length=40)
    author: str = Field(max_length=100)
    reason: str | None = Field(default=None, max_length=MAX_REASON)


class ShownEntry(Document):
    """An entry, the name of its file, its age in days, and the newest commits of the file first."""

    file: str
    age_days: int
    stale: bool
    history: Annotated[tuple[EntryCommit, ...], Field(max_length=MAX_COMMITS)] = ()
    entry: BaselineEntry


class ShownBaseline(Document):
    """The document of `repro-gate baseline show --json`; entries in the order of their files."""

    schema_version: Literal["repro-gate.baseline-shown/1"] = SHOWN_SCHEMA
    entries: Annotated[tuple[ShownEntry, ...], Field(max_length=MAX_ENTRIES)]
