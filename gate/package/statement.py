"""The statement in a seal: an in-toto Statement v1 about a passing verdict.

Each fact is in one place only, so that no two parts of a statement can disagree. The commit and the
package are subjects, settings and baseline are policies, and the rest are the gate's claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel

from gate.data.data_sets import MAX_NAME
from gate.errors import AttestationError
from gate.evidence.run_evidence import SHA256_PATTERN, StateName, StateRoots, States
from gate.isolation.modes import RunIsolation
from gate.package.signing import printable, read_object, read_record
from gate.settings.data import MAX_SOURCES
from gate.settings.levels import ReachedLevel
from gate.text.document import Document, Timestamp
from gate.text.documents import fault_lines
from gate.text.json_text import canonical_json
from gate.verdict.verdict import Outcome, RecordedRuns

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
VERDICT_PREDICATE: Final = "https://in-toto.io/attestation/svr/v0.2"
CLAIMS_SCHEMA: Final = "repro-gate.claims/1"
Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]
GitHash = Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]
ShortText = Annotated[str, Field(max_length=500)]
# One notation for each moment, so that equal facts give equal bytes.
UtcTime = Annotated[Timestamp, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


class Property(StrEnum):
    """What a passing verdict established; a property that does not hold is left out."""

    GATE_PASSED = "REPRO_GATE_PASS"
    TWO_RUNS_IDENTICAL = "REPRO_GATE_TWO_RUNS_IDENTICAL"
    METRICS_WITHIN_BASELINE = "REPRO_GATE_METRICS_WITHIN_BASELINE"
    CHECKPOINT_MATCHES_BASELINE = "REPRO_GATE_CHECKPOINT_MATCHES_BASELINE"
    RESUMES_EXACTLY = "REPRO_GATE_RESUMES_EXACTLY"
    SURVIVES_KILLS = "REPRO_GATE_SAVE_SURVIVES_KILLS"


@dataclass(frozen=True, kw_only=True, slots=True)
class StatementFacts:
    """Everything that a statement about a passing verdict says.

    Digests are SHA-256 in lowercase hexadecimal, and `created_at` is UTC with whole seconds and a
    `Z`.

    - `commit` is the trained commit, and `strict_runs` of its runs were equal bit for bit. For a
      single run, `one_run` says which runs of the baseline it equals.
    - `states` has the roots of the packed states; `checkpoint_root` covers the states of all ranks.
    - `base_branch` and `base_commit` are what the commit was to be merged into, empty if it was
      judged alone.
    - With `imported_evidence`, the isolation is what another job reports.
    - `baseline_digest` is empty if no baseline was used, `configuration_digest` if no configuration
      of the training was seen.
    - `data` has (name, digest) of each declared data set, sorted by name.
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
    one_run: RecordedRuns | None = None
    configuration_digest: str = ""


class CamelDocument(Document):
    """A document whose keys are in camel case, as in-toto and Sigstore use it."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class FileDigest(CamelDocument):
    """A file's SHA-256."""

    sha256: Sha256


class CommitDigest(CamelDocument):
    """A git commit's hash."""

    git_commit: GitHash


class FileDescriptor(CamelDocument):
    """A file with its digest: the package, or a policy."""

    name: ShortText
    digest: FileDigest


class DataDescriptor(CamelDocument):
    """A declared data set, with the digest that docs/data.md defines."""

    name: str = Field(min_length=1, max_length=MAX_NAME)
    digest: FileDigest


class CommitDescriptor(CamelDocument):
    """The commit that was trained."""

    name: Literal["commit"] = "commit"
    digest: CommitDigest


class Verifier(CamelDocument):
    """Who judged, and the documents that decided."""

    id: ShortText
    policies: tuple[FileDescriptor, ...]

    @field_validator("policies")
    @classmethod
    def _settings_then_baseline(
        cls, value: tuple[FileDescriptor, ...]
    ) -> tuple[FileDescriptor, ...]:
        # The order is part of the statement: `_facts` reads the policies by position.
        if [policy.name for policy in value] not in (["settings"], ["settings", "baseline"]):
            message = "must be settings, then baseline if there was one"
            raise ValueError(message)
        return value


class ClaimedIsolation(CamelDocument, RunIsolation):
    """How the training was isolated, with a statement's keys."""


