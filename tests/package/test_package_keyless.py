"""A seal without a key: made by services on this machine, refused when one of them is wrong."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from attestation_cases import (
    COMMIT,
    CONTEXT,
    FILES,
    MAKING,
    members_of,
    pack_to,
    sealed_in,
    verdict_of,
)
from cryptography.hazmat.primitives.serialization import Encoding
from each_row import each_row
from fake_sigstore import CERTIFICATE_PATH, ENTRIES_PATH, IDENTITY, ISSUER, SERVER, FakeSigstore
from github_client import AT_ONCE
from hypothesis import given
from hypothesis import strategies as st
from sigstore_authority import Authority, new_key
from sigstore_log import Json

from gate.errors import AttestationError, SealServiceError
from gate.package.keyless import seal_by_identity, token_identity
from gate.package.seal import statements_of
from gate.package.seal_records import Expected, SealContext, SealFile, VerifiedPackage
from gate.package.signing import Identity
from gate.package.sigstore_services import SigstoreServices
from gate.package.sigstore_verifier import check_trusted_root, verify_identity
from gate.package.verify import verify_identity_package

Change = Callable[[Json], Json]
PROVENANCE = "package.provenance.sigstore.json"
SAME_COMMIT = Expected(commit=COMMIT)


@pytest.fixture
def sigstore() -> Iterator[FakeSigstore]:
    with FakeSigstore() as server:
        yield server


def sealed(sigstore: FakeSigstore, folder: Path, context: SealContext = CONTEXT) -> bytes:
    """The verdict's bundle of a small package in a folder; the provenance's lies there."""
    package = pack_to(folder / "package.tar", *members_of(verdict_of()))
    statements = statements_of(verdict_of(), package, context, MAKING)
    services = SigstoreServices(sigstore.settings(), AT_ONCE)
    root = sigstore.trusted_root()
    bundles = []
    for payload in (statements.verdict, statements.provenance):
        made = seal_by_identity(payload, sigstore.request(), services, root)
        assert made.identity == IDENTITY
        bundles.append(made.bundle)
    (folder / PROVENANCE).write_bytes(bundles[1])
    return bundles[0]


def verified(
    sigstore: FakeSigstore,
    folder: Path,
    bundle: bytes,
    identity: Identity = IDENTITY,
    expected: Expected = SAME_COMMIT,
) -> VerifiedPackage:
    root = sigstore.trusted_root()
    beside = folder / PROVENANCE
    provenance = SealFile(name=PROVENANCE, content=beside.read_bytes()) if beside.exists() else None
    verdict = SealFile(name="package.sigstore.json", content=bundle)
    return verify_identity_package(
        folder / "package.tar",
        (verdict, *((provenance,) if provenance is not None else ())),
        lambda content: verify_identity(content, identity, root),
        expected,
        FILES,
    )


def in_o_model() -> SealContext:
    return SealContext(gate_version="0.1.0", repository="o/model", run_id="42")


def fault_of(action: Callable[..., object], *arguments: object) -> AttestationError:
    with pytest.raises(AttestationError) as caught:
        action(*arguments)
    assert caught.value.hint
    return caught.value


def test_a_seal_names_the_workflow_and_the_logs_time(
    sigstore: FakeSigstore, tmp_path: Path
) -> None:
    found = verified(sigstore, tmp_path, sealed(sigstore, tmp_path, in_o_model()))
    assert (found.identity, found.issuer) == (IDENTITY.name, ISSUER)
    assert found.key_id == ""
    age = datetime.now(UTC) - datetime.fromisoformat(found.logged_at)
    assert timedelta(seconds=-1) < age < timedelta(hours=1)


@pytest.mark.parametrize(
    ("identity", "told"),
    [
        (Identity(name=f"{IDENTITY.name}x", issuer=ISSUER), "SANs do not match"),
        (Identity(name=IDENTITY.name.upper(), issuer=ISSUER), "SANs do not match"),
        (Identity(name="", issuer=ISSUER), "SANs do not match"),
        (Identity(name=IDENTITY.name, issuer=f"{ISSUER}x"), "OIDCIssuer does not match"),
    ],
)
def test_another_identity_is_refused(
    sigstore: FakeSigstore, tmp_path: Path, identity: Identity, told: str
) -> None:
    bundle = sealed(sigstore, tmp_path, in_o_model())
    fault = fault_of(verified, sigstore, tmp_path, bundle, identity)
    assert fault.message == "the keyless seal does not verify"
    assert told in fault.details[0]


def test_another_trusted_root_is_refused(sigstore: FakeSigstore, tmp_path: Path) -> None:
    bundle = sealed(sigstore, tmp_path, in_o_model())
    with FakeSigstore() as other:
        fault = fault_of(verified, other, tmp_path, bundle)
    assert "failed to build" in fault.details[0]


def test_the_public_root_is_asked_where_none_is_given(
    sigstore: FakeSigstore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the library keeps a copy of the root there
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    bundle = sealed(sigstore, tmp_path)
    fault = fault_of(verify_identity, bundle, IDENTITY, None)
    assert fault.message == "the keyless seal does not verify"


@each_row("root", [b"", b"{}", b"[]", b"\xff", b'{"mediaType": "x"}'])
def test_a_trusted_root_that_is_none_is_told(root: bytes) -> None:
    fault = fault_of(verify_identity, b"{}", IDENTITY, root)
    assert fault.message == "the trusted root is not one of Sigstore's"
    assert fault_of(check_trusted_root, root).message == fault.message


@pytest.mark.parametrize("left_out", ["tlogs", "certificateAuthorities"])
def test_a_trusted_root_without_a_service_is_told_without_any_seal(
    sigstore: FakeSigstore, left_out: str
) -> None:
    whole = sigstore.trusted_root()
    check_trusted_root(whole)
    fault = fault_of(check_trusted_root, json.dumps({**json.loads(whole), left_out: []}).encode())
    assert fault.message == (
        "the trusted root has no certificate authority or no log that can be used"
    )
    assert fault.details
    assert sigstore.seen == []


def _entry_of(answer: Json) -> Json:
    (entry,) = answer.values()
    assert isinstance(entry, dict)
    return entry


def _in_proof(key: str, value: object) -> Callable[[Json], Json]:
    def change(answer: Json) -> Json:
        proof = _entry_of(answer)["verification"]
        assert isinstance(proof, dict)
        proof["inclusionProof"][key] = value
        return answer

    return change


def _in_entry(key: str, value: object) -> Callable[[Json], Json]:
    def change(answer: Json) -> Json:
        _entry_of(answer)[key] = value
        return answer

    return change


@pytest.mark.parametrize(
    "change",
    [
        _in_proof("rootHash", "0" * 64),
        _in_proof("hashes", ["0" * 64]),
        _in_proof("logIndex", 0),
        _in_proof("treeSize", 7),
        _in_proof("checkpoint", "rekor.test - 1\n6\nAAAA\n\n\u2014 rekor.test AAAAAAAA\n"),
        _in_entry("logIndex", 7),
        _in_entry("integratedTime", 1),
        _in_entry("integratedTime", 2**62),
        _in_entry("logID", "0" * 64),
        _in_entry("body", base64.b64encode(b"{}").decode()),
    ],
)
def test_a_wrong_answer_of_the_log_makes_no_seal(
    sigstore: FakeSigstore, tmp_path: Path, change: Change
) -> None:
    sigstore.change(ENTRIES_PATH, change)
    assert fault_of(sealed, sigstore, tmp_path).message == "the keyless seal does not verify"


@pytest.mark.parametrize("which", ["promises_with", "heads_with"])
def test_a_log_that_signs_with_another_key_makes_no_seal(
    sigstore: FakeSigstore, tmp_path: Path, which: str
) -> None:
    setattr(sigstore.log, which, new_key())
    assert fault_of(sealed, sigstore, tmp_path).message == "the keyless seal does not verify"


@pytest.mark.parametrize("which", ["signs_with", "promises_with"])
def test_an_authority_that_signs_with_another_key_makes_no_seal(
    sigstore: FakeSigstore, tmp_path: Path, which: str
) -> None:
    setattr(sigstore.authority, which, new_key())
    assert fault_of(sealed, sigstore, tmp_path).message == "the keyless seal does not verify"


def test_a_certificate_of_another_key_is_not_published(
    sigstore: FakeSigstore, tmp_path: Path
) -> None:
    other = Authority().root.public_bytes(Encoding.PEM).decode()
    chain = {"signedCertificateEmbeddedSct": {"chain": {"certificates": [other]}}}
    sigstore.change(CERTIFICATE_PATH, lambda _answer: chain)
    fault = fault_of(sealed, sigstore, tmp_path)
    assert fault.message == "Fulcio's certificate is about another key"
    assert f"POST {ENTRIES_PATH}" not in sigstore.seen


def test_a_certificate_for_another_workflow_makes_no_seal(
    sigstore: FakeSigstore, tmp_path: Path
) -> None:
    sigstore.authority.names = f"{SERVER}/o/other/.github/workflows/gate.yml@refs/heads/main"
    assert "SANs do not match" in fault_of(sealed, sigstore, tmp_path).details[0]


def test_a_job_of_another_repository_is_told_by_the_certificate(
    sigstore: FakeSigstore, tmp_path: Path
) -> None:
    # a reusable workflow has one address, whoever calls it
    sigstore.claims["repository"] = "o/caller"
    bundle = sealed(sigstore, tmp_path, in_o_model())
    fault = fault_of(verified, sigstore, tmp_path, bundle)
    assert fault.message == (
        "the seal is about repository 'o/model', its certificate about 'o/caller'"
    )


def test_a_statement_about_no_repository_is_about_the_certificates(
    sigstore: FakeSigstore, tmp_path: Path
) -> None:
    bundle = sealed(sigstore, tmp_path, SealContext(gate_version="0.1.0"))
    expected = Expected(commit=COMMIT, repository="o/model")
    assert verified(sigstore, tmp_path, bundle, expected=expected).repository == "o/model"
    other = Expected(commit=COMMIT, repository="o/other")
    fault = fault_of(verified, sigstore, tmp_path, bundle, IDENTITY, other)
    assert fault.message == "this package is about repository 'o/model', not about 'o/other'"


def test_the_age_is_the_logs_and_not_the_signers(sigstore: FakeSigstore, tmp_path: Path) -> None:
    bundle = sealed(sigstore, tmp_path, in_o_model())
    # the verdict claims a time long before
    recent = datetime.now(UTC) - timedelta(hours=1)
    expected = Expected(commit=COMMIT, not_before=recent)
    assert verified(sigstore, tmp_path, bundle, expected=expected).commit == COMMIT
    later = Expected(commit=COMMIT, not_before=datetime.now(UTC) + timedelta(hours=1))
    fault = fault_of(verified, sigstore, tmp_path, bundle, IDENTITY, later)
    assert "longer ago than --max-age allows" in fault.message


def test_the_package_and_the_commit_are_checked_as_with_a_key(
    sigstore: FakeSigstore, tmp_path: Path
) -> None:
    bundle = sealed(sigstore, tmp_path, in_o_model())
    other = Expected(commit="f" * 40)
    assert "about commit" in fault_of(verified, sigstore, tmp_path, bundle, IDENTITY, other).message
    package = tmp_path / "package.tar"
    package.write_bytes(package.read_bytes()[:-1])
    assert "the seal says" in fault_of(verified, sigstore, tmp_path, bundle).message


def test_a_key_does_not_verify_it_and_the_way_is_told(
    sigstore: FakeSigstore, tmp_path: Path
) -> None:
    bundle = sealed(sigstore, tmp_path, in_o_model())
    by_key = sealed_in(tmp_path)
    seals = (SealFile(name="package.sigstore.json", content=bundle),)
    fault = fault_of(lambda: by_key.verified(seals=seals))
    assert fault.message == "package.sigstore.json is sealed with a certificate, not with a key"
    assert "--certificate-identity" in fault.hint


def test_a_seal_with_a_key_is_no_keyless_one(sigstore: FakeSigstore, tmp_path: Path) -> None:
    for seal in sealed_in(tmp_path).seals:
        fault = fault_of(verified, sigstore, tmp_path, seal.content)
        assert fault.message.endswith("is sealed with a key, not with a certificate")
        assert fault.hint == "Verify it with --trusted-keys."


def test_the_provenance_is_needed_and_is_the_same_repositorys(
    sigstore: FakeSigstore, tmp_path: Path
) -> None:
    bundle = sealed(sigstore, tmp_path, SealContext(gate_version="0.1.0"))
    sigstore.claims["repository"] = "o/caller"
    sealed(sigstore, tmp_path, SealContext(gate_version="0.1.0"))
    fault = fault_of(verified, sigstore, tmp_path, bundle)
    assert fault.message == (
        "package.sigstore.json and package.provenance.sigstore.json are sealed by different signers"
    )
    (tmp_path / PROVENANCE).unlink()
    fault = fault_of(verified, sigstore, tmp_path, bundle)
    assert fault.message == "a provenance is missing among the seals of package.tar"


def _paths(value: object, here: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """The way to every text of a bundle."""
    if isinstance(value, str):
        yield here
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _paths(each, (*here, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _paths(each, (*here, index))


def _changed(bundle: bytes, path: tuple[object, ...], new: str) -> bytes:
    document = json.loads(bundle)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = new
    return json.dumps(document).encode()


def test_whatever_is_changed_in_a_bundle_it_does_not_hold(
    sigstore: FakeSigstore, tmp_path: Path
) -> None:
    bundle = sealed(sigstore, tmp_path, in_o_model())
    for path in _paths(json.loads(bundle)):
        for new in ("", "0", "AAAA", "\u2014", str(2**63 - 1)):
            fault = fault_of(verified, sigstore, tmp_path, _changed(bundle, path, new))
            assert "\n" not in fault.message


def test_a_bundle_with_another_key_is_refused(sigstore: FakeSigstore, tmp_path: Path) -> None:
    document = json.loads(sealed(sigstore, tmp_path, in_o_model()))
    document["verificationMaterial"]["timestampVerificationData"] = {}
    fault = fault_of(verified, sigstore, tmp_path, json.dumps(document).encode())
    assert "timestampVerificationData" in str(fault)


def made_token(claims: object) -> str:
    encoded = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"h.{encoded}.s"


@given(text=st.text(max_size=200))
def test_a_token_that_is_none_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(SealServiceError, match="the identity token") as caught:
        token_identity(text, SERVER)
    assert len(text) < 20 or text not in str(caught.value)


@each_row("claims", [{}, {"iss": ISSUER}, {"job_workflow_ref": 7}, [], None, "x"])
def test_a_token_of_something_else_than_a_job_is_refused(claims: object) -> None:
    with pytest.raises(SealServiceError, match="the identity token"):
        token_identity(made_token(claims), SERVER)


def test_the_identity_is_the_workflow_on_its_server() -> None:
    token = made_token({"iss": "https://x.example/_token", "job_workflow_ref": "o/r/w.yml@refs/x"})
    assert token_identity(token, "https://git.example") == Identity(
        name="https://git.example/o/r/w.yml@refs/x", issuer="https://x.example/_token"
    )
