"""Seal without a key of one's own: with a certificate for the job, kept in a Sigstore bundle.

The steps are those of Sigstore's own clients: identity token, certificate, signature, log entry.
The result is verified as a stranger would verify it before anything is written.

The bundle is read as strictly as the one with a key hint: one certificate, one log entry with
promise and proof, and no unknown key. Numbers of 64 bits are strings, as in every protobuf that is
written as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import Field

from gate.errors import AttestationError, SealServiceError
from gate.package.envelope import (
    BUNDLE_TYPE,
    DAMAGED_HINT,
    BundleEnvelope,
    bundle_envelope,
    encode_base64,
    seal_text,
    sign,
    write_envelope,
)
from gate.package.keys import KeyFile, PrivateKey, generate_private_key
from gate.package.seal_records import PAYLOAD_TYPE, Envelope, SealFile, Signature
from gate.package.signing import (
    Identity,
    IdentityRequest,
    LogEntry,
    SealServices,
    decode_base64,
    printable,
    read_object,
    read_record,
)
from gate.package.statement import CamelDocument
from gate.text.package_names import MAX_SEAL_BYTES

ENTRY_KIND: Final = "dsse"
ENTRY_VERSION: Final = "0.0.1"
MAX_PROOF_HASHES = 64
# At most 19 digits, and no leading zero: one notation for each 64-bit number.
Number = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,18})$")]
Base64 = Annotated[str, Field(max_length=MAX_SEAL_BYTES)]


class RawCertificate(CamelDocument):
    """The certificate of the key that signed, in DER and base64."""

    raw_bytes: Base64


class KeyId(CamelDocument):
    """Names a transparency log by the SHA-256 of its key."""

    key_id: Base64


class KindVersion(CamelDocument):
    """The kind and version of a log entry; the gate makes and accepts only one."""

    kind: Literal["dsse"] = ENTRY_KIND
    version: Literal["0.0.1"] = ENTRY_VERSION


class Promise(CamelDocument):
    """The log's signature over the entry and its time: its promise to include the entry."""

    signed_entry_timestamp: Base64


class Checkpoint(CamelDocument):
    """The signed head of the log's tree."""

    envelope: str = Field(max_length=10_000)


class Proof(CamelDocument):
    """The inclusion proof: the hashes that lead from the entry to the head of the tree."""

    log_index: Number
    root_hash: Base64
    tree_size: Number
    hashes: tuple[Base64, ...] = Field(max_length=MAX_PROOF_HASHES)
    checkpoint: Checkpoint


class TlogEntry(CamelDocument):
    """An entry of a transparency log, with its promise and its proof."""

    log_index: Number
    log_id: KeyId
    kind_version: KindVersion
    integrated_time: Number
    inclusion_promise: Promise
    inclusion_proof: Proof
    canonicalized_body: Base64


class CertifiedMaterial(CamelDocument):
    """Everything beside the signature that a verifier needs: the certificate and its log entry."""

    certificate: RawCertificate
    tlog_entries: tuple[TlogEntry]


class IdentityBundle(CamelDocument):
    """A Sigstore bundle with a certificate."""

    media_type: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"] = BUNDLE_TYPE
    verification_material: CertifiedMaterial
    dsse_envelope: BundleEnvelope

    @property
    def certificate(self) -> bytes:
        """Return the certificate as DER; raises `AttestationError` if it is not base64."""
        return decode_base64(self.verification_material.certificate.raw_bytes, "the certificate")

    @property
    def integrated_seconds(self) -> int:
        """Return when the log accepted the entry, in seconds since 1970."""
        return int(self.verification_material.tlog_entries[0].integrated_time)


def write_identity_bundle(envelope: Envelope, certificate: bytes, entry: LogEntry) -> bytes:
    """Return the bundle for an envelope with one signature; `certificate` is DER."""
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
            hashes=tuple(encode_base64(hash_) for hash_ in entry.hashes),
            checkpoint=Checkpoint(envelope=entry.checkpoint),
        ),
        canonicalized_body=encode_base64(entry.body),
    )


def read_identity_bundle(seal: SealFile) -> IdentityBundle:
    """Read a bundle; nothing in it is verified yet.

    Raises `AttestationError` for a bundle that is too large, is not strict JSON, or has an unknown
    key, and for a seal by key.
    """
    limit = MAX_SEAL_BYTES
    value = read_object(seal.content, seal.name, max_bytes=limit, hint=DAMAGED_HINT)
    material = value.get("verificationMaterial")
    # A bare envelope, or a bundle with a key hint: name the option that verifies it.
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


