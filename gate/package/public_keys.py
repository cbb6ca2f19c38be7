"""Public keys in the forms that tokens, vaults and programs give them in, as one form."""

from __future__ import annotations

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_public_key,
)

from gate.errors import AttestationError

_FORM = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def der_of(data: bytes, source: str) -> bytes:
    """The DER SubjectPublicKeyInfo of a key in PEM or DER; `AttestationError` for anything else."""
    try:
        pem = data.lstrip().startswith(b"-----BEGIN")
        key = load_pem_public_key(data) if pem else load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise AttestationError(
            f"{source} gave no public key",
            hint="It has to be PEM (-----BEGIN PUBLIC KEY-----) or DER.",
        ) from error
    return key.public_bytes(*_FORM)


def der_of_ed25519(data: bytes, source: str) -> bytes:
    """The same of the 32 bytes of an Ed25519 key."""
    try:
        return Ed25519PublicKey.from_public_bytes(data).public_bytes(*_FORM)
    except ValueError as error:
        raise AttestationError(
            f"{source} gave no Ed25519 key of 32 bytes", hint="Check which key is meant."
        ) from error


def der_of_point(data: bytes, source: str) -> bytes:
    """The same of a point on P-256, encoded as X9.62 does."""
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), data)
    except ValueError as error:
        raise AttestationError(
            f"{source} gave no point on P-256", hint="Check which key is meant."
        ) from error
    return key.public_bytes(*_FORM)
