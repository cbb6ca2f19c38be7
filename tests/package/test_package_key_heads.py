"""What the beginning of a key file tells before a training, and how little of it is read."""

from __future__ import annotations

import io

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa, x25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from each_row import each_row

from gate.errors import SettingsError
from gate.package.signers import key_head, refuse_head

PKCS8, SEC1 = PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL
P256, P384 = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP384R1())
ED25519 = ed25519.Ed25519PrivateKey.generate()
Key = (
    ec.EllipticCurvePrivateKey
    | ed25519.Ed25519PrivateKey
    | ed448.Ed448PrivateKey
    | x25519.X25519PrivateKey
    | rsa.RSAPrivateKey
)


def _pem(key: Key, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


@each_row(
    ("key", "form"),
    [
        (P384, PKCS8),
        (P384, SEC1),
        (ec.generate_private_key(ec.SECP256K1()), PKCS8),
        (ed448.Ed448PrivateKey.generate(), PKCS8),
        (x25519.X25519PrivateKey.generate(), PKCS8),
        (rsa.generate_private_key(65537, 2048), PKCS8),
        (rsa.generate_private_key(65537, 2048), SEC1),
    ],
)
def test_a_plain_key_of_another_kind_is_told_by_its_beginning(
    key: Key, form: PrivateFormat
) -> None:
    with pytest.raises(SettingsError, match="is neither an ECDSA key on P-256 nor an Ed25519 key"):
        refuse_head(key_head(io.BytesIO(_pem(key, form))), "it", allow_plain=True)


@each_row(("key", "form"), [(P256, PKCS8), (P256, SEC1), (ED25519, PKCS8)])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_a_plain_key_that_signs_is_taken_where_it_is_allowed(
    key: Key, form: PrivateFormat, line_end: bytes
) -> None:
    head = key_head(io.BytesIO(_pem(key, form).replace(b"\n", line_end)))
    refuse_head(head, "it", allow_plain=True)
    with pytest.raises(SettingsError, match="it is not encrypted"):
        refuse_head(head, "it", allow_plain=False)


@each_row(("key", "form", "most"), [(P256, PKCS8, 36), (P256, SEC1, 8), (ED25519, PKCS8, 16)])
def test_nothing_of_the_secret_is_read(key: Key, form: PrivateFormat, most: int) -> None:
    file = io.BytesIO(_pem(key, form))
    label, _, body = key_head(file).partition("\n")
    assert (len(body), file.tell()) == (most, len(label) + 1 + most)


def test_a_key_that_is_encrypted_in_the_old_way_is_told_how_to_encrypt_it_again() -> None:
    pem = P256.private_bytes(Encoding.PEM, SEC1, BestAvailableEncryption(b"a pass phrase"))
    with pytest.raises(SettingsError, match="openssl's old way, which is weak") as caught:
        refuse_head(key_head(io.BytesIO(pem)), "it", allow_plain=True)
    assert "openssl pkcs8 -topk8 -scrypt" in caught.value.hint
