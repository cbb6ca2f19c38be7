"""Signing keys: ECDSA on P-256 or Ed25519, their encrypted files, and the trust file's entries.

A key is named by the SHA-256 of its DER SubjectPublicKeyInfo. Private keys are written encrypted,
in DER (ITU-T X.690) inside PEM. The DER code here supports one-byte tags and lengths below 2**32,
which is all that keys use, and refuses every encoding but the canonical one.

`openssl pkey` reads the files that this module writes, and this module reads the ones that `openssl
pkcs8 -topk8 -scrypt` writes.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.hazmat.primitives.padding import PKCS7
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_der_public_key,
    load_pem_private_key,
)

from gate.errors import AttestationError, KeyFileError, SettingsError
from gate.package.seal_records import (
    ECDSA_P256,
    ED25519,
    KeyAlgorithm,
    KeyDetails,
    TrustedKey,
    TrustedKeys,
)
from gate.package.signing import decode_base64, read_record

INTEGER: Final = 0x02
OCTET_STRING: Final = 0x04
OBJECT_IDENTIFIER: Final = 0x06
SEQUENCE: Final = 0x30
# From this value on, the low seven bits of the first length byte give the number of length bytes
# that follow.
LONG_FORM: Final = 0x80
MAX_LENGTH_BYTES: Final = 4
MAX_INTEGER_BYTES: Final = 8
ARC_BITS: Final = 7
ARC_LIMIT: Final = 1 << ARC_BITS


def element(tag: int, content: bytes) -> bytes:
    """Return a DER element: tag, length and content."""
    length = len(content)
    if length < LONG_FORM:
        return bytes((tag, length)) + content
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes((tag, LONG_FORM | len(size))) + size + content


def sequence(*parts: bytes) -> bytes:
    """Return a DER SEQUENCE of elements that are encoded already."""
    return element(SEQUENCE, b"".join(parts))


def octet_string(content: bytes) -> bytes:
    """Return a DER OCTET STRING."""
    return element(OCTET_STRING, content)


def integer(value: int) -> bytes:
    """Return a DER INTEGER; the value must not be negative."""
    # One byte more than the bits need if the top bit is set, which DER would read as a minus sign.
    return element(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def object_identifier(dotted: str) -> bytes:
    """Return a DER OBJECT IDENTIFIER for a dotted name such as `1.2.840.10045.3.1.7`."""
    first, second, *others = map(int, dotted.split("."))
    # X.690, 8.19.4: the first two numbers share one subidentifier.
    return element(OBJECT_IDENTIFIER, b"".join(map(_arc, (40 * first + second, *others))))


def _arc(number: int) -> bytes:
    pieces = [number % ARC_LIMIT]
    while number := number >> ARC_BITS:
        pieces.append(number % ARC_LIMIT | ARC_LIMIT)
    return bytes(reversed(pieces))


class DerReader:
    """Reads DER elements in order; each method raises `ValueError` if the next bytes do not fit."""

    def __init__(self, data: bytes) -> None:
        self._left = data

    def take(self, tag: int) -> bytes:
        """Return the content of the next element, which must have this tag."""
        if len(self._left) < 2 or self._left[0] != tag:  # noqa: PLR2004 - tag and length
            message = "another element than expected"
            raise ValueError(message)
        length, begin = self._length()
        end = begin + length
        if end > len(self._left):
            message = "an element that is cut short"
            raise ValueError(message)
        content, self._left = self._left[begin:end], self._left[end:]
        return content

    def inside(self) -> DerReader:
        """Return a reader of the content of the next element, which must be a SEQUENCE."""
        return DerReader(self.take(SEQUENCE))

    def number(self) -> int:
        """Return the value of the next element, an INTEGER from 0 to 2**63 - 1."""
        content = self.take(INTEGER)
        if len(content) > MAX_INTEGER_BYTES:
            message = "an integer that is too large"
            raise ValueError(message)
        value = int.from_bytes(content, "big")
        # encoding the value again must give the same bytes: this refuses signs and leading zeros
        if element(INTEGER, content) != integer(value):
            message = "an integer that is negative or not in its usual form"
            raise ValueError(message)
        return value

    def has(self, tag: int) -> bool:
        """Return whether the next element has this tag."""
        return self._left[:1] == bytes((tag,))

    def end(self) -> None:
        """Raise `ValueError` if any byte is left."""
        if self._left:
            message = "more than expected"
            raise ValueError(message)

    def _length(self) -> tuple[int, int]:
        """Return the length of the next element's content, and the offset where it begins."""
        first = self._left[1]
        if first < LONG_FORM:
            return first, 2
        count = first - LONG_FORM
        size = self._left[2 : 2 + count]
        length = int.from_bytes(size, "big")
        # DER (X.690, 10.1): no leading zero, and no long form where the short form suffices.
        if not 0 < count <= MAX_LENGTH_BYTES or len(size) < count or not size[0]:
            message = "a length that is not in its usual form"
            raise ValueError(message)
        if length < LONG_FORM:
            message = "a length that is not in its usual form"
            raise ValueError(message)
        return length, 2 + count


