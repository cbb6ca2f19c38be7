"""The in-toto Statement v1 about a passing verdict, as a Simple Verification Result v0.2.

Each fact stands in one place only, so that no two parts of a statement can disagree: the commit
and the package are subjects, settings and baseline are policies, the rest are our claims.
"""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import ValidationError

from gate.errors import AttestationError
from gate.evidence.state_roots import StateRoots
from gate.isolation.modes import RunIsolation
from gate.package.sealed_statement import (
    STATEMENT_TYPE,
    VERDICT_PREDICATE,
    ClaimedIsolation,
    ClaimedState,
    CommitDescriptor,
    CommitDigest,
    DataDescriptor,
    FileDescriptor,
    FileDigest,
    GateClaims,
    Statement,
    StatementFacts,
    VerdictPredicate,
    Verifier,
)
from gate.package.signing import printable, read_object, read_record
from gate.text.documents import fault_lines
from gate.text.json_text import canonical_json

VERIFIER_ID = "urn:repro-gate:verifier:v1"
MAX_STATEMENT_BYTES = 1024 * 1024
SOURCE = "the signed statement"
OTHER_HINT = "Verify it with the tool or the repro-gate version that made it."


def utc_time(timestamp: str) -> str:
    """An ISO 8601 time with an offset, as UTC with whole seconds and a `Z`, as in-toto wants it."""
    # one form: two notations of one moment would be two statements
    return datetime.fromisoformat(timestamp).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_statement(facts: StatementFacts) -> bytes:
    """The payload to sign: canonical JSON, so equal facts give equal bytes.

    Raises `AttestationError` for facts that no statement can say, such as a missing digest.
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
    """The facts of a payload whose signature holds; the inverse of `write_statement`.

    Raises `AttestationError` for another statement or predicate type, for an unknown or missing
    key, and for other subjects or policies than ours.
    """
    value = read_object(payload, SOURCE, max_bytes=MAX_STATEMENT_BYTES, hint=OTHER_HINT)
    # before the rest is read: another type may use the same keys for other things
    _require_type(value, "_type", STATEMENT_TYPE)
    _require_type(value, "predicateType", VERDICT_PREDICATE)
    statement = read_record(
        Statement, payload, SOURCE, max_bytes=MAX_STATEMENT_BYTES, hint=OTHER_HINT
    )
    found = statement.predicate.verifier.id
    if found != VERIFIER_ID:
        raise AttestationError(
            f"{SOURCE} names the verifier {printable(found)!r}, only {VERIFIER_ID!r} is accepted",
            hint=OTHER_HINT,
        )
    facts = _facts(statement)
    # no second notation of one statement: not of its keys, and not of a number
    if write_statement(facts) != payload:
        raise AttestationError(f"{SOURCE} is not written as repro-gate writes it", hint=OTHER_HINT)
    return facts


def _require_type(value: dict[str, object], key: str, wanted: str) -> None:
    if value.get(key) != wanted:
        found = printable(str(value.get(key)))
        raise AttestationError(
            f"{SOURCE} has {key} {found!r}, only {wanted!r} is accepted", hint=OTHER_HINT
        )


def _facts(statement: Statement) -> StatementFacts:
    package, commit = statement.subject
    predicate = statement.predicate
    claims = predicate.repro_gate
    # by position, which the record has checked: settings first, then at most a baseline
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
        data=tuple((one.name, one.digest.sha256) for one in claims.data),
    )
