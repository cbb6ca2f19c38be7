"""A key in a vault: what is asked for, what is taken, and every wrong answer in words."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from attestation_cases import CREATED_AT
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID
from each_row import each_row
from fake_vault import TOKEN, FakeVault, Key
from github_client import AT_ONCE
from securesystemslib.dsse import Envelope as TheirEnvelope
from securesystemslib.signer._vault_signer import VaultSigner as TheirSigner

from gate.errors import AttestationError, GateError, SettingsError
from gate.package.envelope import read_envelope, sign, verify
from gate.package.keys import trusted_key
from gate.package.seal_records import PAYLOAD_TYPE, SealFile, TrustedKeys
from gate.package.signers import VaultSigner, check_place
from gate.settings.signer_places import VaultPlace, read_signer_place
from gate.system.files.files import LocalFiles

FILES = LocalFiles()
ECDSA = ec.generate_private_key(ec.SECP256R1())
ED25519 = Ed25519PrivateKey.generate()
both_kinds = pytest.mark.parametrize("key", [ECDSA, ED25519], ids=["ecdsa", "ed25519"])


@pytest.fixture
def vault() -> Iterator[FakeVault]:
    with FakeVault() as server:
        yield server


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def signed(variables: Mapping[str, str], where: str = "vault:transit/gate") -> bool:
    """Whether the key verifies what came back, which signing itself looks at."""
    return len(sign(b"{}", PAYLOAD_TYPE, signer(variables, where)).signatures) == 1


def signer(variables: Mapping[str, str], where: str = "vault:transit/gate") -> VaultSigner:
    place = read_signer_place(where)
    assert isinstance(place, VaultPlace)
    return VaultSigner(place, FILES, variables, AT_ONCE)


def fault_of(vault: FakeVault, where: str = "vault:transit/gate", **more: str) -> GateError:
    """What stops a signature, without the token in it."""
    with pytest.raises(AttestationError) as caught:
        sign(b"{}", PAYLOAD_TYPE, signer({**vault.variables, **more}, where))
    assert TOKEN not in str(caught.value)
    assert caught.value.hint
    return caught.value


@both_kinds
def test_a_statement_is_signed_there_and_verifies_here(vault: FakeVault, key: Key) -> None:
    vault.add("gate", key)
    envelope = sign(b"{}", PAYLOAD_TYPE, signer(vault.variables))
    entry = trusted_key(key.public_key(), added_at=CREATED_AT)
    assert verify(envelope, TrustedKeys(keys=(entry,))) == entry


def test_ecdsa_sends_a_digest_and_ed25519_never_does(vault: FakeVault) -> None:
    vault.add("gate", ECDSA)
    vault.add("ed", ED25519)
    sign(b"x" * 100_000, PAYLOAD_TYPE, signer(vault.variables))
    sign(b"{}", PAYLOAD_TYPE, signer(vault.variables, "vault:transit/ed"))
    requests = [body for path, body in vault.asked if path.startswith("POST")]
    assert requests[0] | {"input": ""} == {
        "input": "",
        "prehashed": True,
        "hash_algorithm": "sha2-256",
        "marshaling_algorithm": "asn1",
        "key_version": 1,
    }
    assert len(requests[0]["input"]) == 44
    assert requests[1].keys() == {"input", "key_version"}


def test_the_version_of_the_public_key_signs_though_the_key_is_rotated_meanwhile(
    vault: FakeVault,
) -> None:
    vault.add("gate", ECDSA)
    here = signer(vault.variables)
    public = here.public_key()
    vault.add("gate", ec.generate_private_key(ec.SECP256R1()))
    sign(b"{}", PAYLOAD_TYPE, here)
    assert here.public_key() == public
    assert vault.asked[-1][1]["key_version"] == 1


def test_an_older_version_is_asked_for_by_its_number(vault: FakeVault) -> None:
    vault.add("gate", ECDSA, ec.generate_private_key(ec.SECP256R1()))
    assert signed(vault.variables, "vault:transit/gate#1")
    assert "has no version 3" in fault_of(vault, "vault:transit/gate#3").message


@pytest.mark.parametrize("sent", ["v2", "v01", "", "v1 "])
def test_a_signature_of_another_version_is_refused(vault: FakeVault, sent: str) -> None:
    vault.add("gate", ECDSA)
    here = signer(vault.variables)
    here.public_key()
    vault.change(signature=f"vault:{sent}:AAAA")
    with pytest.raises(AttestationError, match="signed with another version than 1"):
        here.sign(b"{}")


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("vault:v1:not base64", "Vault's signature is not base64"),
        ("vault:v1:AAAA", "its own public key does not verify"),
        ("vault:v1:", "its own public key does not verify"),
    ],
)
def test_a_signature_that_is_none_is_refused(
    vault: FakeVault, signature: str, message: str
) -> None:
    vault.add("gate", ECDSA)
    vault.change(signature=signature)
    assert message in fault_of(vault).message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "aes256-gcm96", "keys": {"1": 1700000000}}, "is of type aes256-gcm96"),
        ({"type": "rsa-4096"}, "is of type rsa-4096"),
        ({"type": "ed25519", "derived": True}, "is of type derived ed25519"),
        ({"keys": {"1": 5}}, "has no version 1"),
        ({"keys": {"1": {"public_key": "-----BEGIN"}}}, "version 1, gave no public key"),
        ({"type": "ed25519", "keys": {"1": {"public_key": "AAAA"}}}, "no Ed25519 key of 32 bytes"),
        ({"type": "ed25519", "keys": {"1": {"public_key": "%"}}}, "is not base64"),
        ({"latest_version": "many"}, "is not what was asked for"),
        ({"keys": []}, "is not what was asked for"),
    ],
)
def test_a_key_that_cannot_be_used_is_told(
    vault: FakeVault, change: dict[str, object], message: str
) -> None:
    vault.add("gate", ECDSA)
    vault.change(**change)
    assert message in fault_of(vault).message


def test_a_refused_token_is_told_with_the_policy_that_it_needs(vault: FakeVault) -> None:
    fault = fault_of(vault, VAULT_TOKEN="hvs.another")
    assert fault.message == f"Vault at {vault.url} answered 403"
    assert fault.details == ("permission denied for ***",)
    assert "update on transit/sign/gate" in fault.hint


def test_a_key_that_is_not_there_is_told(vault: FakeVault) -> None:
    fault = fault_of(vault)
    assert (fault.message, fault.hint) == (
        f"Vault at {vault.url} answered 404",
        "Check mount and key, and VAULT_NAMESPACE.",
    )


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_redirect_is_followed_with_the_token(vault: FakeVault, status: int) -> None:
    with FakeVault() as other:
        vault.answer_next(status=status, location=f"{other.url}/v1/transit/keys/gate")
        assert "Redirects are not followed" in fault_of(vault).hint
        assert other.asked == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"x" * (4 * 1024 * 1024 + 1), "is larger than 4 MiB"),
        (b"[" * 100_000, "is not what was asked for"),
        (b"\xff", "is not what was asked for"),
        (b"{}", "is not what was asked for"),
    ],
)
def test_an_answer_that_is_none_is_told(vault: FakeVault, body: bytes, message: str) -> None:
    vault.answer_next(body=body)
    assert message in fault_of(vault).message


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"errors": 5}', b'{"errors": [1, {}]}', b"5"])
def test_a_refusal_without_words_is_one_all_the_same(vault: FakeVault, body: bytes) -> None:
    vault.answer_next(status=400, body=body)
    assert fault_of(vault).details == ()


def test_a_vault_that_is_sealed_for_a_moment_is_asked_again(vault: FakeVault) -> None:
    vault.add("gate", ECDSA)
    vault.answer_next(status=503, body=b'{"errors": ["Vault is sealed"]}')
    assert signed(vault.variables)


def test_the_namespace_is_named() -> None:
    with FakeVault(namespace="team/ml") as other:
        other.add("gate", ECDSA)
        assert signed({**other.variables, "VAULT_NAMESPACE": "team/ml"})
        assert "answered 403" in fault_of(other).message


def test_the_token_comes_from_a_file_where_no_variable_has_it(
    vault: FakeVault, tmp_path: Path
) -> None:
    vault.add("gate", ECDSA)
    (tmp_path / ".vault-token").write_text(f"{TOKEN}\n")
    (tmp_path / "agent").write_text(TOKEN)
    for more in (
        {"HOME": str(tmp_path)},
        {"VAULT_TOKEN_FILE": str(tmp_path / "agent"), "HOME": "/nowhere"},
    ):
        assert signed({"VAULT_ADDR": vault.url, **more})


@pytest.mark.parametrize("token", ["two words", "a\r\nX-Other: 1", "\u00e9", "x" * 20_000])
def test_a_token_that_is_none_is_never_sent(vault: FakeVault, tmp_path: Path, token: str) -> None:
    path = tmp_path / "token"
    path.write_text(token)
    variables = {"VAULT_ADDR": vault.url, "VAULT_TOKEN_FILE": str(path)}
    with pytest.raises(AttestationError, match="the vault's token") as caught:
        signer(variables)
    assert token not in str(caught.value)


@each_row(
    ("variables", "message"),
    [
        ({}, "vault: VAULT_ADDR is not set"),
        ({"VAULT_ADDR": "vault.example"}, "VAULT_ADDR is not an address"),
        ({"VAULT_ADDR": "http://vault.example:8200"}, "does not begin with https://"),
        ({"VAULT_ADDR": "ftp://127.0.0.1"}, "does not begin with https://"),
        ({"VAULT_ADDR": "https://me:word@vault.example"}, "VAULT_ADDR is not an address"),
        ({"VAULT_ADDR": "https://vault.example:port"}, "VAULT_ADDR is not an address"),
        ({"VAULT_ADDR": "https://vault.example/?a=b"}, "VAULT_ADDR is not an address"),
        ({"VAULT_ADDR": "https://vault.example"}, "vault: there is no token"),
        ({"VAULT_ADDR": "https://vault.example", "HOME": "/nowhere"}, "there is no token"),
    ],
)
def test_what_can_never_sign_is_told_without_asking_anybody(
    variables: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        check_place(read_signer_place("vault:transit/gate"), FILES, variables)
    assert "word" not in str(caught.value)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Key and certificate of 127.0.0.1 in one file; nobody's authority has signed it."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, ECDSA.public_key(), 1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(ECDSA, SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path / "server.pem"
    path.write_bytes(ECDSA.private_bytes(pem, *plain) + made.public_bytes(pem))
    return path


def test_the_certificate_has_to_be_trusted(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with FakeVault(tls=context) as vault:
        vault.add("gate", ECDSA)
        trusting = {**vault.variables, "VAULT_CACERT": str(certificate)}
        assert signed(trusting)
        lax = {"VAULT_SKIP_VERIFY": "true"}
        assert "has a certificate that is not trusted here" in fault_of(vault, **lax).message


def test_an_authority_that_is_no_file_is_told(vault: FakeVault, tmp_path: Path) -> None:
    vault.add("gate", ECDSA)
    variables = {**vault.variables, "VAULT_CACERT": str(tmp_path / "missing.pem")}
    with pytest.raises(SettingsError, match="there is no file at VAULT_CACERT"):
        check_place(read_signer_place("vault:transit/gate"), FILES, variables)


@both_kinds
def test_a_client_that_others_wrote_is_given_the_same(vault: FakeVault, key: Key) -> None:
    """The server that plays the vault answers as `hvac` expects: our requests are not its only."""
    hvac = pytest.importorskip("hvac")
    vault.add("gate", key)
    client = hvac.Client(url=vault.url, token=TOKEN)
    told = client.secrets.transit.read_key("gate")["data"]
    assert told["keys"].keys() == {"1"}
    asked = {"hash_input": "e30=", "key_version": 1}
    answer = client.secrets.transit.sign_data("gate", **asked)["data"]["signature"]
    assert answer.startswith("vault:v1:")


def test_securesystemslib_signs_there_and_our_trust_file_verifies_it(
    vault: FakeVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hvac")
    vault.add("gate", ED25519)
    for name, value in vault.variables.items():
        monkeypatch.setenv(name, value)
    uri, public = TheirSigner.import_("gate")
    envelope = TheirEnvelope(b"{}", PAYLOAD_TYPE, {})
    envelope.sign(TheirSigner.from_priv_key_uri(uri, public))
    content = json.dumps(envelope.to_dict()).encode()
    entry = trusted_key(ED25519.public_key(), added_at=CREATED_AT)
    read = read_envelope(SealFile(name="theirs", content=content))
    assert verify(read, TrustedKeys(keys=(entry,))) == entry