PBES2: Final = object_identifier("1.2.840.113549.1.5.13")
PBKDF2: Final = object_identifier("1.2.840.113549.1.5.12")
SCRYPT: Final = object_identifier("1.3.6.1.4.1.11591.4.11")
AES256_CBC: Final = object_identifier("2.16.840.1.101.3.4.1.42")
# 16 MiB in five passes. openssl reads at most 32 MiB, and one pass of 16 MiB is what it writes
# itself.
SCRYPT_N: Final = 1 << 14
SCRYPT_R: Final = 8
SCRYPT_P: Final = 5
SALT_BYTES: Final = 16
BLOCK_BYTES: Final = 16
KEY_BYTES: Final = 32
# The weakest encryption that is accepted. The scrypt limit is what `openssl pkcs8 -topk8 -scrypt`
# writes.
MIN_SCRYPT_COST: Final = 1 << 17
MIN_PBKDF2_ROUNDS: Final = 100_000
# The most that is accepted: a few seconds of computing, and memory that a runner has. The file is
# untrusted and names these numbers itself.
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
    """Encrypt a PKCS#8 key (DER) with the pass phrase (scrypt, AES-256-CBC); return it as PEM."""
    salt, vector = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(BLOCK_BYTES)
    scrypt = Scrypt(salt=salt, length=KEY_BYTES, n=SCRYPT_N, r=SCRYPT_R, p=SCRYPT_P)
    padder, encryptor = (
        PKCS7(AES256.block_size).padder(),
        Cipher(AES256(scrypt.derive(passphrase)), CBC(vector)).encryptor(),
    )
    padded = padder.update(private_key) + padder.finalize()
    numbers = map(integer, (SCRYPT_N, SCRYPT_R, SCRYPT_P, KEY_BYTES))
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
    """Return the EncryptedPrivateKeyInfo (DER) of a PEM file, still encrypted.

    Raises `AttestationError` for an encryption that is not PBES2, that is weak, or that asks for
    more memory or time than `MAX_SCRYPT_BYTES` and the limits beside it allow.
    """
    match = _PEM.fullmatch(pem)
    if match is None:
        # This also refuses openssl's older PEM encryption, where one round of MD5 turns the pass
        # phrase into the key.
        raise AttestationError(
            "the signing key cannot be read: not one encrypted key in PKCS#8 PEM",
            hint=ENCRYPT_HINT,
        )
    document = decode_base64(b"".join(match[1].split()).decode("ascii"), "the signing key")
    try:
        _check(document)
    except ValueError as error:
        raise AttestationError(
            f"the signing key cannot be read: {error}",
            hint="Check that the file was copied completely.",
        ) from error
    return document


def _check(document: bytes) -> None:
    whole = DerReader(document)
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


def _algorithm(reader: DerReader) -> bytes:
    return element(OBJECT_IDENTIFIER, reader.take(OBJECT_IDENTIFIER))


def _check_scrypt(n: int, r: int, p: int) -> None:
    """Check the parameters of scrypt (RFC 7914, 2).

    `n` is a power of two, and scrypt takes 128 * r * (n + p) bytes of memory. Raises
    `AttestationError` for too much or too little work, and `ValueError` for invalid numbers.
    """
    numbers = f"scrypt with N {n:,}, r {r:,}, p {p:,}"
    # before any key is derived: the parameters come from the file, and could exhaust memory
    if 128 * r * (n + p) > MAX_SCRYPT_BYTES or n * r * p > MAX_SCRYPT_COST:
        raise AttestationError(
            f"the signing key asks for too much: {numbers}",
            hint=f"The limit is {MAX_SCRYPT_BYTES // 1024**2} MiB. {ENCRYPT_HINT}",
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
            hint=f"The limit is {MAX_PBKDF2_ROUNDS:,}. {ENCRYPT_HINT}",
        )
    if rounds < MIN_PBKDF2_ROUNDS:
        raise _weak(f"PBKDF2 with {rounds:,} rounds")


def _weak(what: str) -> AttestationError:
    return AttestationError(
        f"the signing key's pass phrase is weakly protected: {what}", hint=ENCRYPT_HINT
    )


