"""Keys: ECDSA on P-256 or Ed25519, private ones encrypted, public ones named by their digest.

They are written in DER (ITU-T X.690) with one byte of tag and lengths below 2**32, which is all
that keys use. What is not the one encoding of a value is refused.

`openssl pkey` reads what is written here, and what `openssl pkcs8 -topk8 -scrypt` writes is taken.
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

from gate.errors import AttestationError, KeyFileError
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
# From here on a length stands in bytes of its own, whose count is the low half of the first.
LONG_FORM: Final = 0x80
MAX_LENGTH_BYTES: Final = 4
MAX_INTEGER_BYTES: Final = 8
ARC_BITS: Final = 7
ARC_LIMIT: Final = 1 << ARC_BITS


def element(tag: int, content: bytes) -> bytes:
    """Tag, length and content."""
    length = len(content)
    if length < LONG_FORM:
        return bytes((tag, length)) + content
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes((tag, LONG_FORM | len(size))) + size + content


def sequence(*parts: bytes) -> bytes:
    """A SEQUENCE of encoded parts."""
    return element(SEQUENCE, b"".join(parts))


def octet_string(content: bytes) -> bytes:
    """An OCTET STRING."""
    return element(OCTET_STRING, content)


def integer(value: int) -> bytes:
    """An INTEGER that is not negative."""
    # a byte more than the bits need where the first would be read as a sign
    return element(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def object_identifier(dotted: str) -> bytes:
    """An OBJECT IDENTIFIER, as `1.2.840.10045.3.1.7`."""
    first, second, *others = map(int, dotted.split("."))
    return element(OBJECT_IDENTIFIER, b"".join(map(_arc, (40 * first + second, *others))))


def _arc(number: int) -> bytes:
    pieces = [number % ARC_LIMIT]
    while number := number >> ARC_BITS:
        pieces.append(number % ARC_LIMIT | ARC_LIMIT)
    return bytes(reversed(pieces))


class DerReader:
    """Elements one after the other; each method raises `ValueError` for what is not there."""

    def __init__(self, data: bytes) -> None:
        self._left = data

    def take(self, tag: int) -> bytes:
        """The content of the next element, which has this tag."""
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
        """The next element, a SEQUENCE, entered."""
        return DerReader(self.take(SEQUENCE))

    def number(self) -> int:
        """The next element, an INTEGER from 0 to 2**63 - 1."""
        content = self.take(INTEGER)
        if len(content) > MAX_INTEGER_BYTES:
            message = "an integer that is too large"
            raise ValueError(message)
        value = int.from_bytes(content, "big")
        if element(INTEGER, content) != integer(value):
            message = "an integer that is negative or not in its usual form"
            raise ValueError(message)
        return value

    def has(self, tag: int) -> bool:
        """Whether an element with this tag comes next."""
        return self._left[:1] == bytes((tag,))

    def end(self) -> None:
        """Refuse what follows."""
        if self._left:
            message = "more than expected"
            raise ValueError(message)

    def _length(self) -> tuple[int, int]:
        """The length of the next element's content, and where that begins."""
        first = self._left[1]
        if first < LONG_FORM:
            return first, 2
        count = first - LONG_FORM
        size = self._left[2 : 2 + count]
        length = int.from_bytes(size, "big")
        # the usual form: no leading zero, and no long form where the short one does
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
    """The EncryptedPrivateKeyInfo (DER) of a PEM file, still encrypted.

    Raises `AttestationError` for another encryption than PBES2, one that is weak, and one that
    asks for more memory or time than a key is worth.
    """
    match = _PEM.fullmatch(pem)
    if match is None:
        # among others the older form, whose key is one round of MD5 away from the pass phrase
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
    """RFC 7914, 2: `n` a power of two; memory is 128 * r * (n + p) bytes."""
    numbers = f"scrypt with N {n:,}, r {r:,}, p {p:,}"
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
# What `openssl rand -base64 24` gives is twice as long; a word is not.
MIN_PASSPHRASE_BYTES = 16
MAX_TRUST_BYTES = 1024 * 1024
# The points of order 1, 2, 4 and 8 on edwards25519 (RFC 8032, 5.1) in each encoding, their sign bit
# left out: a multiple of such a key is one of eight points, so a signature can be guessed.
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
    """A `Signer` over a private key in memory."""

    private_key: PrivateKey = field(repr=False)

    def public_key(self) -> bytes:
        """DER SubjectPublicKeyInfo."""
        return public_der(self.private_key.public_key())

    def sign(self, message: bytes) -> bytes:
        """ECDSA with SHA-256 in DER, or Ed25519 over the message itself."""
        if isinstance(self.private_key, Ed25519PrivateKey):
            return self.private_key.sign(message)
        return self.private_key.sign(message, ec.ECDSA(SHA256()))


