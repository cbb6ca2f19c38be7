"""Valid signatures and near misses, generated from a key and a message.

Each vector is a name, the signature's bytes, and whether it is valid. The kinds follow Wycheproof's
vectors for ECDSA and Ed25519; none of its files is copied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA224, SHA256, SHA384, SHA512

# The orders of the two groups: FIPS 186-5, and RFC 8032, 5.1.
P256_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
ED25519_ORDER: Final = 2**252 + 27742317777372353535851937790883648493
ED25519_PRIME: Final = 2**255 - 19

Vector = tuple[str, bytes, bool]


def element(tag: int, content: bytes) -> bytes:
    """Return a DER element with a short length, so below 128 bytes."""
    return bytes((tag, len(content))) + content


def whole(number: int) -> bytes:
    """Return a DER INTEGER of either sign."""
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return element(2, number.to_bytes(size, "big", signed=True))


def pair(r: int, s: int) -> bytes:
    """Return an ECDSA signature in DER."""
    return element(0x30, whole(r) + whole(s))


def ecdsa_vectors(key: ec.EllipticCurvePrivateKey, message: bytes) -> Iterator[Vector]:
    """Return ECDSA vectors over the message's SHA-256; (r, s) and (r, -s) are both valid."""
    r, s = decode_dss_signature(key.sign(message, ec.ECDSA(SHA256())))
    n = P256_ORDER
    yield "as it is", pair(r, s), True
    yield "the other s: low and high", pair(r, n - s), True
    yield from _other_forms(r, s)
    yield from _other_numbers(r, s)
    for algorithm in (SHA224(), SHA384(), SHA512()):
        yield f"of {algorithm.name}", key.sign(message, ec.ECDSA(algorithm)), False
    twice = hashlib.sha256(message).digest()
    yield "of the digest's digest", key.sign(twice, ec.ECDSA(SHA256())), False
    yield "of another message", key.sign(message + b"\0", ec.ECDSA(SHA256())), False
    other = ec.generate_private_key(ec.SECP256K1())
    yield "of another curve", other.sign(message, ec.ECDSA(SHA256())), False


def _other_forms(r: int, s: int) -> Iterator[Vector]:
    """Return the right numbers in encodings that are not DER."""
    good = pair(r, s)
    inside = whole(r) + whole(s)
    first, second = whole(r), whole(s)
    yield "raw: r and s alone", r.to_bytes(32, "big") + s.to_bytes(32, "big"), False
    yield "empty", b"", False
    yield "an empty sequence", b"\x30\x00", False
    yield "a byte behind", good + b"\0", False
    yield "twice", good * 2, False
    yield "a byte inside, behind", element(0x30, inside + b"\0"), False
    yield "NULL inside, behind", element(0x30, inside + b"\x05\x00"), False
    yield "one byte short", good[:-1], False
    yield "a length too long", b"\x30" + bytes((good[1] + 1,)) + inside, False
    yield "a length too short", b"\x30" + bytes((good[1] - 1,)) + inside, False
    yield "a long length", b"\x30\x81" + good[1:], False
    yield "a longer length", b"\x30\x82\x00" + good[1:], False
    yield "a length of 4 GiB", b"\x30\x84\xff\xff\xff\xff" + inside, False
    yield "no end told", b"\x30\x80" + inside + b"\0\0", False
    yield "a set", b"\x31" + good[1:], False
    yield "a text", b"\x04" + good[1:], False
    for before, one, after, name in ((b"", first, second, "r"), (first, second, b"", "s")):
        content = one[2:]
        spoilt = {
            "with a zero before": element(2, b"\0" + content),
            "with a long length": b"\x02\x81" + one[1:],
            "as a text": b"\x04" + one[1:],
            "without bytes": b"\x02\x00",
            "as NULL": b"\x05\x00",
        }
        # without the leading zero byte, the number reads as negative
        if content[0] == 0:
            spoilt["read as negative"] = element(2, content[1:])
        for how, number in spoilt.items():
            yield f"{name} {how}", element(0x30, before + number + after), False
    yield "r alone", element(0x30, first), False
    yield "three numbers", element(0x30, inside + whole(1)), False


