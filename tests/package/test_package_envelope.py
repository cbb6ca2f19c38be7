"""The written forms of a seal: round trips, and what is refused before any signature counts."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from attestation_cases import gate_key
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import AttestationError
from gate.package.envelope import read_envelope, sign, write_bundle, write_envelope
from gate.package.keys import KeyFile
from gate.package.seal_records import PAYLOAD_TYPE, Envelope, SealFile, Signature
from gate.text.package_names import MAX_SEAL_BYTES


def _read(content: bytes) -> Envelope:
    return read_envelope(SealFile(name="seal.json", content=content))


def _envelope() -> Envelope:
    return sign(b"payload", PAYLOAD_TYPE, KeyFile(gate_key()))


def _bare() -> dict[str, Any]:
    wire: dict[str, Any] = json.loads(write_envelope(_envelope()))
    return wire


def _bundle() -> dict[str, Any]:
    wire: dict[str, Any] = json.loads(write_bundle(_envelope()))
    return wire


def _refusal(value: object) -> AttestationError:
    with pytest.raises(AttestationError) as caught:
        _read(json.dumps(value).encode())
    return caught.value


@given(
    payload=st.binary(max_size=60),
    payload_type=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40),
    value=st.binary(max_size=80),
)
def test_bare_form_round_trips(payload: bytes, payload_type: str, value: bytes) -> None:
    signatures = (Signature(key_id="hint", value=value),)
    envelope = Envelope(payload=payload, payload_type=payload_type, signatures=signatures)
    assert _read(write_envelope(envelope)) == envelope


def test_bundle_has_the_form_that_outside_verifiers_read() -> None:
    envelope = _envelope()
    bundle = json.loads(write_bundle(envelope))
    digest = bytes.fromhex(envelope.signatures[0].key_id)
    assert bundle["mediaType"] == "application/vnd.dev.sigstore.bundle.v0.3+json"
    assert bundle["verificationMaterial"] == {
        "publicKey": {"hint": base64.b64encode(digest).decode()},
        "tlogEntries": [],
    }
    assert bundle["dsseEnvelope"]["signatures"] == [
        {"sig": base64.b64encode(envelope.signatures[0].value).decode()}
    ]


def test_both_forms_hold_the_same_payload_and_signature() -> None:
    envelope = _envelope()
    bundle = _read(write_bundle(envelope))
    assert bundle.payload == envelope.payload
    assert bundle.signatures[0].value == envelope.signatures[0].value


def test_url_safe_alphabet_is_read() -> None:
    wire = _bare() | {"payload": base64.urlsafe_b64encode(b"\xfb\xff\xfe").decode()}
    assert _read(json.dumps(wire).encode()).payload == b"\xfb\xff\xfe"


@each_row(
    "text",
    ["cGF5bG9hZA", "cGF5bG9hZB==", "cGF5 bG9hZA==", "cGF5bG9hZA==\n", "+-==", "é", "A", "cGF5!G9h"],
    ids=[
        "unpadded",
        "tail-bits",
        "space",
        "newline",
        "both-alphabets",
        "non-ascii",
        "short",
        "foreign",
    ],
)
def test_base64_that_is_not_exact_is_refused(text: str) -> None:
    assert _refusal(_bare() | {"payload": text}).message == (
        "seal.json: the payload is not valid base64"
    )
    signatures = [{"keyid": "", "sig": text}]
    assert _refusal(_bare() | {"signatures": signatures}).message == (
        "seal.json: a signature is not valid base64"
    )


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"extra": 1}, "extra: is not a known key"),
        ({"payload": 7}, "payload: must be a valid string"),
        ({"signatures": [{"sig": "", "cert": ""}]}, "signatures[0].cert: is not a known key"),
        ({"x\x1b[2J": 1}, "x?[2J: is not a known key"),
    ],
)
def test_unsigned_extras_are_refused(changes: dict[str, object], fault: str) -> None:
    assert _refusal(_bare() | changes).details[0] == fault


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, "signatures[0]: is required"),
        (2, "signatures: Tuple should have at most 1 item after validation, not 2"),
    ],
)
def test_no_signature_and_more_than_one_are_refused(count: int, told: str) -> None:
    error = _refusal(_bare() | {"signatures": [{"sig": "AA=="}] * count})
    assert error.details == (told,)


def test_bundle_with_two_signatures_is_refused() -> None:
    wire = _bundle()
    wire["dsseEnvelope"]["signatures"] *= 2
    assert "signatures" in _refusal(wire).details[0]


def test_bundle_with_a_log_entry_that_nobody_checks_is_refused() -> None:
    wire = _bundle()
    wire["verificationMaterial"]["tlogEntries"] = [{}]
    assert "tlogEntries" in _refusal(wire).details[0]


def test_bundle_of_another_version_is_refused() -> None:
    wire = _bundle() | {"mediaType": "application/vnd.dev.sigstore.bundle.v0.2+json"}
    assert _refusal(wire).message == "seal.json: not a Sigstore bundle v0.3"


@each_row(
    ("content", "message"),
    [
        (b'{"payload": "", "payload": ""}', "key 'payload' is given twice"),
        (b'{"payload": NaN}', "NaN is not a JSON number"),
        (b"[" * 100_000, "nested deeper than 32 levels"),
        (b"\xff", "not UTF-8"),
        (b"", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b" " * (MAX_SEAL_BYTES + 1), "the limit is 8,388,608"),
    ],
    ids=["duplicate", "nan", "deep", "binary", "empty", "list", "huge"],
)
def test_json_that_is_not_strict_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(AttestationError, match=message) as caught:
        _read(content)
    assert caught.value.hint
