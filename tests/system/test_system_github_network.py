"""The way to the server: a certificate of one's own authority, a proxy, a status on a commit."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from fake_github import FakeGitHub
from github_client import AT_ONCE, connect
from github_failures import Failure
from tunnel_proxy import TunnelProxy

from gate.errors import PublishError
from gate.system.github.pull_requests import set_commit_status
from gate.system.github.records import CommitStatus, StatusState

COMMIT = "a" * 40
STATUS = CommitStatus(
    commit=COMMIT,
    state=StatusState.FAILURE,
    context="repro-gate",
    description="failed: code drift. " + "x" * 200,
    target_url="https://github.example/run/1",
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate of 127.0.0.1 in one file; nobody's authority has signed it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def enterprise(certificate: Path) -> Iterator[FakeGitHub]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with FakeGitHub(prefix="/api/v3", tls=context) as server:
        yield server


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_an_unknown_authority_is_told_with_the_way_out(
    enterprise: FakeGitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    with connect(enterprise) as client, pytest.raises(PublishError) as caught:
        list(client.listed())
    assert caught.value.message == f"the certificate of {enterprise.origin} was not accepted"
    assert caught.value.hint.startswith("Set REQUESTS_CA_BUNDLE to the file")


def test_an_authority_of_ones_own_is_taken_from_its_bundle(
    enterprise: FakeGitHub, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with connect(enterprise) as client:
        assert client.create("text").body == "text"


def test_the_proxy_carries_the_connection_and_sees_no_token(
    enterprise: FakeGitHub, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with TunnelProxy() as proxy, connect(enterprise) as client:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        assert client.create("text").body == "text"
    (head,) = proxy.heads
    assert head.startswith(f"CONNECT {enterprise.origin.removeprefix('https://')} ")
    assert enterprise.token not in head


def test_a_proxy_that_refuses_is_told_apart(
    enterprise: FakeGitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TunnelProxy(refuses=True) as proxy, connect(enterprise) as client:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with pytest.raises(
            PublishError, match="the proxy refused the request to https://"
        ) as caught:
            list(client.listed())
    assert caught.value.hint == "Check HTTPS_PROXY; list the hosts that need no proxy in NO_PROXY."


def test_a_host_without_a_proxy_is_reached_directly(
    enterprise: FakeGitHub, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with connect(enterprise) as client:
        assert list(client.listed()) == []


def _set(github: FakeGitHub) -> None:
    set_commit_status(
        STATUS,
        api_url=github.api_url,
        repository="org/repo",
        token=github.token,
        policy=AT_ONCE,
    )


def test_a_status_stands_on_its_commit_and_is_short_enough(github: FakeGitHub) -> None:
    _set(github)
    (status,) = github.statuses(COMMIT)
    assert (status["state"], status["context"]) == ("failure", "repro-gate")
    assert len(status["description"]) == 140


def test_a_status_is_set_again_since_the_newest_counts(github: FakeGitHub) -> None:
    github.fail_next("POST", Failure.CUT_AFTER_STORING, Failure.UNAVAILABLE)
    _set(github)
    assert {status["state"] for status in github.statuses(COMMIT)} == {"failure"}
    assert github.methods() == ["POST"] * 3


def test_a_status_that_may_not_be_set_names_its_own_permission(github: FakeGitHub) -> None:
    github.fail_next("POST", Failure.REFUSED)
    with pytest.raises(PublishError, match="may not set a commit status") as caught:
        _set(github)
    assert caught.value.hint.startswith("Give the job the permission `statuses: write`")
