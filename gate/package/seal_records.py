"""Records about seals: what is signed and by whom, which keys are trusted, what was verified."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, field_validator, model_validator

from gate.evidence.run_evidence import States
from gate.isolation.modes import IsolationMode, RunIsolation
from gate.text.document import Document, Timestamp

TRUST_SCHEMA: Final = "repro-gate.trusted-keys/1"
# in characters, for a comment or a reason
MAX_KEY_TEXT: Final = 200


class KeyStatus(StrEnum):
    """Whether a key's signatures count: active always, retired until its date, revoked never."""

    ACTIVE = "active"
    RETIRED = "retired"
    REVOKED = "revoked"


class KeyAlgorithm(StrEnum):
    """The algorithm that a key signs with: ECDSA on P-256 with SHA-256, or Ed25519 (RFC 8032)."""

    ECDSA_P256 = "ecdsa-p256"
    ED25519 = "ed25519"


# the payload's type in a seal's envelope, and the names of algorithms in a trust file
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
ECDSA_P256: Final = "PKIX_ECDSA_P256_SHA_256"
ED25519: Final = "PKIX_ED25519"
KeyDetails = Literal["PKIX_ECDSA_P256_SHA_256", "PKIX_ED25519"]


class TrustedKey(Document):
    """A public key, named by the SHA-256 of its DER SubjectPublicKeyInfo.

    `raw_bytes` is that DER in base64. The algorithm to verify with comes from `key_details`, never
    from an envelope. `retired_at` is when a key was retired: what it sealed until then still
    counts. `revoked_at` is from when on a revoked key may have been in other hands, and `reason`
    says why.
    """

    key_id: str = Field(pattern=r"^[0-9a-f]{64}$")
    raw_bytes: str = Field(max_length=2000)
    key_details: KeyDetails
    status: KeyStatus = KeyStatus.ACTIVE
    added_at: Timestamp
    retired_at: Timestamp | None = None
    revoked_at: Timestamp | None = None
    reason: str = Field(default="", max_length=MAX_KEY_TEXT)
    comment: str = Field(default="", max_length=MAX_KEY_TEXT)

    @model_validator(mode="after")
    def _dated(self) -> TrustedKey:
        # Without the date a retired key would count for every seal, including new ones.
        if self.status is KeyStatus.RETIRED and self.retired_at is None:
            message = "a retired key needs retired_at, the time from which its seals do not count"
            raise ValueError(message)
        if (self.status is KeyStatus.REVOKED) != (self.revoked_at is not None):
            message = "a revoked key needs revoked_at, and no other key has it"
            raise ValueError(message)
        # Refuse the trace of an edit that undoes a retirement.
        if self.status is KeyStatus.ACTIVE and self.retired_at is not None:
            message = "an active key has no retired_at: a key that was retired stays retired"
            raise ValueError(message)
        return self


class TrustedKeys(Document):
    """The file `.repro-gate/trusted-keys.json`."""

    schema_version: Literal["repro-gate.trusted-keys/1"] = TRUST_SCHEMA
    keys: tuple[TrustedKey, ...]

    @field_validator("keys")
    @classmethod
    def _distinct(cls, value: tuple[TrustedKey, ...]) -> tuple[TrustedKey, ...]:
        """A key that is listed twice could be revoked in one entry and active in the other."""
        if len({key.key_id for key in value}) != len(value):
            message = "a key id is listed twice"
            raise ValueError(message)
        return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """A key's signature over a payload; the key id is a hint that nobody signs."""

    key_id: str
    value: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """A DSSE envelope, with the payload's exact signed bytes.

    `hint` names the key in a bundle. Neither the hint nor a signature's key id is signed.
    """

    payload: bytes
    payload_type: str
    signatures: tuple[Signature, ...]
    hint: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SealContext:
    """What a statement says beyond the verdict: the version, repository and job that made it.

    `baseline_digest` is the SHA-256 of the baseline that was compared with, or empty.
    """

    gate_version: str
    repository: str = ""
    run_id: str = ""
    baseline_digest: str = ""


class StatementKind(StrEnum):
    """What a statement is about: the result, how it was made, or the saved model by itself."""

    VERDICT = "verdict"
    PROVENANCE = "provenance"
    MODEL = "model"


@dataclass(frozen=True, kw_only=True, slots=True)
class SealFile:
    """A seal in one of its written forms; `name` is what messages call it.

    `kind` is the statement that a file of this name must contain, or None if the name says nothing.
    """

    name: str
    content: bytes
    kind: StatementKind | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageMember:
    """A file to pack, by its POSIX name; exactly one of `content` and `path` is set.

    `sha256` is the digest that the bytes at `path` must have, or empty if it is not known yet.
    """

    name: str
    content: bytes | None = None
    path: Path | None = None
    sha256: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """A written package, with the digests that a statement binds.

    `members` has (name, SHA-256) in the archive's order, with `SHA256SUMS` last.
    """

    path: Path
    sha256: str
    size_bytes: int
    members: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveMember:
    """A member as it was read; `content` is set only for members that were asked for."""

    name: str
    size_bytes: int
    sha256: str
    content: bytes | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """A package as it was read, with its digest over all bytes."""

    sha256: str
    size_bytes: int
    members: tuple[ArchiveMember, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What the caller demands of a seal: the full commit hash, and every other field that is set.

    `not_before` is in UTC; the time in a seal is the signer's claim, not a proof. `least_isolation`
    is the weakest isolation that is accepted, and another job's report proves none. `base_branch`
    is the branch that the commit must have been judged for.
    """

    commit: str
    repository: str = ""
    base_branch: str = ""
    not_before: datetime | None = None
    least_isolation: IsolationMode = IsolationMode.NONE


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedPackage:
    """What a verification established; `notes` are sentences that a reader should see.

    Either `key_id` names the signer, or `identity` and `issuer` do. In the second case `logged_at`
    is the log's own time (UTC). `seals` are the names of the checked files, `statements` their
    kinds, and `states` the roots of the packed states. `one_run` says which recorded runs a single
    strict run equals, and is empty if there were several runs. `configuration_digest` is the one of
    `repro-gate config-hash`, empty if no configuration was seen. `model_folder` is the folder that
    the model's own signature covers, empty without one.
    """

    key_id: str
    identity: str
    issuer: str
    logged_at: str
    commit: str
    outcome: str
    level: str
    strict_runs: int
    one_run: str
    configuration_digest: str
    created_at: str
    checkpoint_root: str
    states: States
    members: int
    package_sha256: str
    isolation: RunIsolation
    imported_evidence: bool
    base_branch: str
    base_commit: str
    repository: str
    properties: tuple[str, ...]
    seals: tuple[str, ...]
    statements: tuple[StatementKind, ...]
    model_folder: str
    model_files: int
    notes: tuple[str, ...] = ()