PrivateKey = ec.EllipticCurvePrivateKey | Ed25519PrivateKey
PublicKey = ec.EllipticCurvePublicKey | Ed25519PublicKey
# `openssl rand -base64 24` prints twice as many bytes; a single word has fewer.
MIN_PASSPHRASE_BYTES = 16
MAX_TRUST_BYTES = 1024 * 1024
# The points of order 1, 2, 4 and 8 on edwards25519 (RFC 8032, 5.1), in every encoding, without the
# sign bit. A multiple of such a key is one of eight points, so anybody can guess a signature.
SMALL_ORDER: Final = frozenset(
    bytes.fromhex(text)
    for text in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        *(f"{first}{'ff' * 30}7f" for first in ("ec", "ed", "ee")),
    )
)
GENERATE_HINT = "Generate one with `repro-gate keys generate`."


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A `Signer` whose private key is in this process's memory."""

    private_key: PrivateKey = field(repr=False)

    def public_key(self) -> bytes:
        """Return the public key as DER SubjectPublicKeyInfo."""
        return public_der(self.private_key.public_key())

    def sign(self, message: bytes) -> bytes:
        """Sign with ECDSA over SHA-256 (in DER), or with Ed25519 over the message itself."""
        if isinstance(self.private_key, Ed25519PrivateKey):
            return self.private_key.sign(message)
        return self.private_key.sign(message, ec.ECDSA(SHA256()))


def generate_private_key(algorithm: KeyAlgorithm = KeyAlgorithm.ECDSA_P256) -> PrivateKey:
    """Return a new key; the default is the one kind that every outside verifier accepts."""
    if algorithm is KeyAlgorithm.ED25519:
        return Ed25519PrivateKey.generate()
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: PrivateKey, passphrase: bytes | None, *, allow_plain: bool = False) -> bytes:
    """Return the private key as PKCS#8 PEM, encrypted with the pass phrase (scrypt, AES-256).

    Raises `SettingsError` if the pass phrase has fewer than `MIN_PASSPHRASE_BYTES`, or if there
    is none and `allow_plain` is false.
    """
    if passphrase is None and not allow_plain:
        raise SettingsError(
            "a private key is not written without a pass phrase",
            hint="Set REPRO_GATE_PASSPHRASE to the pass phrase, or ask for a plain key with "
            "--allow-plain.",
        )
    if passphrase is None:
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    if len(passphrase) < MIN_PASSPHRASE_BYTES:
        raise SettingsError(
            f"the pass phrase is shorter than {MIN_PASSPHRASE_BYTES} bytes",
            hint="Generate one with `openssl rand -base64 24` and store it as a secret.",
        )
    der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return write_encrypted(der, passphrase)


def public_pem(key: PublicKey) -> bytes:
    """Return the public key as PEM, the form for openssl and for people."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def public_der(key: PublicKey) -> bytes:
    """Return the public key as DER SubjectPublicKeyInfo, whose SHA-256 is the key's id."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def key_id(key: PublicKey) -> str:
    """Return the key's id: the SHA-256, in lowercase hexadecimal, of its DER.

    The DER is what `openssl pkey -pubin -outform DER` prints.
    """
    return hashlib.sha256(public_der(key)).hexdigest()


def load_private_key(
    pem: bytes, passphrase: bytes | None, *, allow_plain: bool = False
) -> PrivateKey:
    """Read a private key from PEM.

    Raises `AttestationError` for a wrong or missing pass phrase, an unsupported kind of key, weak
    encryption, and, unless `allow_plain`, a key that is not encrypted. No message repeats key
    material.
    """
    # Asked before loading, so that a missing pass phrase and a damaged key give different messages.
    encrypted = b"ENCRYPTED" in pem
    if encrypted and not passphrase:
        raise AttestationError(
            "the signing key is encrypted and no pass phrase was given",
            hint="Pass it as a secret, never on the command line.",
        )
    if not encrypted and not allow_plain:
        raise AttestationError(
            "the signing key is not encrypted",
            hint="Encrypt it (`openssl pkcs8 -topk8 -scrypt`), or allow a plain key explicitly.",
        )
    try:
        if encrypted:
            key = load_der_private_key(read_encrypted(pem), passphrase)
        else:
            key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        problem = "the pass phrase is wrong, or the key is damaged"
        raise AttestationError(
            f"the signing key cannot be read: {problem if encrypted else 'no private key in PEM'}",
            hint="Check that key and pass phrase match and were copied completely.",
        ) from error
    # A key on another curve could sign, but no outside verifier would accept the signature.
    if not isinstance(key, PrivateKey) or not _usable(key):
        raise other_kind("the signing key")
    return key