def generate_private_key(algorithm: KeyAlgorithm = KeyAlgorithm.ECDSA_P256) -> PrivateKey:
    """A new key; ECDSA on P-256 is the one kind that every outside verifier accepts."""
    if algorithm is KeyAlgorithm.ED25519:
        return Ed25519PrivateKey.generate()
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: PrivateKey, passphrase: bytes | None, *, allow_plain: bool = False) -> bytes:
    """The private key as PKCS#8 PEM, encrypted with the pass phrase (scrypt, AES-256).

    Raises `AttestationError` for a short one, and for none unless `allow_plain`.
    """
    if passphrase is None and not allow_plain:
        raise AttestationError(
            "a private key is not written without a pass phrase",
            hint="Set REPRO_GATE_PASSPHRASE to the pass phrase, or ask for a plain key with "
            "--allow-plain.",
        )
    if passphrase is None:
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    if len(passphrase) < MIN_PASSPHRASE_BYTES:
        raise AttestationError(
            f"the pass phrase is shorter than {MIN_PASSPHRASE_BYTES} bytes",
            hint="Generate one with `openssl rand -base64 24` and store it as a secret.",
        )
    der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return write_encrypted(der, passphrase)


def public_pem(key: PublicKey) -> bytes:
    """The public key as PEM, for openssl and for people."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def public_der(key: PublicKey) -> bytes:
    """The public key as DER SubjectPublicKeyInfo, the bytes that name it."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def key_id(key: PublicKey) -> str:
    """Lowercase hexadecimal SHA-256 of the DER, as `openssl pkey -pubin -outform DER` gives it."""
    return hashlib.sha256(public_der(key)).hexdigest()


def load_private_key(
    pem: bytes, passphrase: bytes | None, *, allow_plain: bool = False
) -> PrivateKey:
    """Read a private key.

    Raises `AttestationError` for a wrong or missing pass phrase, for a key of another kind, for one
    whose encryption is weak, and for one that is not encrypted unless `allow_plain`. No message
    repeats key material.
    """
    # asked before loading, so that a missing pass phrase and a damaged key differ in message
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
    # another curve or algorithm would sign, and no outside verifier would take it
    if not isinstance(key, PrivateKey) or not _usable(key):
        raise other_kind("the signing key")
    return key


def usable_public_key(key: object, what: str) -> PublicKey:
    """The key as one that can count.

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
    """The key of a DER SubjectPublicKeyInfo; `what` names it in an `AttestationError`."""
    try:
        key = load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise AttestationError(f"{what}: not a public key", hint=GENERATE_HINT) from error
    return usable_public_key(key, what)


def key_details(key: PublicKey) -> KeyDetails:
    """What the trust file calls the key's algorithm."""
    return ED25519 if isinstance(key, Ed25519PublicKey) else ECDSA_P256


def is_signature(key: PublicKey, signature: bytes, message: bytes) -> bool:
    """Whether the key signed the message: DER over SHA-256, or the 64 bytes of RFC 8032.

    Of an ECDSA signature (r, s) the other one, (r, -s), is valid too: no signature is an identity.
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
    """The active trust entry of a public key; `added_at` is UTC in ISO 8601."""
    return TrustedKey(
        key_id=key_id(key),
        raw_bytes=base64.b64encode(public_der(key)).decode("ascii"),
        key_details=key_details(key),
        added_at=added_at,
        comment=comment,
    )


def trusted_public_key(trusted: TrustedKey) -> PublicKey:
    """The public key of a trust entry, whose id, algorithm and bytes must agree."""
    what = f"trusted key {trusted.key_id[:16]}"
    der = decode_base64(trusted.raw_bytes, what)
    # a reviewer sees the id: bytes of another key under a known id must not count
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
    # the same point can be written in other bytes, so under another id: a key that is revoked
    # under one would count under the other
    if public_der(key) != der:
        raise AttestationError(
            f"{what}: raw_bytes is not the usual form of this key",
            hint="Add the key with `repro-gate keys add`.",
        )
    return key


def with_key(document: TrustedKeys, key: TrustedKey) -> TrustedKeys:
    """The trust document with one key more, sorted by key id.

    Raises `AttestationError` when the key is listed already: a revoked key never comes back.
    """
    for known in document.keys:
        # whatever its status: a revoked key that is listed again would count again
        if known.key_id == key.key_id:
            raise AttestationError(
                f"key {key.key_id[:16]} is already listed, as {known.status}",
                hint="Generate a new key if this one is retired or revoked.",
            )
    return TrustedKeys(
        keys=tuple(sorted((*document.keys, key), key=lambda trusted: trusted.key_id))
    )


def read_trusted_keys(data: bytes, source: str) -> TrustedKeys:
    """Read `trusted-keys.json` and check every key in it; `KeyFileError` names the fault."""
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
    """The fault of a key of another kind; `what` names it."""
    return AttestationError(
        f"{what} is neither an ECDSA key on P-256 nor an Ed25519 key", hint=GENERATE_HINT
    )