def _other_numbers(r: int, s: int) -> Iterator[Vector]:
    """Return correct DER of numbers that no valid signature can have."""
    n = P256_ORDER
    edges = (0, 1, -1, n, n - 1, n + 1, 2**256 - 1, 2**256)
    for edge in edges:
        yield f"r is {edge:x}", pair(edge, s), False
        yield f"s is {edge:x}", pair(r, edge), False
        yield f"both are {edge:x}", pair(edge, edge), False
    yield "r beyond the order", pair(r + n, s), False
    yield "s beyond the order", pair(r, s + n), False
    yield "r negative", pair(-r, s), False
    yield "s negative", pair(r, -s), False
    yield "the negative s beyond", pair(r, s - n), False
    yield "swapped", pair(s, r), False


def ed25519_vectors(key: Ed25519PrivateKey, message: bytes) -> Iterator[Vector]:
    """Return Ed25519 vectors over the message itself (RFC 8032, 5.1.6 and 5.1.7)."""
    good = key.sign(message)
    point, scalar = good[:32], int.from_bytes(good[32:], "little")

    def with_scalar(number: int) -> bytes:
        return point + number.to_bytes(32, "little")

    yield "as it is", good, True
    # equal modulo the order: a verifier that forgets to compare with the order accepts it
    yield "s beyond the order", with_scalar(scalar + ED25519_ORDER), False
    yield "s far beyond the order", with_scalar(scalar + 8 * ED25519_ORDER), False
    yield "the other s", with_scalar(ED25519_ORDER - scalar), False
    yield "s is zero", with_scalar(0), False
    yield "s is the order", with_scalar(ED25519_ORDER), False
    yield "s with its first bit", good[:63] + bytes((good[63] | 0x80,)), False
    yield "the point's sign", good[:31] + bytes((good[31] ^ 0x80,)) + good[32:], False
    yield "empty", b"", False
    yield "the point alone", point, False
    yield "one byte short", good[:-1], False
    yield "a byte behind", good + b"\0", False
    yield "twice", good * 2, False
    yield "swapped", good[32:] + point, False
    yield "all zero", bytes(64), False
    yield "all ones", b"\xff" * 64, False
    yield "the point at infinity", b"\x01" + bytes(63), False
    beyond = (ED25519_PRIME + 1).to_bytes(32, "little")
    yield "a point beyond the field", beyond + good[32:], False
    yield "of SHA-512 of the message", key.sign(hashlib.sha512(message).digest()), False
    yield "of SHA-256 of the message", key.sign(hashlib.sha256(message).digest()), False
    yield "of another message", key.sign(message + b"\0"), False
    yield "in DER", pair(int.from_bytes(point, "little"), scalar), False


def small_order_points() -> set[bytes]:
    """Return all encodings of the eight points of order 1, 2, 4 and 8, non-canonical ones too."""
    p = ED25519_PRIME
    d = -121665 * pow(121666, -1, p) % p
    found = set()
    # a point of order 4 has y = 0; one of order 8 doubles to it: y^2 = x^2, so d y^4 + 2 y^2 = 1
    # up to sign, that is y^2 = (-1 +- sqrt(1 + d)) / d
    root = _root((1 + d) % p)
    squares = [(sign * root - 1) * pow(d, -1, p) % p for sign in (1, -1)]
    roots = {y for square in squares if (y := _root(square, missing=-1)) >= 0}
    numbers = {0, 1, p - 1} | roots | {p - y for y in roots}
    for y in numbers:
        for same in (y, y + p):
            if same < 2**255:
                found |= {(same | sign << 255).to_bytes(32, "little") for sign in (0, 1)}
    return found


def _root(square: int, missing: int | None = None) -> int:
    """Return a square root modulo the prime (RFC 8032, 5.1.3)."""
    p = ED25519_PRIME
    for factor in (1, pow(2, (p - 1) // 4, p)):
        root = pow(square, (p + 3) // 8, p) * factor % p
        if root * root % p == square:
            return root
    if missing is None:
        raise ValueError(square)
    return missing
