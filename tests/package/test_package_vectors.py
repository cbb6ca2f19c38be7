"""Signatures that are nearly valid, keys that are nearly ours: what `verify` makes of each of them.

The vectors are made here; the packages `cryptography-vectors` and `securesystemslib` bring what
others hold to be right.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from attestation_cases import CREATED_AT
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa, x25519
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from each_row import each_row
from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer._key import SSlibKey
from securesystemslib.signer._signature import Signature as TheirSignature
from signature_vectors import (
    Vector,
    ecdsa_vectors,
    ed25519_vectors,
    small_order_points,
)

from gate.errors import AttestationError
from gate.package.envelope import pae, verify
from gate.package.keys import (
    PrivateKey,
    generate_private_key,
    is_signature,
    load_private_key,
    public_key,
    trusted_key,
)
from gate.package.seal_records import Envelope, KeyAlgorithm, Signature, TrustedKey, TrustedKeys

# The example of the DSSE protocol: type, payload, private key, and the signature as raw r and s.
TYPE, PAYLOAD = "http://example.com/HelloWorld", b"hello world"
SECRET = 97358161215184420915383655311931858321456579547487070936769975997791359926199
RAW = base64.b64decode(
    "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="
)
MESSAGE = pae(TYPE, PAYLOAD)


@cache
def key_of(algorithm: KeyAlgorithm) -> PrivateKey:
    return generate_private_key(algorithm)


@cache
def vectors(algorithm: KeyAlgorithm) -> tuple[Vector, ...]:
    key = key_of(algorithm)
    if isinstance(key, Ed25519PrivateKey):
        return tuple(ed25519_vectors(key, MESSAGE))
    # a number whose first bit is set would be negative without the zero before it: both have one
    made: tuple[Vector, ...] = ()
    while sum("read as negative" in name for name, _, _ in made) < 2:
        made = tuple(ecdsa_vectors(key, MESSAGE))
    return made


def trust(*keys: TrustedKey) -> TrustedKeys:
    return TrustedKeys(keys=tuple(sorted(keys, key=lambda each: each.key_id)))


def trust_in(key: PrivateKey) -> TrustedKeys:
    return trust(trusted_key(key.public_key(), added_at=CREATED_AT))


def sealed_with(*values: bytes) -> Envelope:
    signatures = tuple(Signature(key_id="", value=value) for value in values)
    return Envelope(payload=PAYLOAD, payload_type=TYPE, signatures=signatures)


def counts(value: bytes, trusted: TrustedKeys) -> bool:
    """Whether it verifies; a refusal is the one fault with its hint, whatever is wrong."""
    try:
        verify(sealed_with(value), trusted)
    except AttestationError as fault:
        return fault.message != "no trusted key made this signature" or not fault.hint
    return True


@pytest.mark.parametrize("algorithm", KeyAlgorithm)
def test_each_vector_counts_or_is_refused_in_one_way(algorithm: KeyAlgorithm) -> None:
    trusted = trust_in(key_of(algorithm))
    wrong = [name for name, value, good in vectors(algorithm) if counts(value, trusted) is not good]
    assert wrong == []
    assert len(vectors(algorithm)) > 20


@pytest.mark.parametrize("algorithm", KeyAlgorithm)
def test_no_vector_counts_under_a_key_of_the_other_kind(algorithm: KeyAlgorithm) -> None:
    (other,) = set(KeyAlgorithm) - {algorithm}
    trusted = trust_in(key_of(other))
    assert not any(counts(value, trusted) for _, value, _ in vectors(algorithm))


@pytest.mark.parametrize("algorithm", KeyAlgorithm)
def test_a_verifier_that_others_wrote_agrees_on_each(algorithm: KeyAlgorithm) -> None:
    key = SSlibKey.from_crypto(key_of(algorithm).public_key())

    def theirs(value: bytes) -> bool:
        try:
            key.verify_signature(TheirSignature(key.keyid, value.hex()), MESSAGE)
        except UnverifiedSignatureError:
            return False
        return True

    assert [name for name, value, good in vectors(algorithm) if theirs(value) is not good] == []


def test_a_good_signature_counts_among_all_the_others() -> None:
    key = key_of(KeyAlgorithm.ECDSA_P256)
    values = [value for _, value, good in vectors(KeyAlgorithm.ECDSA_P256) if not good]
    with pytest.raises(AttestationError, match="no trusted key made this signature"):
        verify(sealed_with(*values), trust_in(key))
    good = vectors(KeyAlgorithm.ECDSA_P256)[0][1]
    trusted = trust_in(key)
    assert verify(sealed_with(*values, good), trusted) == trusted.keys[0]


def test_the_example_of_the_dsse_protocol() -> None:
    """Its signature is raw r and s; what is taken here is the same in DER."""
    key = ec.derive_private_key(SECRET, ec.SECP256R1())
    signature = key.sign(MESSAGE, ec.ECDSA(SHA256(), deterministic_signing=True))
    r, s = decode_dss_signature(signature)
    assert r.to_bytes(32, "big") + s.to_bytes(32, "big") == RAW
    assert counts(signature, trust_in(key))
    assert not counts(RAW, trust_in(key))


@each_row(
    "key",
    [
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP256K1()),
        ec.generate_private_key(ec.BrainpoolP256R1()),
        rsa.generate_private_key(65537, 2048),
        ed448.Ed448PrivateKey.generate(),
        x25519.X25519PrivateKey.generate(),
    ],
)
def test_a_key_of_any_other_kind_never_counts(
    key: ec.EllipticCurvePrivateKey
    | rsa.RSAPrivateKey
    | ed448.Ed448PrivateKey
    | x25519.X25519PrivateKey,
) -> None:
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(AttestationError, match="is neither an ECDSA key on P-256 nor an Ed25519"):
        public_key(der, "it")


def test_a_key_under_which_anybody_can_sign_never_counts() -> None:
    points = small_order_points()
    assert len(points) == 14
    guessed = [point + bytes(32) for point in points]
    for point in points:
        key = Ed25519PublicKey.from_public_bytes(point)
        # nobody knows a private key of it, and yet
        assert any(
            is_signature(key, value, str(number).encode())
            for value in guessed
            for number in range(16)
        )
        der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        with pytest.raises(AttestationError, match="small order, under which anybody can sign"):
            public_key(der, "it")


def published(*parts: str) -> Path:
    package = pytest.importorskip("cryptography_vectors")
    return Path(package.__file__).parent.joinpath(*parts)


def nist_vectors() -> Iterator[dict[str, str]]:
    """NIST's own for P-256 with SHA-256 (CAVP, 186-3 SigVer)."""
    text = published("asymmetric", "ECDSA", "FIPS_186-3", "SigVer.rsp").read_text()
    section = text.split("[P-256,SHA-256]")[1].split("[")[0]
    for block in re.split(r"\n\s*\n", section.strip()):
        yield dict(re.findall(r"^(\w+) = (\w+)", block, re.MULTILINE))


