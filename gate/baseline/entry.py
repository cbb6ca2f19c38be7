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
# The limits for all entries together and for one entry.
MAX_BASELINE_BYTES: Final = 16 * 1024 * 1024
MAX_ENTRY_BYTES: Final = 8 * 1024 * 1024
MAX_ENTRIES: Final = 500
# The file in which a gate call proposes an entry; `baseline accept` reads it.
PROPOSED_BASELINE: Final = "proposed-baseline.json"
MAX_REASON: Final = 500
MAX_WHO: Final = 100
MAX_RUN_URL: Final = 300
# An entry that is far from its peers judges only after this number of calls gave the same bits.
CONFIRMING_RECORDINGS: Final = 2


class BaselineEntry(Document):
    """A file in the baseline's folder: a training's result in one environment, and its origin.

    Result: `training` has the settings that change the result (command, steps, seed, threads), each
    as JSON. An entry with different ones cannot be compared. `steps` keeps the fingerprints of the
    first steps, so that a drift can be diagnosed. `given` is what the steps were given. `seeded`
    has the results of several seeds and variants if the policy's level asks for them. `data` is the
    declared data. `configuration` is what the training parsed, composed and read; it is only shown.
    `files_sha256` is the digest of the settings and the files that the training got. It is empty
    where the training got the whole commit, or may have read other files.

    Reliability: `equal_runs` strict runs gave this result. That number of equal runs misses the
    share `missed_faults` of the faults that strike one run in ten. `recordings` counts the calls
    that gave exactly these bits here. An entry that is `far` from its peers judges after the
    second. `moved` is how far it is from the entry that it replaced. `knob_costs` and `price`, the
    cost of strict mode when it was recorded, are informational.

    Origin: `accepted_by`, `run_url` and `package_sha256` claim who accepted the entry, from which
    run on GitHub and from which package. They are unverified, and empty where unknown. `gate_id` is
    the id in the settings of the gate that recorded it, if a repository has several gates: two may
    train with the same command. `digest` is the SHA-256 of everything else, which reveals manual
    edits.
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
    # Two runs miss 0.1² + 0.9² of the faults that strike one run in ten.
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
        """Leave out empty optional fields: most trainings declare no data, some have no price."""
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
        """Empty: an entry is read by people, and records all ranks together."""
        return ()

    @property
    def provisional(self) -> bool:
        """Whether it may not judge yet: it is far from its peers, and only one call recorded it."""
        return self.far is not None and self.recordings < CONFIRMING_RECORDINGS

    def age_days(self, now: str) -> int:
        """Return the whole days since it was recorded; never negative, even with a slow clock."""
        elapsed = datetime.fromisoformat(now) - datetime.fromisoformat(self.recorded_at)
        return max(0, elapsed.days)


class Baseline(Document):
    """All entries of the folder `.repro-gate/baseline/`, sorted by file name."""

    schema_version: Literal["repro-gate.baseline/1"] = BASELINE_SCHEMA
    entries: tuple[BaselineEntry, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Baselines:
    """The baseline that decides, from the base commit (T2), and the pull request's own, if any.

    `same_code` are the commits of its entries whose files are exactly those of the commit under
    test, apart from the baseline itself.
    """

    base: Baseline | None
    head: Baseline | None
    same_code: frozenset[str] = frozenset()


SUFFIX: Final = ".json"
DIGITS: Final = 6
MAX_DEVICE: Final = 40
MAX_VERSION: Final = 20
# Lower case only: some file systems treat names that differ only in case as one file.
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,149}\.json")
_OTHER: Final = re.compile(r"[^a-z0-9.]+")


def entry_name(entry: BaselineEntry) -> str:
    """Return an entry's file name, such as `cpu-1-rank-torch-2.13.0-1f65dc-2eb18f.json`.

    The words are for people. The digits are from a SHA-256 over the training and all parts of the
    environment, and make the name unique. Entries of different environments are therefore different
    files, and a merge never has to combine two of them.
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
        # Two groups of six: GitHub takes seven or more digits for a commit where a comment names
        # the file.
        digest[:DIGITS],
        digest[DIGITS : 2 * DIGITS],
    )
    return "-".join(words) + SUFFIX


def may_be_entry(name: str) -> bool:
    """Return whether a file of this name could be an entry; such a name is a safe path."""
    return _NAME.fullmatch(name) is not None


def _plain(text: str, most: int) -> str:
    return _OTHER.sub("-", text.lower())[:most].strip("-.")


SHOWN_SCHEMA: Final = "repro-gate.baseline-shown/1"
MAX_COMMITS: Final = 5


class EntryCommit(Document):
    """A commit that changed an entry's file.

    `reason` is the entry's reason in that commit. It is None where the entry could not be read, for
    example in a commit that removed the file.
    """

    commit: str = Field(max_length=64)
    committed_at: str = Field(max_length=40)
    author: str = Field(max_length=100)
    reason: str | None = Field(default=None, max_length=MAX_REASON)


class ShownEntry(Document):
    """An entry with its file name, its age in days, and the commits of its file, newest first."""

    file: str
    age_days: int
    stale: bool
    history: Annotated[tuple[EntryCommit, ...], Field(max_length=MAX_COMMITS)] = ()
    entry: BaselineEntry


class ShownBaseline(Document):
    """The document of `repro-gate baseline show --json`; entries are sorted by file name."""

    schema_version: Literal["repro-gate.baseline-shown/1"] = SHOWN_SCHEMA
    entries: Annotated[tuple[ShownEntry, ...], Field(max_length=MAX_ENTRIES)]