def usable_public_key(key: object, what: str) -> PublicKey:
    """Return the key unchanged if its signatures may count; `what` names it in messages.

    Raises `AttestationError` for another curve or algorithm, and for an Ed25519 key of small order,
    under which anybody can sign.
    """
    if not isinstance(key, PublicKey) or not _usable(key):
        raise other_kind(what)
    if isinstance(key, Ed25519PublicKey) and _without_sign(key) in SMALL_ORDER:
        raise AttestationError(
            f"{what} is a point of small order, under which anybody can sign",
            hint=f"The key is malformed or malicious. {GENERATE_HINT}",
        )
    return key


def _without_sign(key: Ed25519PublicKey) -> bytes:
    raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return raw[:-1] + bytes((raw[-1] & 0x7F,))


def public_key(der: bytes, what: str) -> PublicKey:
    """Return the key in a DER SubjectPublicKeyInfo; `what` names it in messages.

    Raises `AttestationError` if it is not a public key, or one that `usable_public_key` refuses.
    """
    try:
        key = load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise AttestationError(f"{what}: not a public key", hint=GENERATE_HINT) from error
    return usable_public_key(key, what)


def key_details(key: PublicKey) -> KeyDetails:
    """Return the trust file's name for the key's algorithm."""
    return ED25519 if isinstance(key, Ed25519PublicKey) else ECDSA_P256


def is_signature(key: PublicKey, signature: bytes, message: bytes) -> bool:
    """Return whether the key signed the message: DER over SHA-256, or the 64 bytes of RFC 8032.

    An ECDSA signature is no identity: if (r, s) is valid, (r, -s) is valid too.
    """
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, message)
        else:
            key.verify(signature, message, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def _usable(key: PrivateKey | PublicKey) -> bool:
    if isinstance(key, Ed25519PrivateKey | Ed25519PublicKey):
        return True
    return isinstance(key.curve, ec.SECP256R1)


def trusted_key(key: PublicKey, *, added_at: str, comment: str = "") -> TrustedKey:
    """Return an active trust entry for a public key; `added_at` is in UTC, ISO 8601."""
    return TrustedKey(
        key_id=key_id(key),
        raw_bytes=base64.b64encode(public_der(key)).decode("ascii"),
        key_details=key_details(key),
        added_at=added_at,
        comment=comment,
    )


def trusted_public_key(trusted: TrustedKey) -> PublicKey:
    """Return the public key of a trust entry.

    Raises `AttestationError` if the entry's id, algorithm and bytes do not agree.
    """
    what = f"trusted key {trusted.key_id[:16]}"
    der = decode_base64(trusted.raw_bytes, what)
    # A reviewer sees only the id, so the bytes of another key must not count under a known id.
    if hashlib.sha256(der).hexdigest() != trusted.key_id:
        raise AttestationError(
            f"{what}: raw_bytes does not match this key id",
            hint="Restore trusted-keys.json from version control.",
        )
    key = public_key(der, what)
    if key_details(key) != trusted.key_details:
        raise AttestationError(
            f"{what}: raw_bytes is not the kind of key that key_details says",
            hint="Restore trusted-keys.json from version control.",
        )
    # Another encoding of the same point would have another id. A key that is revoked under one id
    # would then still count under the other.
    if public_der(key) != der:
        raise AttestationError(
            f"{what}: raw_bytes is not the usual form of this key",
            hint="Add the key with `repro-gate keys add`.",
        )
    return key


def with_key(document: TrustedKeys, key: TrustedKey) -> TrustedKeys:
    """Return the trust document with one key added, sorted by key id.

    Raises `SettingsError` if the key is listed already, with any status.
    """
    for known in document.keys:
        # Any status refuses: a revoked key that is listed again would count again.
        if known.key_id == key.key_id:
            raise SettingsError(
                f"key {key.key_id[:16]} is already listed, as {known.status}",
                hint="Generate a new key if this one is retired or revoked.",
            )
    return TrustedKeys(
        keys=tuple(sorted((*document.keys, key), key=lambda trusted: trusted.key_id))
    )


def read_trusted_keys(data: bytes, source: str) -> TrustedKeys:
    """Read `trusted-keys.json` and check every key in it; `KeyFileError` names what is wrong."""
    try:
        document = read_record(
            TrustedKeys,
            data,
            source,
            max_bytes=MAX_TRUST_BYTES,
            hint="Check that this is the trust file; if so, restore it from version control.",
        )
    except AttestationError as error:
        raise KeyFileError(error.message, hint=error.hint, details=error.details) from error
    for key in document.keys:
        try:
            trusted_public_key(key)
        except AttestationError as error:
            raise KeyFileError(f"{source}: {error.message}", hint=error.hint) from error
    return document


def other_kind(what: str) -> AttestationError:
    """Return the error for an unsupported kind of key; `what` names the key."""
    return AttestationError(
        f"{what} is neither an ECDSA key on P-256 nor an Ed25519 key", hint=GENERATE_HINT
    )