def test_nists_verdict_on_each_of_its_vectors_is_ours() -> None:
    results = []
    for vector in nist_vectors():
        x, y, r, s = (int(vector[name], 16) for name in ("Qx", "Qy", "R", "S"))
        key = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
        signature = encode_dss_signature(r, s)
        found = is_signature(key, signature, bytes.fromhex(vector["Msg"]))
        assert found is (vector["Result"] == "P")
        results.append(found)
    assert (len(results), any(results)) == (15, True)


def test_the_authors_of_ed25519_sign_as_we_do() -> None:
    lines = published("asymmetric", "Ed25519", "sign.input").read_text().splitlines()
    assert len(lines) == 1024
    for line in lines[::16]:
        secret, public, message, signed = (bytes.fromhex(part) for part in line.split(":")[:4])
        key = Ed25519PrivateKey.from_private_bytes(secret[:32])
        assert key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw) == public
        assert is_signature(key.public_key(), signed[:64], message)
        assert not is_signature(key.public_key(), signed[:64], message + b"\0")


def test_no_key_file_that_others_collected_ends_in_anything_but_a_key_or_a_fault() -> None:
    paths = sorted(published("asymmetric", "PKCS8").glob("*.pem"))
    assert len(paths) > 30
    read, hints = set(), []
    for path in paths:
        for phrase in (b"foobar", b"hunter42"):
            try:
                load_private_key(path.read_bytes(), phrase, allow_plain=True)
                read.add(path.name)
            except AttestationError as fault:
                hints.append(fault.hint)
    assert all(hints)
    assert {"ed25519-scrypt.pem", "ec_private_key.pem"} <= read
