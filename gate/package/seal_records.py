"""Seals: what is signed, by whom, and who is trusted."""

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
# Characters of a comment or a reason.
MAX_KEY_TEXT: Final = 200


class KeyStatus(StrEnum):
    """Whether signatures of a key still count."""

    ACTIVE = "active"
    RETIRED = "retired"
    REVOKED = "revoked"


class KeyAlgorithm(StrEnum):
    """What a key signs with: ECDSA on P-256 with SHA-256, or Ed25519 (RFC 8032)."""

    ECDSA_P256 = "ecdsa-p256"
    ED25519 = "ed25519"


# what a seal's envelope says of its payload, and a trust file of a key's algorithm
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
ECDSA_P256: Final = "PKIX_ECDSA_P256_SHA_256"
ED25519: Final = "PKIX_ED25519"
KeyDetails = Literal["PKIX_ECDSA_P256_SHA_256", "PKIX_ED25519"]


class TrustedKey(Document):
    """A public key, named by the SHA-256 of its DER SubjectPublicKeyInfo.

    `raw_bytes` is that DER in base64. The algorithm comes from here, never from an envelope. A
    retired key says since when (`retired_at`): what it sealed until then still counts. A revoked
    one says from when on it may have been in other hands (`revoked_at`), and why (`reason`).
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
        # without its date a retired key would count for every seal, new ones included
        if self.status is KeyStatus.RETIRED and self.retired_at is None:
            message = "a retired key needs retired_at, the time from which its seals do not count"
            raise ValueError(message)
        if (self.status is KeyStatus.REVOKED) != (self.revoked_at is not None):
            message = "a revoked key needs revoked_at, and no other key has it"
            raise ValueError(message)
        # what is left of an edit that takes a retirement back
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
        """A key listed twice could be revoked in one line and active in the next."""
        if len({key.key_id for key in value}) != len(value):
            message = "a key id is listed twice"
            raise ValueError(message)
        return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """Bytes that a key made over a payload; the key id is a hint only."""

    key_id: str
    value: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """A DSSE envelope: the payload exactly as it was signed.

    `hint` names a key as a bundle does; nobody signs it, as nobody signs a key id.
    """

    payload: bytes
    payload_type: str
    signatures: tuple[Signature, ...]
    hint: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SealContext:
    """What a statement says beside the verdict: where and by what it was made.

    `baseline_digest` is the SHA-256 of the baseline that was compared with, or empty.
    """

    gate_version: str
    repository: str = ""
    run_id: str = ""
    baseline_digest: str = ""


class StatementKind(StrEnum):
    """What a statement is about: the result, how it came about, the saved model by itself."""

    VERDICT = "verdict"
    PROVENANCE = "provenance"
    MODEL = "model"


@dataclass(frozen=True, kw_only=True, slots=True)
class SealFile:
    """A seal in one of its forms; `name` is what messages call it.

    `kind` is the statement that belongs into a file of that name, None where the name tells none.
    """

    name: str
    content: bytes
    kind: StatementKind | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageMember:
    """A file of the package, by its POSIX name; exactly one of `content` and `path` is set.

    `sha256` is what the bytes at `path` must have, when that is known already.
    """

    name: str
    content: bytes | None = None
    path: Path | None = None
    sha256: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """A written package and the digests that a statement binds.

    `members` holds (name, SHA-256) in the order of the archive, its `SHA256SUMS` last.
    """

    path: Path
    sha256: str
    size_bytes: int
    members: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveMember:
    """A member as it was read; `content` is kept only for members that were asked for."""

    name: str
    size_bytes: int
    sha256: str
    content: bytes | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """A package as it was read, in one pass."""

    sha256: str
    size_bytes: int
    members: tuple[ArchiveMember, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What the caller demands of a seal; a full commit hash, and what else is given.

    `not_before` is in UTC. The time in a seal is the signer's claim, no proof. `least_isolation` is
    the weakest isolation that is accepted, and what another job reports counts for none.
    `base_branch` is the branch that the commit must have been judged for.
    """

    commit: str
    repository: str = ""
    base_branch: str = ""
    not_before: datetime | None = None
    least_isolation: IsolationMode = IsolationMode.NONE


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedPackage:
    """What a verification established; `notes` are sentences that a reader should see.

    Either `key_id` says who sealed, or `identity` and `issuer` do; only then is `logged_at`, the
    log's own time (UTC), there. `seals` are the names of the files that were checked, `statements`
    what they say, `states` the roots of what is packed. `one_run` says which recorded runs a single
    strict run equals, and is empty where there were several. `configuration_digest` is that of
    `repro-gate config-hash`, empty where nothing was seen. `model_folder` is the folder that the
    model's own signature covers, empty without one.
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