class ClaimedState(CamelDocument, StateRoots):
    """The roots of a state, with a statement's keys."""


class ClaimedRuns(CamelDocument, RecordedRuns):
    """The recorded runs that a single run equals, with a statement's keys."""


class GateClaims(CamelDocument):
    """The gate's extension of a Simple Verification Result.

    `one_run` is present exactly if `strict_runs` is 1, `configuration_digest` if any configuration
    of the training was seen.
    """

    schema_version: Literal["repro-gate.claims/1"] = CLAIMS_SCHEMA
    outcome: Outcome
    level: ReachedLevel
    strict_runs: int = Field(ge=1, le=1000)
    one_run: ClaimedRuns | None = None
    configuration_digest: Sha256 | Literal[""] = ""
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

    @model_validator(mode="after")
    def _one_run_rests_on_others(self) -> Self:
        if (self.strict_runs == 1) != (self.one_run is not None):
            message = "a single strict run names the recorded runs that it equals, and no other"
            raise ValueError(message)
        return self

    @model_serializer(mode="wrap")
    def _without_the_unseen(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Leave out empty optional claims, so that most statements do not mention them at all."""
        written: dict[str, object] = handler(self)
        # both spellings: the key depends on whether the caller dumps by alias
        if self.one_run is None:
            written.pop("oneRun", None)
            written.pop("one_run", None)
        if not self.configuration_digest:
            written.pop("configurationDigest", None)
            written.pop("configuration_digest", None)
        return written


class VerdictPredicate(CamelDocument):
    """A Simple Verification Result, version 0.2, with the gate's claims as its extension."""

    verifier: Verifier
    time_created: UtcTime
    properties: tuple[Property, ...]
    repro_gate: GateClaims

    @field_validator("properties")
    @classmethod
    def _says_pass(cls, value: tuple[Property, ...]) -> tuple[Property, ...]:
        # The gate seals only passes, so something else made a statement without this property.
        if Property.GATE_PASSED not in value:
            message = f"does not hold {Property.GATE_PASSED}"
            raise ValueError(message)
        return value


class Statement(CamelDocument):
    """An in-toto Statement, version 1, about exactly one package and one commit."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(default=STATEMENT_TYPE, alias="_type")
    subject: tuple[FileDescriptor, CommitDescriptor]
    predicate_type: Literal["https://in-toto.io/attestation/svr/v0.2"] = VERDICT_PREDICATE
    predicate: VerdictPredicate


VERIFIER_ID = "urn:repro-gate:verifier:v1"
MAX_STATEMENT_BYTES = 1024 * 1024
SOURCE = "the signed statement"
OTHER_HINT = "Verify it with the tool or the repro-gate version that made it."


def utc_time(timestamp: str) -> str:
    """Return an ISO 8601 time with an offset as in-toto wants it: UTC, whole seconds, a `Z`."""
    # One form, because two notations of a moment would give two different statements.
    return datetime.fromisoformat(timestamp).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_statement(facts: StatementFacts) -> bytes:
    """Return the payload to sign: canonical JSON, so equal facts give equal bytes.

    Raises `AttestationError` for facts that no statement can express, such as a missing digest.
    """
    try:
        statement = _statement(facts)
    except ValidationError as error:
        raise AttestationError(
            "these facts cannot be sealed",
            hint="Run the gate again; a statement needs all of them.",
            details=fault_lines(error, lambda _path: "", Statement),
        ) from error
    return canonical_json(statement.model_dump(mode="json", by_alias=True))


def _statement(facts: StatementFacts) -> Statement:
    policies = [_by_sha256("settings", facts.settings_digest)]
    if facts.baseline_digest:
        policies.append(_by_sha256("baseline", facts.baseline_digest))
    return Statement(
        subject=(
            _by_sha256(facts.package_name, facts.package_sha256),
            CommitDescriptor(digest=CommitDigest(git_commit=facts.commit)),
        ),
        predicate=VerdictPredicate(
            verifier=Verifier(id=VERIFIER_ID, policies=tuple(policies)),
            time_created=facts.created_at,
            properties=facts.properties,
            repro_gate=_claims(facts),
        ),
    )


def _claims(facts: StatementFacts) -> GateClaims:
    return GateClaims(
        outcome=facts.outcome,
        level=facts.level,
        strict_runs=facts.strict_runs,
        one_run=ClaimedRuns(**dict(facts.one_run)) if facts.one_run is not None else None,
        configuration_digest=facts.configuration_digest,
        package_size_bytes=facts.package_size_bytes,
        checkpoint_algorithm=facts.checkpoint_algorithm,
        checkpoint_root=facts.checkpoint_root,
        states=tuple(ClaimedState(**dict(state)) for state in facts.states),
        snapshot_digest=facts.snapshot_digest,
        isolation=ClaimedIsolation(**dict(facts.isolation)),
        imported_evidence=facts.imported_evidence,
        base_branch=facts.base_branch,
        base_commit=facts.base_commit,
        repository=facts.repository,
        run_id=facts.run_id,
        gate_version=facts.gate_version,
        data=tuple(
            DataDescriptor(name=name, digest=FileDigest(sha256=digest))
            for name, digest in facts.data
        ),
    )


def _by_sha256(name: str, digest: str) -> FileDescriptor:
    return FileDescriptor(name=name, digest=FileDigest(sha256=digest))


def read_statement(payload: bytes) -> StatementFacts:
    """Return the facts of a payload with a valid signature; the inverse of `write_statement`.

    Raises `AttestationError` for another statement or predicate type, an unknown or missing key,
    and other subjects or policies than the gate writes.
    """
    value = read_object(payload, SOURCE, max_bytes=MAX_STATEMENT_BYTES, hint=OTHER_HINT)
    # Types first: another type may use the same keys with other meanings.
    _require_type(value, "_type", STATEMENT_TYPE)
    _require_type(value, "predicateType", VERDICT_PREDICATE)
    statement = read_record(
        Statement, payload, SOURCE, max_bytes=MAX_STATEMENT_BYTES, hint=OTHER_HINT
    )
    verifier = statement.predicate.verifier.id
    # Another program may write the same predicate type, but mean other things by its claims.
    if verifier != VERIFIER_ID:
        raise AttestationError(
            f"{SOURCE} names the verifier {printable(verifier)!r}, "
            f"only {VERIFIER_ID!r} is accepted",
            hint=OTHER_HINT,
        )
    facts = _facts(statement)
    # Rebuild and compare: a statement has one notation only, of its keys and of its numbers.
    if write_statement(facts) != payload:
        raise AttestationError(f"{SOURCE} is not written as repro-gate writes it", hint=OTHER_HINT)
    return facts


def _require_type(value: dict[str, object], key: str, expected_type: str) -> None:
    if value.get(key) != expected_type:
        type_found = printable(str(value.get(key)))
        raise AttestationError(
            f"{SOURCE} has {key} {type_found!r}, only {expected_type!r} is accepted",
            hint=OTHER_HINT,
        )


def _facts(statement: Statement) -> StatementFacts:
    package, commit = statement.subject
    predicate = statement.predicate
    claims = predicate.repro_gate
    # By position, which the record has checked: settings first, then at most one baseline.
    settings, *baseline = predicate.verifier.policies
    return StatementFacts(
        package_name=package.name,
        package_sha256=package.digest.sha256,
        package_size_bytes=claims.package_size_bytes,
        commit=commit.digest.git_commit,
        checkpoint_algorithm=claims.checkpoint_algorithm,
        checkpoint_root=claims.checkpoint_root,
        states=tuple(StateRoots(**dict(state)) for state in claims.states),
        outcome=claims.outcome,
        level=claims.level,
        strict_runs=claims.strict_runs,
        one_run=RecordedRuns(**dict(claims.one_run)) if claims.one_run is not None else None,
        configuration_digest=claims.configuration_digest,
        properties=predicate.properties,
        settings_digest=settings.digest.sha256,
        baseline_digest=baseline[0].digest.sha256 if baseline else "",
        snapshot_digest=claims.snapshot_digest,
        isolation=RunIsolation(**dict(claims.isolation)),
        imported_evidence=claims.imported_evidence,
        base_branch=claims.base_branch,
        base_commit=claims.base_commit,
        created_at=predicate.time_created,
        repository=claims.repository,
        run_id=claims.run_id,
        gate_version=claims.gate_version,
        data=tuple((data_set.name, data_set.digest.sha256) for data_set in claims.data),
    )
