"""Encrypted key files: PBES2 (RFC 8018) with scrypt (RFC 7914) and AES-256-CBC, in PEM.

`openssl pkey` reads what is written here, and what `openssl pkcs8 -topk8 -scrypt` writes is taken.
"""

from __future__ import annotations

import base64
import re
import secrets
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.hazmat.primitives.padding import PKCS7

from gate.errors import AttestationError
from gate.package.der import (
    OBJECT_IDENTIFIER,
    OCTET_STRING,
    Reader,
    element,
    object_identifier,
    octet_string,
    sequence,
)
from gate.package.der import integer as der_integer
from gate.package.signing import decode_base64

PBES2: Final = object_identifier("1.2.840.113549.1.5.13")
PBKDF2: Final = object_identifier("1.2.840.113549.1.5.12")
SCRYPT: Final = object_identifier("1.3.6.1.4.1.11591.4.11")
AES256_CBC: Final = object_identifier("2.16.840.1.101.3.4.1.42")
# 16 MiB, five times: openssl takes 32 MiB at most, and one pass of 16 is what it writes itself.
SCRYPT_N: Final = 1 << 14
SCRYPT_R: Final = 8
SCRYPT_P: Final = 5
SALT_BYTES: Final = 16
BLOCK_BYTES: Final = 16
KEY_BYTES: Final = 32
# The least that is taken: what `openssl pkcs8 -topk8 -scrypt` writes.
MIN_SCRYPT_COST: Final = 1 << 17
MIN_PBKDF2_ROUNDS: Final = 100_000
# The most: some seconds, and memory that a runner has.
MAX_SCRYPT_BYTES: Final = 256 * 1024**2
MAX_SCRYPT_COST: Final = 1 << 24
MAX_PBKDF2_ROUNDS: Final = 10_000_000
ENCRYPT_HINT: Final = (
    "Encrypt it again: `openssl pkcs8 -topk8 -scrypt -in SIGNING-KEY.pem -out NEW-KEY.pem`."
)
_PEM: Final = re.compile(
    rb"\s*-----BEGIN ENCRYPTED PRIVATE KEY-----\s([A-Za-z0-9+/=\s]*)"
    rb"-----END ENCRYPTED PRIVATE KEY-----\s*"
)


def write_encrypted(private_key: bytes, passphrase: bytes) -> bytes:
    """The PEM of a PKCS#8 key (DER), encrypted with the pass phrase."""
    salt, vector = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(BLOCK_BYTES)
    scrypt = Scrypt(salt=salt, length=KEY_BYTES, n=SCRYPT_N, r=SCRYPT_R, p=SCRYPT_P)
    padder, encryptor = (
        PKCS7(AES256.block_size).padder(),
        Cipher(AES256(scrypt.derive(passphrase)), CBC(vector)).encryptor(),
    )
    padded = padder.update(private_key) + padder.finalize()
    numbers = map(der_integer, (SCRYPT_N, SCRYPT_R, SCRYPT_P, KEY_BYTES))
    derivation = sequence(SCRYPT, sequence(octet_string(salt), *numbers))
    encryption = sequence(AES256_CBC, octet_string(vector))
    document = sequence(
        sequence(PBES2, sequence(derivation, encryption)),
        octet_string(encryptor.update(padded) + encryptor.finalize()),
    )
    text = base64.b64encode(document).decode("ascii")
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    label = "ENCRYPTED PRIVATE KEY"
    return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----\n")).encode()


def read_encrypted(pem: bytes) -> bytes:
    """The EncryptedPrivateKeyInfo (DER) of a PEM file, still encrypted.

    Raises `AttestationError` for another encryption than PBES2, one that is weak, and one that
    asks for more memory or time than a key is worth.
    """
    found = _PEM.fullmatch(pem)
    if found is None:
        # among others the older form, whose key is one round of MD5 away from the pass phrase
        raise AttestationError(
            "the signing key cannot be read: not one encrypted key in PKCS#8 PEM",
            hint=ENCRYPT_HINT,
        )
    document = decode_base64(b"".join(found[1].split()).decode("ascii"), "the signing key")
    try:
        _check(document)
    except ValueError as error:
        raise AttestationError(
            f"the signing key cannot be read: {error}",
            hint="Check that the file was copied completely.",
        ) from error
    return document


def _check(document: bytes) -> None:
    whole = Reader(document)
    parts = whole.inside()
    whole.end()
    scheme = parts.inside()
    parts.take(OCTET_STRING)
    parts.end()
    if _algorithm(scheme) != PBES2:
        raise _weak("an old scheme, which is not PBES2")
    derivation = scheme.inside().inside()
    algorithm = _algorithm(derivation)
    parameters = derivation.inside()
    parameters.take(OCTET_STRING)
    if algorithm == SCRYPT:
        _check_scrypt(parameters.number(), parameters.number(), parameters.number())
    elif algorithm == PBKDF2:
        _check_rounds(parameters.number())
    else:
        raise _weak("neither scrypt nor PBKDF2")


def _algorithm(reader: Reader) -> bytes:
    return element(OBJECT_IDENTIFIER, reader.take(OBJECT_IDENTIFIER))


def _check_scrypt(n: int, r: int, p: int) -> None:
    """RFC 7914, 2: `n` a power of two; memory is 128 * r * (n + p) bytes."""
    numbers = f"scrypt with N {n:,}, r {r:,}, p {p:,}"
    if 128 * r * (n + p) > MAX_SCRYPT_BYTES or n * r * p > MAX_SCRYPT_COST:
        raise AttestationError(
            f"the signing key asks for too much: {numbers}",
            hint=f"{MAX_SCRYPT_BYTES // 1024**2} MiB are the most. {ENCRYPT_HINT}",
        )
    if n < 2 or n & (n - 1) or not r or not p:  # noqa: PLR2004 - RFC 7914: N is above 1
        message = f"{numbers} is not scrypt"
        raise ValueError(message)
    if n * r < MIN_SCRYPT_COST:
        raise _weak(numbers)


def _check_rounds(rounds: int) -> None:
    if rounds > MAX_PBKDF2_ROUNDS:
        raise AttestationError(
            f"the signing key asks for too much: {rounds:,} rounds of PBKDF2",
            hint=f"{MAX_PBKDF2_ROUNDS:,} are the most. {ENCRYPT_HINT}",
        )
    if rounds < MIN_PBKDF2_ROUNDS:
        raise _weak(f"PBKDF2 with {rounds:,} rounds")


def _weak(what: str) -> AttestationError:
    return AttestationError(
        f"the signing key's pass phrase is weakly protected: {what}", hint=ENCRYPT_HINT
    )
