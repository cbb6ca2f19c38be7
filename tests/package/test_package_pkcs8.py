"""Encrypted key files: openssl reads ours, we read openssl's; what is weak or huge is refused."""

from __future__ import annotations

import base64
import shutil
import subprocess

import pytest
from attestation_cases import PASSPHRASE, gate_key, locked_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import AttestationError
from gate.package.keys import (
    PBES2,
    PBKDF2,
    SCRYPT,
    DerReader,
    generate_private_key,
    integer,
    load_private_key,
    object_identifier,
    octet_string,
    private_pem,
    public_pem,
    read_encrypted,
    sequence,
)
from gate.package.seal_records import KeyAlgorithm

OPENSSL = shutil.which("openssl")
needs_openssl = pytest.mark.skipif(not OPENSSL, reason="no openssl command here")
PLAIN = gate_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def openssl(*words: str, given: bytes) -> bytes:
    environment = {"PHRASE": PASSPHRASE.decode()}
    done = subprocess.run(
        (str(OPENSSL), *words), input=given, env=environment, capture_output=True, check=True
    )
    return done.stdout


def refused(pem: bytes) -> AttestationError:
    with pytest.raises(AttestationError) as caught:
        load_private_key(pem, PASSPHRASE)
    assert caught.value.hint
    return caught.value


def armoured(document: bytes) -> bytes:
    label = b"ENCRYPTED PRIVATE KEY-----"
    return b"-----BEGIN %b\n%b\n-----END %b\n" % (label, base64.b64encode(document), label)


def asking(derivation: bytes, *numbers: int) -> bytes:
    """A key file whose derivation asks for these numbers."""
    parameters = sequence(octet_string(b"salt"), *map(integer, numbers))
    scheme = sequence(PBES2, sequence(sequence(derivation, parameters), sequence()))
    return armoured(sequence(scheme, octet_string(b"x" * 16)))


@needs_openssl
@pytest.mark.parametrize("algorithm", KeyAlgorithm)
def test_openssl_reads_what_is_written(algorithm: KeyAlgorithm) -> None:
    key = generate_private_key(algorithm)
    pem = private_pem(key, PASSPHRASE)
    shown = openssl("pkey", "-passin", "env:PHRASE", "-pubout", given=pem)
    assert shown == public_pem(key.public_key())
    assert b"scrypt" in openssl("asn1parse", given=pem)


@needs_openssl
@pytest.mark.parametrize("way", [("-scrypt",), ("-iter", "100000")])
def test_what_openssl_writes_is_read(way: tuple[str, ...]) -> None:
    pem = openssl("pkcs8", "-topk8", "-passout", "env:PHRASE", *way, given=PLAIN)
    assert load_private_key(pem, PASSPHRASE).public_key() == gate_key().public_key()


@needs_openssl
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("pkcs8", "-topk8"), "is weakly protected: PBKDF2 with 2,048 rounds"),
        (
            ("pkcs8", "-topk8", "-scrypt", "-scrypt_N", "1024"),
            "is weakly protected: scrypt with N 1,024, r 8, p 1",
        ),
        (("pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES"), "an old scheme, which is not PBES2"),
        (("pkey", "-traditional", "-aes256"), "not one encrypted key in PKCS#8 PEM"),
    ],
)
def test_a_weak_encryption_is_refused_with_the_command_that_mends_it(
    words: tuple[str, ...], message: str
) -> None:
    fault = refused(openssl(*words, "-passout", "env:PHRASE", given=PLAIN))
    assert message in fault.message
    assert "`openssl pkcs8 -topk8 -scrypt -in " in fault.hint


def test_what_other_libraries_write_by_default_is_weak() -> None:
    encryption = BestAvailableEncryption(PASSPHRASE)
    pem = gate_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    assert "PBKDF2 with 2,048 rounds" in refused(pem).message


@each_row(
    ("derivation", "numbers", "message"),
    [
        (SCRYPT, (1 << 30, 8, 1), "asks for too much: scrypt with N 1,073,741,824, r 8, p 1"),
        (SCRYPT, (1 << 14, 8, 1 << 40), "asks for too much"),
        (SCRYPT, (1 << 20, 1, 17), "asks for too much"),
        (SCRYPT, ((1 << 14) + 1, 8, 5), "cannot be read: scrypt with N 16,385, r 8, p 5 is not"),
        (SCRYPT, (1 << 20, 0, 5), "is not scrypt"),
        (SCRYPT, (1 << 14, 8), "cannot be read"),
        (PBKDF2, (1 << 31,), "asks for too much: 2,147,483,648 rounds of PBKDF2"),
        (object_identifier("1.2.3"), (1,), "neither scrypt nor PBKDF2"),
    ],
)
def test_numbers_that_are_none_or_cost_too_much_are_refused_at_once(
    derivation: bytes, numbers: tuple[int, ...], message: str
) -> None:
    fault = refused(asking(derivation, *numbers))
    assert message in fault.message


@each_row(
    "pem",
    [
        armoured(b""),
        armoured(sequence()),
        armoured(b"\x30\x80" + b"\x00" * 20),
        armoured(b"\x30\x84\xff\xff\xff\xff"),
        armoured(b"\x30\x81\x02\x05\x00"),
        armoured(read_encrypted(locked_key())[:-1]),
        asking(SCRYPT, 10**400, 8, 1),
        locked_key() * 2,
        locked_key().replace(b"PRIVATE", b"PUBLIC"),
        b"ENCRYPTED",
    ],
)
def test_a_damaged_file_is_one_plain_fault(pem: bytes) -> None:
    assert refused(pem).message.startswith("the signing key")


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_in_one_way(data: bytes) -> None:
    assert refused(armoured(data)).message.startswith("the signing key")


def test_a_key_inside_that_is_none_is_told_as_a_wrong_pass_phrase_is() -> None:
    assert "the pass phrase is wrong, or" in refused(asking(SCRYPT, 1 << 14, 8, 5)).message


@given(st.integers(min_value=0, max_value=2**63 - 1), st.binary(max_size=300))
def test_what_is_encoded_is_read_again(number: int, content: bytes) -> None:
    reader = DerReader(sequence(integer(number), octet_string(content)))
    inside = reader.inside()
    assert (inside.number(), inside.take(4)) == (number, content)
    inside.end()
    reader.end()


@pytest.mark.parametrize(
    "data", [b"\x02\x01\xff", b"\x02\x02\x00\x01", b"\x02\x00", b"\x02\x81\x01\x05"]
)
def test_a_number_has_one_encoding(data: bytes) -> None:
    with pytest.raises(ValueError, match="usual form"):
        DerReader(data).number()
