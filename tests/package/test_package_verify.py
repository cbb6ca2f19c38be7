"""Verifying a package: what is established, and one sentence for each way to fail."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from attestation_cases import (
    CAPTURED,
    COMMIT,
    FILES,
    Sealed,
    facts_in,
    gate_key,
    member,
    members_of,
    other_key,
    sealed_bytes,
    sealed_in,
    signed,
    trust_of,
    verdict_of,
)
from each_row import each_row

from gate.commands.verify import verified_text
from gate.errors import AttestationError, StorageError
from gate.isolation.modes import IsolationMode, RunIsolation
from gate.package.envelope import read_envelope
from gate.package.keys import generate_private_key, read_trusted_keys, trusted_key
from gate.package.packing import pack
from gate.package.seal_records import (
    PAYLOAD_TYPE,
    Expected,
    KeyAlgorithm,
    KeyStatus,
    PackageMember,
    SealFile,
    TrustedKeys,
)
from gate.package.statement import write_statement
from gate.package.ustar import header, padding, sums_text
from gate.settings.levels import ReachedLevel
from gate.text.digests import sha256_hex
from gate.text.documents import write_document
from gate.verdict.verdict import Outcome

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def sealed(tmp_path: Path) -> Sealed:
    return sealed_in(tmp_path)


def _packed(*members: PackageMember) -> bytes:
    target = io.BytesIO()
    pack(members, path=Path("package.tar"), target=target, files=FILES)
    return target.getvalue()


def _refusal(sealed: Sealed, **given: object) -> str:
    with pytest.raises(AttestationError) as caught:
        sealed.verified(**given)  # type: ignore[arg-type]  # handed through as it came
    assert caught.value.hint
    return caught.value.message


def test_good_package_is_verified(sealed: Sealed) -> None:
    verified = sealed.verified()
    assert verified.commit == COMMIT
    assert verified.outcome == "reproduced"
    assert (verified.level, verified.strict_runs) == ("numerical-bitwise", 2)
    assert verified.key_id == trust_of().keys[0].key_id
    assert verified.package_sha256 == sealed.package.sha256
    assert verified.members == 3
    assert verified.created_at == "2026-01-31T12:00:00Z"


@pytest.mark.parametrize("index", [0, 1], ids=["bare", "bundle"])
def test_either_form_is_enough(sealed: Sealed, index: int) -> None:
    one = sealed.verified(seals=(sealed.seals[index], sealed.seals[index + 2], sealed.seals[4]))
    assert replace(one, seals=()) == replace(sealed.verified(), seals=())


def test_renamed_package_is_still_the_same(sealed: Sealed) -> None:
    moved = sealed.path.rename(sealed.path.with_name("package (1).tar"))
    renamed = replace(sealed, package=replace(sealed.package, path=moved))
    assert renamed.verified().package_sha256 == sealed.package.sha256


def test_reader_is_told_what_weakens_the_seal(sealed: Sealed) -> None:
    notes = sealed.verified(trusted=trust_of(KeyStatus.RETIRED)).notes
    key_id = trust_of().keys[0].key_id[:16]
    assert notes == (
        (
            f"The signing key {key_id} has been retired since 2027-01-01T00:00:00+00:00: this "
            "seal claims to be older, and nothing proves its time."
        ),
        "The training ran under the gate's own account (isolation none).",
    )


def test_isolated_training_with_an_active_key_needs_no_note(tmp_path: Path) -> None:
    assert (
        sealed_in(tmp_path, verdict_of(isolation=RunIsolation(mode=IsolationMode.UID)))
        .verified()
        .notes
        == ()
    )


@pytest.mark.parametrize(
    ("level", "words"),
    [
        (ReachedLevel.STATISTICAL, "its metrics are equivalent over seeds"),
        (ReachedLevel.FUNCTIONAL, "it met the policy's thresholds"),
        (ReachedLevel.SCIENTIFIC, "it ranks the policy's variants the same way"),
    ],
)
def test_another_result_that_was_good_enough_is_told(
    level: ReachedLevel, words: str, tmp_path: Path
) -> None:
    verdict = verdict_of(
        outcome=Outcome.CODE_DRIFT, level=level, isolation=RunIsolation(mode=IsolationMode.UID)
    )
    assert sealed_in(tmp_path, verdict).verified().notes == (
        f"The result differs from the baseline's; {words}.",
    )


def test_no_seal_is_refused(sealed: Sealed) -> None:
    assert _refusal(sealed, seals=()) == "no seal was given"


def test_revoked_key_is_refused(sealed: Sealed) -> None:
    message = _refusal(sealed, trusted=trust_of(KeyStatus.REVOKED))
    assert message == f"the signing key {trust_of().keys[0].key_id[:16]} is revoked"


def test_untrusted_key_is_refused(sealed: Sealed) -> None:
    payload = read_envelope(sealed.seals[0]).payload
    stranger = signed(payload, PAYLOAD_TYPE, other_key())
    assert _refusal(sealed, seals=stranger) == "no trusted key made this signature"
    assert _refusal(sealed, seals=sealed.seals + stranger) == "no trusted key made this signature"


def test_seals_by_two_trusted_keys_are_refused(sealed: Sealed) -> None:
    payload = read_envelope(sealed.seals[2]).payload
    (other,) = signed(payload, PAYLOAD_TYPE, other_key())
    keys = (gate_key(), other_key())
    both = tuple(trusted_key(key.public_key(), added_at=NOON.isoformat()) for key in keys)
    seals = (sealed.seals[0], replace(other, name="made.json"), sealed.seals[4])
    assert _refusal(sealed, seals=seals, trusted=TrustedKeys(keys=both)) == (
        "package.dsse.json and made.json are sealed by different signers"
    )


def test_an_ed25519_key_needs_no_models_signature_and_that_is_told(tmp_path: Path) -> None:
    key = generate_private_key(KeyAlgorithm.ED25519)
    trusted = TrustedKeys(keys=(trusted_key(key.public_key(), added_at=NOON.isoformat()),))
    found = sealed_in(tmp_path, key=key).verified(trusted=trusted)
    assert (found.model_folder, len(found.seals)) == ("", 4)
    assert found.notes[0].startswith("The model has no signature of its own, which no Ed25519 key")


def test_other_payload_type_is_refused(sealed: Sealed) -> None:
    payload = read_envelope(sealed.seals[0]).payload
    assert _refusal(sealed, seals=signed(payload, "text/plain")) == (
        "package.dsse.json seals a payload of type 'text/plain', "
        "only 'application/vnd.in-toto+json' is accepted"
    )


def test_seals_of_two_statements_are_refused(sealed: Sealed, tmp_path: Path) -> None:
    (other,) = signed(write_statement(facts_in(tmp_path)))
    both = (sealed.seals[0], SealFile(name="package.sigstore.json", content=other.content))
    assert _refusal(sealed, seals=both) == (
        "package.dsse.json and package.sigstore.json seal different statements"
    )


def test_another_commit_is_refused(sealed: Sealed) -> None:
    for commit in ("f" * 40, COMMIT[:12]):
        message = _refusal(sealed, expected=Expected(commit=commit))
        assert message == f"this package is about commit {COMMIT}, not about '{commit}'"


def test_commit_in_capitals_is_the_same_commit(sealed: Sealed) -> None:
    assert sealed.verified(expected=Expected(commit=COMMIT.upper())).commit == COMMIT


def test_another_repository_is_refused(sealed: Sealed) -> None:
    message = _refusal(sealed, expected=Expected(commit=COMMIT, repository="evil/fork"))
    assert message == "this package is about repository 'org/repo', not about 'evil/fork'"
    verified = sealed.verified(expected=Expected(commit=COMMIT, repository="org/repo"))
    assert verified.repository == "org/repo"


def test_package_beyond_its_age_is_refused(sealed: Sealed) -> None:
    late = Expected(commit=COMMIT, not_before=NOON.replace(minute=1))
    message = _refusal(sealed, expected=late)
    assert (
        message == "this package was made at 2026-01-31T12:00:00Z, longer ago than --max-age allows"
    )
    on_time = sealed.verified(expected=Expected(commit=COMMIT, not_before=NOON))
    assert on_time.created_at == "2026-01-31T12:00:00Z"


def test_missing_package_is_a_fault_of_storage(sealed: Sealed) -> None:
    sealed.path.unlink()
    with pytest.raises(StorageError):
        sealed.verified()


@pytest.mark.parametrize("extra", [b"\0", b"x" * 512])
def test_longer_package_is_refused(sealed: Sealed, extra: bytes) -> None:
    with sealed.path.open("ab") as target:
        target.write(extra)
    size = 10240 + len(extra)
    assert _refusal(sealed) == f"package.tar has {size:,} bytes, the seal says 10,240"


def test_another_package_is_refused(sealed: Sealed) -> None:
    sealed.path.write_bytes(_packed(*members_of(verdict_of(cause="other"))))
    with pytest.raises(AttestationError, match="not the file that was sealed") as caught:
        sealed.verified()
    assert caught.value.details[0] == f"sealed: {sealed.package.sha256}"


def test_a_swapped_checkpoint_is_refused_though_the_sums_agree(sealed: Sealed) -> None:
    verdict, state = members_of(verdict_of())
    assert state.content is not None
    swapped = member(state.name, state.content[::-1])
    sealed.path.write_bytes(_packed(verdict, swapped))
    assert sealed.path.stat().st_size == sealed.package.size_bytes
    assert _refusal(sealed) == "package.tar is not the file that was sealed: its SHA-256 differs"


SUMS_REFUSED = "SHA256SUMS does not match the files of the package"


@pytest.mark.parametrize(
    ("listed", "detail"),
    [
        ((("a", b"1"), ("b", b"2")), "listed, but the package differs: "),
        ((), "packed, but not listed: "),
        ((("a", b"changed"),), "listed, but the package differs: "),
    ],
    ids=["member missing", "member extra", "member changed"],
)
def test_sums_that_do_not_fit_are_refused(
    tmp_path: Path, listed: tuple[tuple[str, bytes], ...], detail: str
) -> None:
    sums = sums_text([(name, sha256_hex(data)) for name, data in listed])
    rows = (("a", b"1"), ("SHA256SUMS", sums))
    blocks = b"".join(header(name, len(data)) + data + padding(len(data)) for name, data in rows)
    archive = blocks + bytes(10240 - len(blocks))
    with pytest.raises(AttestationError, match=SUMS_REFUSED) as caught:
        sealed_bytes(tmp_path, archive).verified()
    assert caught.value.details[0].startswith(detail)


def test_package_without_verdict_is_refused(tmp_path: Path) -> None:
    sealed = sealed_bytes(tmp_path, _packed(member("a")))
    assert _refusal(sealed) == "the package holds no verdict.json"


def test_verdict_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    sealed = sealed_bytes(tmp_path, _packed(member("verdict.json", b'{"a": 1, "a": 2}')))
    assert _refusal(sealed) == "verdict.json: not valid JSON: key 'a' is given twice"


@each_row(
    ("change", "message"),
    [
        ({"passes": False}, "says passes 'False', the seal says 'True'"),
        ({"outcome": Outcome.ERROR}, "says outcome 'error', the seal says 'reproduced'"),
        ({"level": ReachedLevel.FUNCTIONAL}, "the seal says 'numerical-bitwise'"),
        ({"runs": ()}, "says strict_runs '0', the seal says '2'"),
        ({"commit": "f" * 40}, f"says commit '{'f' * 40}', the seal says '{COMMIT}'"),
        ({"checkpoint_root": "1" * 64}, f"the seal says '{'c' * 64}'"),
        (
            {"states": (CAPTURED.model_copy(update={"root": "7" * 64}),)},
            f"says states 'captured {'7' * 64}', the seal says 'captured {CAPTURED.root}'",
        ),
        ({"settings_digest": "1" * 64}, f"the seal says '{verdict_of().settings_digest}'"),
        ({"snapshot_digest": "1" * 64}, f"the seal says '{'d' * 64}'"),
        (
            {"isolation": RunIsolation(mode=IsolationMode.NONE, network=True)},
            "says isolation 'none, network open', the seal says 'none'",
        ),
        ({"created_at": "2026-01-31T12:00:01+00:00"}, "the seal says '2026-01-31T12:00:00Z'"),
    ],
)
def test_verdict_that_contradicts_its_seal_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    archive = _packed(member("verdict.json", write_document(verdict_of(**change))))
    assert _refusal(sealed_bytes(tmp_path, archive)).endswith(message)


def test_damaged_archive_with_a_valid_seal_is_refused(tmp_path: Path) -> None:
    message = _refusal(sealed_bytes(tmp_path, b"no archive" * 1024))
    assert message == "this is not a package of repro-gate"


def test_signed_text_that_is_no_statement_is_refused(sealed: Sealed) -> None:
    assert _refusal(sealed, seals=signed(b"[" * 1000)) == (
        "the signed statement: nested deeper than 32 levels"
    )
    assert _refusal(sealed, seals=signed(b"null")) == "the signed statement: not a JSON object"


def test_a_seal_that_is_younger_than_its_keys_retirement_is_refused(sealed: Sealed) -> None:
    trusted = trust_of(KeyStatus.RETIRED, retired_at="2026-01-01T00:00:00+00:00")
    assert _refusal(sealed, trusted=trusted) == (
        f"the signing key {trusted.keys[0].key_id[:16]} was retired at 2026-01-01T00:00:00+00:00, "
        "and this seal says that it was made at 2026-01-31T12:00:00Z"
    )


def test_a_retired_key_without_a_date_is_no_trust_file() -> None:
    key = trust_of().keys[0].model_dump() | {"status": "retired"}
    data = json.dumps({"schema_version": "repro-gate.trusted-keys/1", "keys": [key]}).encode()
    with pytest.raises(AttestationError) as caught:
        read_trusted_keys(data, "trusted-keys.json")
    assert "a retired key needs retired_at" in caught.value.details[0]


def test_a_seal_older_than_the_entry_of_its_key_is_told(sealed: Sealed) -> None:
    key = trust_of().keys[0].model_copy(update={"added_at": "2027-01-01T00:00:00+00:00"})
    notes = sealed.verified(trusted=TrustedKeys(keys=(key,))).notes
    assert notes[0].startswith("The seal is older than the trust file's entry for its key")


def test_what_another_job_reports_counts_for_no_isolation(tmp_path: Path) -> None:
    verdict = verdict_of(
        isolation=RunIsolation(mode=IsolationMode.CONTAINER), imported_evidence=True
    )
    sealed = sealed_in(tmp_path, verdict)
    verified = sealed.verified()
    assert verified.imported_evidence
    assert (
        "Another job ran the training: isolation and numbers are what that job reports."
        in verified.notes
    )
    shown = " ".join(verified_text(verified).split())
    assert "isolation container, as another job reports it: not checked" in shown
    for least in (IsolationMode.UID, IsolationMode.CONTAINER):
        message = _refusal(sealed, expected=Expected(commit=COMMIT, least_isolation=least))
        assert message.startswith(
            "another job ran the training: nothing proves the isolation container that it reports"
        )
    # a signer cannot say otherwise than the verdict
    own = sealed_bytes(tmp_path, sealed.path.read_bytes(), isolation=verdict.isolation)
    assert "verdict.json says imported_evidence 'True', the seal says 'False'" in _refusal(own)


def test_a_verdict_belongs_to_the_branch_that_it_was_judged_for(tmp_path: Path) -> None:
    sealed = sealed_in(tmp_path, verdict_of(base_branch="weak", base_commit="b" * 40))
    verified = sealed.verified(expected=Expected(commit=COMMIT, base_branch="weak"))
    assert (verified.base_branch, verified.base_commit) == ("weak", "b" * 40)
    assert f"judged for a merge into weak, at {'b' * 40}" in " ".join(
        verified_text(verified).split()
    )
    message = _refusal(sealed, expected=Expected(commit=COMMIT, base_branch="main"))
    assert message == ("this package was judged for a merge into 'weak', not for one into 'main'")


def test_a_package_of_a_push_was_judged_for_no_merge(sealed: Sealed) -> None:
    message = _refusal(sealed, expected=Expected(commit=COMMIT, base_branch="main"))
    assert message == "this package was judged for no merge, not for one into 'main'"


@pytest.mark.parametrize(
    ("number", "old", "new", "name"),
    [
        (0, b'"keyid":"', b'"keyid":"evil', "package.dsse.json"),
        (1, b'"hint":"', b'"hint":"evil', "package.sigstore.json"),
    ],
)
def test_a_key_that_nobody_signed_is_shown_as_that(
    sealed: Sealed, number: int, old: bytes, new: bytes, name: str
) -> None:
    seals = list(sealed.seals)
    seals[number] = replace(seals[number], content=seals[number].content.replace(old, new))
    usual = sealed.verified().notes
    verified = sealed.verified(seals=tuple(seals))
    (note,) = (note for note in verified.notes if note not in usual)
    assert note.startswith(f"{name} names the key 'evil")
    assert note.endswith("which nobody signed: the signature is by the key above.")
    assert "not signed keyid and hint in the seal files: they only say which key to try" in (
        " ".join(verified_text(verified).split())
    )
