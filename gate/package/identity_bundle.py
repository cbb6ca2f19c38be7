"""The Sigstore bundle of a seal without a key: v0.3 with a certificate and an entry of a log.

As strict as the bundle with a key hint: one certificate, one entry with promise and proof, and no
key that is unknown. Numbers of 64 bits are texts, as in every protobuf that is written as JSON.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from gate.errors import AttestationError
from gate.package.envelope import (
    BUNDLE_TYPE,
    DAMAGED_HINT,
    BundleEnvelope,
    bundle_envelope,
    encode_base64,
    seal_text,
)
from gate.package.identity import LogEntry
from gate.package.seal_records import Envelope, SealFile
from gate.package.sealed_statement import CamelDocument
from gate.package.signing import decode_base64, read_object, read_record
from gate.text.members import MAX_SEAL_BYTES

ENTRY_KIND: Final = "dsse"
ENTRY_VERSION: Final = "0.0.1"
MAX_PROOF_HASHES = 64
Number = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,18})$")]
Base64 = Annotated[str, Field(max_length=MAX_SEAL_BYTES)]


class RawCertificate(CamelDocument):
    """The certificate of the key that signed, as DER."""

    raw_bytes: Base64


class KeyId(CamelDocument):
    """Which log: the SHA-256 of its key."""

    key_id: Base64


class KindVersion(CamelDocument):
    """What kind of entry it is."""

    kind: Literal["dsse"] = ENTRY_KIND
    version: Literal["0.0.1"] = ENTRY_VERSION


class Promise(CamelDocument):
    """The log's signature over the entry and its time."""

    signed_entry_timestamp: Base64


class Checkpoint(CamelDocument):
    """The signed head of the log's tree."""

    envelope: str = Field(max_length=10_000)


class Proof(CamelDocument):
    """The way from the entry up to the head of the tree."""

    log_index: Number
    root_hash: Base64
    tree_size: Number
    hashes: tuple[Base64, ...] = Field(max_length=MAX_PROOF_HASHES)
    checkpoint: Checkpoint


class TlogEntry(CamelDocument):
    """An entry of a transparency log."""

    log_index: Number
    log_id: KeyId
    kind_version: KindVersion
    integrated_time: Number
    inclusion_promise: Promise
    inclusion_proof: Proof
    canonicalized_body: Base64


class CertifiedMaterial(CamelDocument):
    """Everything beside the signature that a verifier needs."""

    certificate: RawCertificate
    tlog_entries: tuple[TlogEntry]


class IdentityBundle(CamelDocument):
    """A Sigstore bundle with a certificate."""

    media_type: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"] = BUNDLE_TYPE
    verification_material: CertifiedMaterial
    dsse_envelope: BundleEnvelope

    @property
    def certificate(self) -> bytes:
        """The certificate as DER; `AttestationError` when it is no base64."""
        return decode_base64(self.verification_material.certificate.raw_bytes, "the certificate")

    @property
    def integrated_seconds(self) -> int:
        """When the log took the entry in, in seconds since 1970."""
        return int(self.verification_material.tlog_entries[0].integrated_time)


def write_identity_bundle(envelope: Envelope, certificate: bytes, entry: LogEntry) -> bytes:
    """The bundle of an envelope with one signature; `certificate` is DER."""
    material = CertifiedMaterial(
        certificate=RawCertificate(raw_bytes=encode_base64(certificate)),
        tlog_entries=(_tlog_entry(entry),),
    )
    return seal_text(
        IdentityBundle(verification_material=material, dsse_envelope=bundle_envelope(envelope))
    )


def _tlog_entry(entry: LogEntry) -> TlogEntry:
    return TlogEntry(
        log_index=str(entry.log_index),
        log_id=KeyId(key_id=encode_base64(entry.log_id)),
        kind_version=KindVersion(),
        integrated_time=str(entry.integrated_seconds),
        inclusion_promise=Promise(
            signed_entry_timestamp=encode_base64(entry.signed_entry_timestamp)
        ),
        inclusion_proof=Proof(
            log_index=str(entry.proof_index),
            root_hash=encode_base64(entry.root_hash),
            tree_size=str(entry.tree_size),
            hashes=tuple(encode_base64(each) for each in entry.hashes),
            checkpoint=Checkpoint(envelope=entry.checkpoint),
        ),
        canonicalized_body=encode_base64(entry.body),
    )


def read_identity_bundle(seal: SealFile) -> IdentityBundle:
    """Read a bundle; nothing in it is verified yet.

    Raises `AttestationError` for what is too large, not strict JSON, or holds another key.
    """
    limit = MAX_SEAL_BYTES
    value = read_object(seal.content, seal.name, max_bytes=limit, hint=DAMAGED_HINT)
    material = value.get("verificationMaterial")
    if "signatures" in value or (isinstance(material, dict) and "publicKey" in material):
        raise AttestationError(
            f"{seal.name} is sealed with a key, not with a certificate",
            hint="Verify it with --trusted-keys.",
        )
    return read_record(
        IdentityBundle,
        seal.content,
        seal.name,
        max_bytes=limit,
        hint=DAMAGED_HINT,
    )
