"""Sign bytes and read signed bytes, in two written forms: bare DSSE and a Sigstore bundle.

Formats: DSSE protocol 1.0.2 and Sigstore bundle v0.3. Both are read strictly, and an unknown key is
refused: a seal has no room for anything that is neither signed nor needed.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Final, Literal

from pydantic import Field

from gate.errors import AttestationError
from gate.package.keys import PublicKey, is_signature, key_id, public_key, trusted_public_key
from gate.package.seal_records import (
    Envelope,
    KeyStatus,
    SealFile,
    Signature,
    TrustedKey,
    TrustedKeys,
)
from gate.package.signing import Signer, decode_base64, printable, read_object, read_record
from gate.package.statement import CamelDocument
from gate.text.json_text import canonical_json
from gate.text.package_names import MAX_SEAL_BYTES


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that DSSE signs: payload type and payload, each preceded by its length."""
    kind = payload_type.encode("utf-8")
    # The lengths make the encoding unambiguous: no other type and payload give the same bytes (DSSE
    # protocol).
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(payload: bytes, payload_type: str, signer: Signer) -> Envelope:
    """Return an envelope with one signature.

    ECDSA draws a random nonce, so signing the same payload twice gives different bytes. Raises
    `AttestationError` if the signer's own public key does not verify the signature.
    """
    key = public_key(signer.public_key(), "the signer's public key")
    # Sign the encoding, never the payload alone: the type is then signed too and cannot be swapped.
    message = pae(payload_type, payload)
    value = signer.sign(message)
    # A key in a vault or token may have been replaced since, or its signature may have another
    # encoding. Fail now rather than when somebody verifies the package.
    if not is_signature(key, value, message):
        raise AttestationError(
            "the signer gave a signature that its own public key does not verify",
            hint="ECDSA takes SHA-256 of the message and gives DER, Ed25519 takes the message "
            "itself and gives 64 bytes; check that both answers come from the same key.",
        )
    signature = Signature(key_id=key_id(key), value=value)
    return Envelope(payload=payload, payload_type=payload_type, signatures=(signature,))


def verify(envelope: Envelope, trusted: TrustedKeys) -> TrustedKey:
    """Return the trusted key that signed the envelope; the caller reports a retired key.

    Every trusted key is tried, because the key id in an envelope is not signed and proves nothing.
    An active key is preferred to a retired one, and a revoked key never counts. Raises
    `AttestationError` if no active or retired key signed.
    """
    message = pae(envelope.payload_type, envelope.payload)
    signers = [
        key for key in trusted.keys if _signed_by(trusted_public_key(key), envelope, message)
    ]
    # REVOKED is missing on purpose: whoever stole the key can sign with any date, so no date in a
    # seal can rescue it.
    for status in (KeyStatus.ACTIVE, KeyStatus.RETIRED):
        for key in signers:
            if key.status is status:
                return key
    if signers:
        raise AttestationError(
            f"the signing key {signers[0].key_id[:16]} is revoked",
            hint="Run the gate again; a revoked key's seals no longer count.",
            details=_revoked_lines(signers[0]),
        )
    raise AttestationError(
        "no trusted key made this signature",
        hint="The seal was changed, or its key is not in the trust file; "
        "compare the key ids above.",
        details=_key_lines(envelope, trusted),
    )


def _signed_by(key: PublicKey, envelope: Envelope, message: bytes) -> bool:
    # The trusted key's type selects the algorithm, never the envelope: a forger cannot ask for a
    # weaker one.
    return any(is_signature(key, signature.value, message) for signature in envelope.signatures)


def _revoked_lines(key: TrustedKey) -> tuple[str, ...]:
    why = f"reason: {printable(key.reason)}"
    return (f"since: {key.revoked_at}", *((why,) if key.reason else ()))


def _key_lines(envelope: Envelope, trusted: TrustedKeys) -> tuple[str, ...]:
    named = [printable(signature.key_id)[:64] or "(none)" for signature in envelope.signatures]
    known = [f"{key.key_id} ({key.status})" for key in trusted.keys] or ["(none)"]
    return (f"key named by the seal: {', '.join(named)}", f"trusted keys: {', '.join(known)}")


BUNDLE_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
DAMAGED_HINT = "The seal was damaged, changed, or made by another tool; fetch it again."


class WireSignature(CamelDocument):
    """One signature of a bare envelope, in base64; `keyid` is a hint that nobody signs."""

    keyid: str = Field(default="", max_length=200)
    sig: str


class WireEnvelope(CamelDocument):
    """A bare DSSE envelope as it is written, with exactly one signature.

    DSSE allows several. A second signature would be unverified content in a seal, so it is refused.
    """

    payload: str
    payload_type: str = Field(max_length=200)
    signatures: tuple[WireSignature]


