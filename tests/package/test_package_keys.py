"""Keys: what is written, what is read, what is refused."""

from __future__ import annotations

import base64
import hashlib

import pytest
from attestation_cases import CREATED_AT, PASSPHRASE, gate_key, locked_key, other_key, trust_of
from cryptography.hazmat.primitives.asymmetric import ec, ed448
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from each_row import each_row

from gate.errors import AttestationError, SettingsError
from gate.package.keys import (
    key_id,
    load_private_key,
    private_pem,
    public_der,
    read_trusted_keys,
    trusted_key,
    trusted_public_key,
    with_key,
)
from gate.package.seal_records import KeyStatus, TrustedKeys
from gate.text.documents import write_document

P384 = ec.generate_private_key(ec.SECP384R1())


def _pkcs8(key: ec.EllipticCurvePrivateKey | ed448.Ed448PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_encrypted_key_round_trips() -> None:
    pem = private_pem(gate_key(), PASSPHRASE)
    loaded = load_private_key(pem, PASSPHRASE)
    assert pem.startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    assert key_id(loaded.public_key()) == key_id(gate_key().public_key())


def test_plain_key_is_written_and_read_only_on_demand() -> None:
    with pytest.raises(SettingsError, match="not written without a pass phrase"):
        private_pem(gate_key(), None)
    pem = private_pem(gate_key(), None, allow_plain=True)
    with pytest.raises(AttestationError, match="the signing key is not encrypted"):
        load_private_key(pem, None)
    loaded = load_private_key(pem, PASSPHRASE, allow_plain=True)
    assert loaded.public_key() == gate_key().public_key()


def test_short_passphrase_is_refused() -> None:
    with pytest.raises(SettingsError, match="shorter than 16 bytes"):
        private_pem(gate_key(), b"secret")


@pytest.mark.parametrize("passphrase", [None, b""])
def test_missing_passphrase_is_told(passphrase: bytes | None) -> None:
    with pytest.raises(AttestationError, match="encrypted and no pass phrase was given"):
        load_private_key(locked_key(), passphrase)


def test_wrong_passphrase_is_told_without_repeating_it() -> None:
    with pytest.raises(AttestationError, match="pass phrase is wrong, or the key is dam") as caught:
        load_private_key(locked_key(), b"another pass phrase")
    assert "another" not in str(caught.value)


def test_text_that_is_no_key_is_refused() -> None:
    with pytest.raises(AttestationError, match="signing key cannot be read: no private key in PEM"):
        load_private_key(b"hello", None, allow_plain=True)


@pytest.mark.parametrize("key", [P384, ed448.Ed448PrivateKey.generate()])
def test_key_of_another_kind_is_refused(
    key: ec.EllipticCurvePrivateKey | ed448.Ed448PrivateKey,
) -> None:
    with pytest.raises(
        AttestationError,
        match="the signing key is neither an ECDSA key on P-256",
    ):
        load_private_key(_pkcs8(key), None, allow_plain=True)


def test_public_key_round_trips() -> None:
    public = gate_key().public_key()
    assert trusted_public_key(trusted_key(public, added_at=CREATED_AT)) == public


def test_key_id_is_the_digest_of_the_der() -> None:
    public = gate_key().public_key()
    assert key_id(public) == hashlib.sha256(public_der(public)).hexdigest()


def test_added_key_keeps_the_document_sorted() -> None:
    other = trusted_key(other_key().public_key(), added_at=CREATED_AT, comment="spare")
    ids = [key.key_id for key in with_key(trust_of(), other).keys]
    assert ids == sorted(ids)
    assert len(ids) == 2


def test_listed_key_is_not_added_again() -> None:
    revoked = trust_of(KeyStatus.REVOKED)
    with pytest.raises(SettingsError, match="already listed, as revoked"):
        with_key(revoked, trust_of().keys[0])


def test_trust_file_round_trips() -> None:
    assert read_trusted_keys(write_document(trust_of()), "trusted-keys.json") == trust_of()


def test_key_listed_twice_is_refused() -> None:
    (key,) = trust_of().keys
    row = key.model_dump_json()
    text = f'{{"schema_version": "repro-gate.trusted-keys/1", "keys": [{row}, {row}]}}'
    with pytest.raises(AttestationError) as caught:
        read_trusted_keys(text.encode(), "trusted-keys.json")
    assert caught.value.details == ("keys: a key id is listed twice",)


def _trust(**changes: str) -> bytes:
    (key,) = trust_of().keys
    return write_document(TrustedKeys(keys=(key.model_copy(update=changes),)))


def _named(der: bytes) -> dict[str, str]:
    return {
        "raw_bytes": base64.b64encode(der).decode(),
        "key_id": hashlib.sha256(der).hexdigest(),
    }


P384_DER = P384.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@each_row(
    ("changes", "message"),
    [
        ({"key_id": "0" * 64}, "raw_bytes does not match this key id"),
        ({"raw_bytes": "AA=A"}, "is not valid base64"),
        (_named(b"junk"), "not a public key"),
        ({"key_details": "PKIX_ED25519"}, "not the kind of key that key_details says"),
        (_named(P384_DER), "is neither an ECDSA key on P-256 nor an Ed25519 key"),
    ],
)
def test_damaged_trust_entry_is_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(AttestationError, match=message):
        read_trusted_keys(_trust(**changes), "trusted-keys.json")