MAX_CLAIMS_BYTES = 64 * 1024
JWT_PARTS = 3
# The claim in GitHub's tokens that Fulcio puts into the certificate, after the server's address.
WORKFLOW_CLAIM: Final = "job_workflow_ref"
RUNNER_HINT = "The token comes from the runner; run the job again."


@dataclass(frozen=True, kw_only=True, slots=True)
class IdentitySeal:
    """A verified bundle, and the identity that its certificate names."""

    bundle: bytes
    identity: Identity


def seal_by_identity(
    statement: bytes,
    request: IdentityRequest,
    services: SealServices,
    trusted_root: bytes | None,
) -> IdentitySeal:
    """Sign a statement as the job that runs this process.

    The key exists only during this call and is never stored. Raises `AttestationError` if a service
    gives no answer or a wrong one.
    """
    token = services.identity_token(request)
    identity = token_identity(token, request.server_url)
    key = generate_private_key()
    certificate = services.certificate(token, _signing_request(key))
    _check_certified(certificate, key)
    # No key id: it would name a key that nobody ever sees again.
    envelope = _without_key_ids(sign(statement, PAYLOAD_TYPE, KeyFile(key)))
    entry = services.entry(write_envelope(envelope), certificate)
    bundle = write_identity_bundle(envelope, certificate, entry)
    # Verify before returning: a bundle that a stranger cannot verify must not be written.
    signed = services.verified(bundle, identity, trusted_root)
    if signed.payload != statement or signed.payload_type != PAYLOAD_TYPE:
        raise SealServiceError("the bundle holds another statement", hint=RUNNER_HINT)
    return IdentitySeal(bundle=bundle, identity=identity)


def token_identity(token: str, server_url: str) -> Identity:
    """Return the identity that a certificate for this token has to name.

    It is read from the token's claims. The token's signature is not checked here: that is the
    certificate authority's task. Raises `SealServiceError` for anything but a token of a GitHub
    Actions job. No message repeats the token.
    """
    parts = token.split(".")
    if len(parts) != JWT_PARTS:
        raise SealServiceError("the identity token is not a JWT", hint=RUNNER_HINT)
    try:
        # a JWT omits the padding (RFC 7515, 2), which strict base64 requires
        claims = read_object(
            decode_base64(parts[1] + "=" * (-len(parts[1]) % 4), "the identity token"),
            "the identity token",
            max_bytes=MAX_CLAIMS_BYTES,
            hint=RUNNER_HINT,
        )
    except AttestationError as error:
        raise SealServiceError("the identity token cannot be read", hint=RUNNER_HINT) from error
    workflow, issuer = claims.get(WORKFLOW_CLAIM), claims.get("iss")
    if not isinstance(workflow, str) or not isinstance(issuer, str) or not workflow or not issuer:
        raise SealServiceError(
            f"the identity token has no {WORKFLOW_CLAIM}",
            hint="Keyless seals are made in a job of GitHub Actions; elsewhere sign with a key.",
        )
    return Identity(name=f"{server_url}/{workflow}", issuer=issuer)


def _signing_request(key: PrivateKey) -> bytes:
    """Return a PKCS#10 request (PEM), signed by its own key as proof of possession."""
    # No subject: Fulcio certifies the identity in the token and ignores the request's.
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return request.sign(key, SHA256()).public_bytes(Encoding.PEM)


def _check_certified(certificate: bytes, key: PrivateKey) -> None:
    """Refuse a certificate for another key, before the log publishes it with the signature."""
    try:
        certified = x509.load_der_x509_certificate(certificate).public_key()
    except ValueError as error:
        raise SealServiceError(
            f"Fulcio's certificate cannot be read: {printable(str(error))}", hint=RUNNER_HINT
        ) from error
    if certified != key.public_key():
        raise SealServiceError(
            "Fulcio's certificate is about another key",
            hint="Check signing.fulcio_url, and the proxy in between.",
        )


def _without_key_ids(envelope: Envelope) -> Envelope:
    return Envelope(
        payload=envelope.payload,
        payload_type=envelope.payload_type,
        signatures=tuple(
            Signature(key_id="", value=signature.value) for signature in envelope.signatures
        ),
    )
