"""What a seal says: the facts, and the in-toto Statement v1 that they are written as."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from gate.data.data_sets import MAX_NAME
from gate.evidence.run_evidence import SHA256_PATTERN
from gate.evidence.state_roots import StateName, StateRoots, States
from gate.isolation.modes import RunIsolation
from gate.settings.data import MAX_SOURCES
from gate.settings.levels import ReachedLevel
from gate.text.records_document import Document, Timestamp
from gate.verdict.verdict import Outcome

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
VERDICT_PREDICATE: Final = "https://in-toto.io/attestation/svr/v0.2"
CLAIMS_SCHEMA: Final = "repro-gate.claims/1"
Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]
GitHash = Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]
ShortText = Annotated[str, Field(max_length=500)]
# One notation of each moment, so that equal facts are equal bytes.
UtcTime = Annotated[Timestamp, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


class Property(StrEnum):
    """What a passing verdict established; one that does not hold is left out."""

    GATE_PASSED = "REPRO_GATE_PASS"
    TWO_RUNS_IDENTICAL = "REPRO_GATE_TWO_RUNS_IDENTICAL"
    METRICS_WITHIN_BASELINE = "REPRO_GATE_METRICS_WITHIN_BASELINE"
    CHECKPOINT_MATCHES_BASELINE = "REPRO_GATE_CHECKPOINT_MATCHES_BASELINE"


@dataclass(frozen=True, kw_only=True, slots=True)
class StatementFacts:
    """Everything that a statement about a passing verdict says.

    `data` are name and digest of each declared data set, in the order of the names; `states` the
    roots of what is packed, and `checkpoint_root` is over the states of all ranks.
    `commit` is the trained commit, of which `strict_runs` runs were equal bit for bit;
    `base_branch` and `base_commit` are what the commit was to be merged into, empty where it was
    judged alone. With `imported_evidence` another job says how the training was isolated.
    `baseline_digest` is empty when no baseline was used. Digests are SHA-256 in lowercase
    hexadecimal, `created_at` is UTC with whole seconds and a `Z`.
    """

    package_name: str
    package_sha256: str
    package_size_bytes: int
    commit: str
    checkpoint_algorithm: str
    checkpoint_root: str
    outcome: Outcome
    level: ReachedLevel
    properties: tuple[Property, ...]
    strict_runs: int
    settings_digest: str
    baseline_digest: str
    snapshot_digest: str
    isolation: RunIsolation
    imported_evidence: bool
    base_branch: str
    base_commit: str
    created_at: str
    repository: str
    run_id: str
    gate_version: str
    states: States
    data: tuple[tuple[str, str], ...] = ()


class CamelDocument(Document):
    """A document whose keys are written in the camel case that in-toto and Sigstore use."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class FileDigest(CamelDocument):
    """A file's identity."""

    sha256: Sha256


class CommitDigest(CamelDocument):
    """A git commit's identity."""

    git_commit: GitHash


class FileDescriptor(CamelDocument):
    """A file, named and identified: the package, or a policy."""

    name: ShortText
    digest: FileDigest


class DataDescriptor(CamelDocument):
    """A declared data set, by the digest of docs/data.md."""

    name: str = Field(min_length=1, max_length=MAX_NAME)
    digest: FileDigest


class CommitDescriptor(CamelDocument):
    """The commit that was trained."""

    name: Literal["commit"] = "commit"
    digest: CommitDigest


class Verifier(CamelDocument):
    """Who came to the verdict, and the documents that it was judged by."""

    id: ShortText
    policies: tuple[FileDescriptor, ...]

    @field_validator("policies")
    @classmethod
    def _settings_then_baseline(
        cls, value: tuple[FileDescriptor, ...]
    ) -> tuple[FileDescriptor, ...]:
        if [policy.name for policy in value] not in (["settings"], ["settings", "baseline"]):
            message = "must be settings, then baseline if there was one"
            raise ValueError(message)
        return value


class ClaimedIsolation(CamelDocument, RunIsolation):
    """How the training was isolated, in the keys of a statement."""


class ClaimedState(CamelDocument, StateRoots):
    """The roots of a state, in the keys of a statement."""


class GateClaims(CamelDocument):
    """What repro-gate adds to a Simple Verification Result."""

    schema_version: Literal["repro-gate.claims/1"] = CLAIMS_SCHEMA
    outcome: Outcome
    level: ReachedLevel
    strict_runs: int = Field(ge=2, le=1000)
    package_size_bytes: int = Field(ge=0, le=2**53)
    checkpoint_algorithm: ShortText
    checkpoint_root: Sha256
    states: Annotated[tuple[ClaimedState, ...], Field(min_length=1, max_length=len(StateName))]
    snapshot_digest: Sha256
    isolation: ClaimedIsolation
    imported_evidence: bool
    base_branch: ShortText
    base_commit: GitHash | Literal[""]
    repository: ShortText
    run_id: ShortText
    gate_version: ShortText
    data: Annotated[tuple[DataDescriptor, ...], Field(max_length=MAX_SOURCES + 1)] = ()


class VerdictPredicate(CamelDocument):
    """A Simple Verification Result, version 0.2, with our claims as its extension."""

    verifier: Verifier
    time_created: UtcTime
    properties: tuple[Property, ...]
    repro_gate: GateClaims

    @field_validator("properties")
    @classmethod
    def _says_pass(cls, value: tuple[Property, ...]) -> tuple[Property, ...]:
        # nothing but a pass is ever sealed, so a statement without it was made by something else
        if Property.GATE_PASSED not in value:
            message = f"does not hold {Property.GATE_PASSED}"
            raise ValueError(message)
        return value


class Statement(CamelDocument):
    """An in-toto Statement, version 1, over exactly a package and a commit."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(default=STATEMENT_TYPE, alias="_type")
    subject: tuple[FileDescriptor, CommitDescriptor]
    predicate_type: Literal["https://in-toto.io/attestation/svr/v0.2"] = VERDICT_PREDICATE
    predicate: VerdictPredicate
