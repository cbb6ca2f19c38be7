"""Signed bytes: DSSE and a Sigstore bundle, written and read strictly.

Formats: DSSE protocol 1.0.2 and Sigstore bundle v0.3. Both are read strictly: what is not signed
and not needed has no place in a seal, so an unknown key is refused.
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
    """The pre-authentication encoding: what is signed is type and payload, both with length."""
    kind = payload_type.encode("utf-8")
    # with its length before each part, no other type
    # and payload give the same bytes (DSSE protocol)
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(payload: bytes, payload_type: str, signer: Signer) -> Envelope:
    """An envelope with one signature; ECDSA draws a nonce, so its bytes vary.

    Raises `AttestationError` for a signature that the signer's own public key does not verify.
    """
    key = public_key(signer.public_key(), "the signer's public key")
    # over the encoding and never over the payload alone, whose type could then be swapped
    message = pae(payload_type, payload)
    value = signer.sign(message)
    # a key elsewhere can be another one by now, or sign in another form: found out now, not later
    if not is_signature(key, value, message):
        raise AttestationError(
            "the signer gave a signature that its own public key does not verify",
            hint="ECDSA takes SHA-256 of the message and gives DER, Ed25519 takes the message "
            "itself and gives 64 bytes; check that both answers come from the same key.",
        )
    signature = Signature(key_id=key_id(key), value=value)
    return Envelope(payload=payload, payload_type=payload_type, signatures=(signature,))


def verify(envelope: Envelope, trusted: TrustedKeys) -> TrustedKey:
    """The trusted key that signed; the caller reports a retired one.

    Every trusted key is tried: the key id in an envelope is not signed and decides nothing. An
    active key is preferred to a retired one; a revoked key never counts. Raises
    `AttestationError` when no counting key signed.
    """
    message = pae(envelope.payload_type, envelope.payload)
    signers = [
        key for key in trusted.keys if _signed_by(trusted_public_key(key), envelope, message)
    ]
    # revoked is in neither round: a key that somebody
    # else has could have signed anything at any date
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
    # by the trusted key's algorithm and never the envelope's: nobody can ask for a weaker one
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
    """One signature of a bare envelope, base64; `keyid` is a hint only."""

    keyid: str = Field(default="", max_length=200)
    sig: str


class WireEnvelope(CamelDocument):
    """A bare DSSE envelope as it is written, with exactly one signature.

    DSSE allows more; what a second one says is nobody's here, and it has no room to say it.
    """

    payload: str
    payload_type: str = Field(max_length=200)
    signatures: tuple[WireSignature]


class AnonymousSignature(CamelDocument):
    """The signature of a bundle: verifiers reject a key id that is not their own kind."""

    keyid: Literal[""] = Field(default="", exclude=True)
    sig: str


class BundleEnvelope(CamelDocument):
    """The envelope of a bundle, which holds exactly one signature."""

    payload: str
    payload_type: str = Field(max_length=200)
    signatures: tuple[AnonymousSignature]


class KeyHint(CamelDocument):
    """Which key: base64 of the SHA-256 of its DER, or what the reader of the bundle asks for."""

    hint: str = Field(max_length=200)


class VerificationMaterial(CamelDocument):
    """Which key to verify with; no log entry, because none is verified."""

    public_key: KeyHint
    tlog_entries: tuple[()] = ()


class Bundle(CamelDocument):
    """A Sigstore bundle with a key hint."""

    media_type: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"] = BUNDLE_TYPE
    verification_material: VerificationMaterial
    dsse_envelope: BundleEnvelope


def write_envelope(envelope: Envelope) -> bytes:
    """The bare DSSE form of an envelope with one signature; equal envelopes give equal bytes."""
    (signature,) = envelope.signatures
    wire = WireEnvelope(
        payload=encode_base64(envelope.payload),
        payload_type=envelope.payload_type,
        signatures=(WireSignature(keyid=signature.key_id, sig=encode_base64(signature.value)),),
    )
    return seal_text(wire)


def write_bundle(envelope: Envelope, *, hint: str = "") -> bytes:
    """The Sigstore form of an envelope with one signature, whose key id is the hint if none is."""
    (signature,) = envelope.signatures
    named = KeyHint(hint=hint or encode_base64(bytes.fromhex(signature.key_id)))
    return seal_text(
        Bundle(
            verification_material=VerificationMaterial(public_key=named),
            dsse_envelope=bundle_envelope(envelope),
        )
    )


def bundle_envelope(envelope: Envelope) -> BundleEnvelope:
    """An envelope with one signature as a bundle holds it."""
    (signature,) = envelope.signatures
    return BundleEnvelope(
        payload=encode_base64(envelope.payload),
        payload_type=envelope.payload_type,
        signatures=(AnonymousSignature(sig=encode_base64(signature.value)),),
    )


def read_envelope(seal: SealFile) -> Envelope:
    """Read either form; nothing in it is verified yet.

    Raises `AttestationError` for what is too large, not strict JSON, not strict base64, has an
    unknown key or a different number of signatures than its form allows.
    """
    limit = MAX_SEAL_BYTES
    value = read_object(seal.content, seal.name, max_bytes=limit, hint=DAMAGED_HINT)
    # this one key tells the forms from each other, before anything else is read: each bundle names
    # its media type (protobuf-specs, sigstore_bundle.proto), and DSSE has no such field
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
    # read again by a model that knows every key: what is not signed has no room to hide in
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
    """Standard base64, as every part of a seal is written."""
    return base64.b64encode(data).decode("ascii")


def seal_text(wire: CamelDocument) -> bytes:
    """One line of canonical JSON, so that `sed` can take a field out of it."""
    value = wire.model_dump(mode="json", by_alias=True)
    return canonical_json(value) + b"\n"
