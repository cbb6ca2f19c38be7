"""What a keyless seal asks of others: every wrong answer has its own words and tells no secret."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from fake_sigstore import (
    CERTIFICATE_PATH,
    ENTRIES_PATH,
    REQUEST_TOKEN,
    TOKENS_PATH,
    FakeSigstore,
    Fault,
)
from github_client import AT_ONCE
from sigstore_authority import new_key

from gate.errors import SealServiceError
from gate.package.envelope import sign, write_envelope
from gate.package.keys import KeyFile
from gate.package.seal_records import PAYLOAD_TYPE
from gate.package.signing import LogEntry
from gate.package.sigstore_services import SigstoreServices
from gate.system.http import RetryPolicy

BUSY = Fault(status=503, body=b'{"code": 13, "message": "too busy"}')
HUGE = Fault(body=b'{"value": "' + b"x" * (4 * 1024 * 1024) + b'"}')
HASTY = RetryPolicy(timeout_seconds=0.2, backoff_seconds=0.0, sleep=lambda _seconds: None)


@pytest.fixture
def sigstore() -> Iterator[FakeSigstore]:
    with FakeSigstore() as server:
        yield server


def services(sigstore: FakeSigstore, policy: RetryPolicy = AT_ONCE) -> SigstoreServices:
    return SigstoreServices(sigstore.settings(), policy)


def token(sigstore: FakeSigstore) -> str:
    return services(sigstore).identity_token(sigstore.request())


def certificate(sigstore: FakeSigstore) -> bytes:
    return certified(sigstore)[1]


def certified(sigstore: FakeSigstore) -> tuple[bytes, bytes]:
    """A signed envelope, and the certificate of the key that signed it."""
    key = new_key()
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    pem = request.sign(key, SHA256()).public_bytes(Encoding.PEM)
    leaf = services(sigstore).certificate(token(sigstore), pem)
    return write_envelope(sign(b"{}", PAYLOAD_TYPE, KeyFile(key))), leaf


def entry(sigstore: FakeSigstore, policy: RetryPolicy = AT_ONCE) -> LogEntry:
    return services(sigstore, policy).entry(*certified(sigstore))


STEPS: dict[str, Callable[[FakeSigstore], object]] = {
    TOKENS_PATH: token,
    CERTIFICATE_PATH: certificate,
    ENTRIES_PATH: entry,
}
NAMES = {
    TOKENS_PATH: "the runner's service for identity tokens",
    CERTIFICATE_PATH: "Fulcio",
    ENTRIES_PATH: "Rekor",
}
each_step = pytest.mark.parametrize("path", STEPS)


def refused(sigstore: FakeSigstore, path: str) -> SealServiceError:
    """The fault of a step, which has a hint and no secret in it."""
    with pytest.raises(SealServiceError) as caught:
        STEPS[path](sigstore)
    fault = caught.value
    assert fault.hint
    assert not [each for each in (REQUEST_TOKEN, *sigstore.tokens) if each in str(fault)]
    return fault


@each_step
def test_a_fault_that_passes_is_waited_for(sigstore: FakeSigstore, path: str) -> None:
    sigstore.fail_next(path, BUSY, BUSY)
    assert STEPS[path](sigstore)
    assert sum(seen.endswith(path) for seen in sigstore.seen) == 3


@each_step
def test_a_fault_that_stays_is_told_with_the_services_words(
    sigstore: FakeSigstore, path: str
) -> None:
    sigstore.fail_next(path, BUSY, BUSY, BUSY)
    fault = refused(sigstore, path)
    assert fault.message == f"{NAMES[path]} at {sigstore.url} answered 503"
    assert fault.details == ("too busy",)
    assert fault.hint == "Re-run the job; the gate judges its evidence again."


@each_step
def test_a_refusal_is_not_repeated(sigstore: FakeSigstore, path: str) -> None:
    sigstore.fail_next(path, Fault(status=403, body=b'{"message": "no"}'))
    assert "answered 403" in refused(sigstore, path).message
    assert sum(seen.endswith(path) for seen in sigstore.seen) == 1


@each_step
@pytest.mark.parametrize("status", [301, 307])
def test_no_redirect_is_followed(sigstore: FakeSigstore, path: str, status: int) -> None:
    sigstore.fail_next(path, Fault(status=status))
    assert f"answered {status}" in refused(sigstore, path).message


@each_step
def test_an_answer_without_end_is_not_read_to_its_end(sigstore: FakeSigstore, path: str) -> None:
    sigstore.fail_next(path, HUGE)
    assert refused(sigstore, path).message.endswith("is larger than 4 MiB")


@each_step
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"value": 7}', b"[" * 100_000, b"\xff"])
def test_another_answer_is_not_guessed_at(sigstore: FakeSigstore, path: str, body: bytes) -> None:
    sigstore.fail_next(path, Fault(body=body))
    assert refused(sigstore, path).message.endswith("is not what was asked for")


def test_silence_ends(sigstore: FakeSigstore) -> None:
    sigstore.fail_next(TOKENS_PATH, *[Fault(silent_seconds=0.6)] * 3)
    with pytest.raises(SealServiceError, match=r"did not answer within 0\.2 s"):
        services(sigstore, HASTY).identity_token(sigstore.request())


def test_a_server_that_is_not_there_is_named() -> None:
    with FakeSigstore() as sigstore:
        gone = sigstore.request()
        there = services(sigstore)
    with pytest.raises(SealServiceError, match="cannot be reached") as caught:
        there.identity_token(gone)
    assert caught.value.hint.startswith("Run the job again")


def test_the_secret_of_the_runner_goes_over_https_alone(sigstore: FakeSigstore) -> None:
    request = replace(sigstore.request(), url="http://runner.example/tokens?x=1")
    with pytest.raises(SealServiceError, match="does not begin with https://"):
        services(sigstore).identity_token(request)


def test_a_wrong_secret_is_refused_with_the_permission(sigstore: FakeSigstore) -> None:
    with pytest.raises(SealServiceError, match="answered 401") as caught:
        services(sigstore).identity_token(replace(sigstore.request(), token="another"))
    assert caught.value.hint == "Give the job the permission `id-token: write`."


def test_what_fulcio_repeats_of_a_token_is_not_told(sigstore: FakeSigstore) -> None:
    sigstore.claims["aud"] = "another"
    fault = refused(sigstore, CERTIFICATE_PATH)
    assert "There was an error processing ***" in fault.details[0]


def test_a_certificate_without_promise_is_not_taken(sigstore: FakeSigstore) -> None:
    sigstore.change(
        CERTIFICATE_PATH,
        lambda answer: {"signedCertificateDetachedSct": answer["signedCertificateEmbeddedSct"]},
    )
    assert "is not what was asked for" in refused(sigstore, CERTIFICATE_PATH).message


def test_a_certificate_that_is_none_is_not_taken(sigstore: FakeSigstore) -> None:
    chain = {"signedCertificateEmbeddedSct": {"chain": {"certificates": ["PEM"]}}}
    sigstore.change(CERTIFICATE_PATH, lambda _answer: chain)
    assert refused(sigstore, CERTIFICATE_PATH).message == "Fulcio's certificate cannot be read"


def test_rekor_refuses_what_the_certificates_key_did_not_sign(sigstore: FakeSigstore) -> None:
    envelope, _ = certified(sigstore)
    _, other = certified(sigstore)
    with pytest.raises(SealServiceError, match=r"Rekor at .* answered 400") as caught:
        services(sigstore).entry(envelope, other)
    assert caught.value.details == ("the entry is not a signed envelope: InvalidSignature",)


def test_an_entry_whose_answer_got_lost_is_found_again(sigstore: FakeSigstore) -> None:
    sigstore.fail_next(ENTRIES_PATH, Fault(status=502, first=True))
    found = entry(sigstore)
    assert found.log_index == 1005
    assert len(sigstore.log.bodies) == 6
    assert sigstore.seen[-1].startswith(f"GET {ENTRIES_PATH}/")


def test_a_conflict_that_leads_elsewhere_is_not_followed(sigstore: FakeSigstore) -> None:
    sigstore.fail_next(ENTRIES_PATH, Fault(status=409, body=json.dumps({"message": "x"}).encode()))
    assert "answered 409" in refused(sigstore, ENTRIES_PATH).message
