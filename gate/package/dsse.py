"""Signing and verifying bytes: DSSE protocol 1.0.2 with ECDSA P-256 (SHA-256, DER) or Ed25519."""

from __future__ import annotations

from gate.errors import AttestationError
from gate.package.keys import PublicKey, is_signature, key_id, public_key, trusted_public_key
from gate.package.seal_records import Envelope, KeyStatus, Signature, TrustedKey, TrustedKeys
from gate.package.signing import printable
from gate.package.signing_ports import Signer


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
    named = [printable(each.key_id)[:64] or "(none)" for each in envelope.signatures]
    known = [f"{key.key_id} ({key.status})" for key in trusted.keys] or ["(none)"]
    return (f"key named by the seal: {', '.join(named)}", f"trusted keys: {', '.join(known)}")