class AnonymousSignature(CamelDocument):
    """The signature in a bundle, without a key id: verifiers reject one that they did not make."""

    keyid: Literal[""] = Field(default="", exclude=True)
    sig: str


class BundleEnvelope(CamelDocument):
    """The DSSE envelope in a bundle, which has exactly one signature."""

    payload: str
    payload_type: str = Field(max_length=200)
    signatures: tuple[AnonymousSignature]


class KeyHint(CamelDocument):
    """Names the key: base64 of its DER's SHA-256, or the form that the reader expects."""

    hint: str = Field(max_length=200)


class VerificationMaterial(CamelDocument):
    """The key to verify with; there is no log entry, because a seal by key verifies none."""

    public_key: KeyHint
    tlog_entries: tuple[()] = ()


class Bundle(CamelDocument):
    """A Sigstore bundle that names its key by a hint instead of a certificate."""

    media_type: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"] = BUNDLE_TYPE
    verification_material: VerificationMaterial
    dsse_envelope: BundleEnvelope


def write_envelope(envelope: Envelope) -> bytes:
    """Return an envelope with one signature as bare DSSE; equal envelopes give equal bytes."""
    (signature,) = envelope.signatures
    wire = WireEnvelope(
        payload=encode_base64(envelope.payload),
        payload_type=envelope.payload_type,
        signatures=(WireSignature(keyid=signature.key_id, sig=encode_base64(signature.value)),),
    )
    return seal_text(wire)


def write_bundle(envelope: Envelope, *, hint: str = "") -> bytes:
    """Return an envelope with one signature as a Sigstore bundle.

    `hint` names the key; if it is empty, the key id in base64 is used.
    """
    (signature,) = envelope.signatures
    named = KeyHint(hint=hint or encode_base64(bytes.fromhex(signature.key_id)))
    return seal_text(
        Bundle(
            verification_material=VerificationMaterial(public_key=named),
            dsse_envelope=bundle_envelope(envelope),
        )
    )


def bundle_envelope(envelope: Envelope) -> BundleEnvelope:
    """Return an envelope with one signature in the form that a bundle contains."""
    (signature,) = envelope.signatures
    return BundleEnvelope(
        payload=encode_base64(envelope.payload),
        payload_type=envelope.payload_type,
        signatures=(AnonymousSignature(sig=encode_base64(signature.value)),),
    )


def read_envelope(seal: SealFile) -> Envelope:
    """Read a bare envelope or a bundle; nothing in it is verified yet.

    Raises `AttestationError` for a seal that is too large, or not strict JSON or base64. Also for
    an unknown key, and for a different number of signatures than the form allows.
    """
    limit = MAX_SEAL_BYTES
    value = read_object(seal.content, seal.name, max_bytes=limit, hint=DAMAGED_HINT)
    # This one key tells the two forms apart before anything else is read: each bundle names its
    # media type (protobuf-specs, sigstore_bundle.proto), and DSSE has no such field.
    if "mediaType" not in value:
        bare = read_record(
            WireEnvelope, seal.content, seal.name, max_bytes=limit, hint=DAMAGED_HINT
        )
        return _decoded(bare, seal.name)
    if value["mediaType"] != BUNDLE_TYPE:
        raise AttestationError(
            f"{seal.name}: not a Sigstore bundle v0.3", hint="Fetch the seal that repro-gate wrote."
        )
    material = value.get("verificationMaterial")
    if isinstance(material, dict) and "certificate" in material:
        raise AttestationError(
            f"{seal.name} is sealed with a certificate, not with a key",
            hint="Verify it with --certificate-identity and --certificate-oidc-issuer in place of "
            "--trusted-keys.",
        )
    # Read again with a model that lists every key, so that unsigned content has nowhere to hide.
    bundle = read_record(Bundle, seal.content, seal.name, max_bytes=limit, hint=DAMAGED_HINT)
    return replace(
        _decoded(bundle.dsse_envelope, seal.name),
        hint=bundle.verification_material.public_key.hint,
    )


def _decoded(wire: WireEnvelope | BundleEnvelope, name: str) -> Envelope:
    return Envelope(
        payload=decode_base64(wire.payload, f"{name}: the payload"),
        payload_type=wire.payload_type,
        signatures=tuple(
            Signature(
                key_id=signature.keyid, value=decode_base64(signature.sig, f"{name}: a signature")
            )
            for signature in wire.signatures
        ),
    )


def encode_base64(data: bytes) -> str:
    """Return the data in standard base64, the alphabet of everything in a seal."""
    return base64.b64encode(data).decode("ascii")


def seal_text(wire: CamelDocument) -> bytes:
    """Return the document as one line of canonical JSON, so that `sed` can extract a field."""
    value = wire.model_dump(mode="json", by_alias=True)
    return canonical_json(value) + b"\n"
