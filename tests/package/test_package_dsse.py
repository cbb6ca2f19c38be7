"""Signing and verifying bytes: which keys count and what breaks a signature."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attestation_cases import CREATED_AT, gate_key, other_key, trust_of
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import AttestationError
from gate.package.envelope import pae, sign, verify
from gate.package.keys import KeyFile, generate_private_key, trusted_key, with_key
from gate.package.seal_records import (
    PAYLOAD_TYPE,
    Envelope,
    KeyAlgorithm,
    KeyStatus,
    Signature,
    TrustedKeys,
)


def _envelope(payload: bytes = b"{}") -> Envelope:
    return sign(payload, PAYLOAD_TYPE, KeyFile(gate_key()))


def test_encoding_is_the_example_of_the_protocol() -> None:
    encoded = pae("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_lengths_count_bytes_not_characters() -> None:
    assert pae("é", "ü".encode()) == b"DSSEv1 2 \xc3\xa9 2 \xc3\xbc"


@given(st.tuples(st.text(), st.binary()), st.tuples(st.text(), st.binary()))
def test_different_inputs_have_different_encodings(
    left: tuple[str, bytes], right: tuple[str, bytes]
) -> None:
    assert (pae(*left) == pae(*right)) == (left == right)


@given(st.binary(max_size=200))
def test_what_is_signed_verifies(payload: bytes) -> None:
    assert verify(_envelope(payload), trust_of()) == trust_of().keys[0]


def test_key_id_in_the_envelope_decides_nothing() -> None:
    envelope = _envelope()
    liar = replace(envelope.signatures[0], key_id="somebody else")
    assert verify(replace(envelope, signatures=(liar,)), trust_of()) == trust_of().keys[0]


def test_another_type_or_payload_breaks_the_signature() -> None:
    for changed in (replace(_envelope(), payload=b"{} "), replace(_envelope(), payload_type="x")):
        with pytest.raises(AttestationError, match="no trusted key made this signature"):
            verify(changed, trust_of())


def test_stranger_is_refused_with_both_key_ids() -> None:
    envelope = sign(b"{}", PAYLOAD_TYPE, KeyFile(other_key()))
    with pytest.raises(AttestationError) as caught:
        verify(envelope, trust_of())
    assert caught.value.details == (
        f"key named by the seal: {envelope.signatures[0].key_id}",
        f"trusted keys: {trust_of().keys[0].key_id} (active)",
    )


def test_stranger_cannot_print_to_the_terminal() -> None:
    envelope = replace(_envelope(), signatures=(Signature(key_id="\x1b[2J", value=b""),))
    with pytest.raises(AttestationError) as caught:
        verify(envelope, TrustedKeys(keys=()))
    assert caught.value.details == ("key named by the seal: ?[2J", "trusted keys: (none)")


def test_revoked_key_never_counts() -> None:
    with pytest.raises(AttestationError, match="is revoked"):
        verify(_envelope(), trust_of(KeyStatus.REVOKED))


def test_retired_key_still_counts() -> None:
    assert verify(_envelope(), trust_of(KeyStatus.RETIRED)).status is KeyStatus.RETIRED


def test_one_good_signature_among_several_is_enough() -> None:
    stranger = sign(b"{}", PAYLOAD_TYPE, KeyFile(other_key())).signatures
    envelope = _envelope()
    both = replace(envelope, signatures=(*stranger, *envelope.signatures))
    assert verify(both, trust_of()) == trust_of().keys[0]


def test_active_key_is_preferred_to_a_retired_one() -> None:
    other = trusted_key(other_key().public_key(), added_at=CREATED_AT)
    trusted = with_key(trust_of(KeyStatus.RETIRED), other)
    stranger = sign(b"{}", PAYLOAD_TYPE, KeyFile(other_key())).signatures
    both = replace(_envelope(), signatures=(*_envelope().signatures, *stranger))
    assert verify(both, trusted) == other


def test_raw_signature_is_refused() -> None:
    envelope = _envelope()
    r, s = decode_dss_signature(envelope.signatures[0].value)
    raw = replace(envelope.signatures[0], value=r.to_bytes(32, "big") + s.to_bytes(32, "big"))
    with pytest.raises(AttestationError, match="no trusted key made this signature"):
        verify(replace(envelope, signatures=(raw,)), trust_of())


class Liar:
    """A signer whose two answers do not belong together."""

    def public_key(self) -> bytes:
        return KeyFile(gate_key()).public_key()

    def sign(self, message: bytes) -> bytes:
        return KeyFile(other_key()).sign(message)


def test_a_signature_that_its_own_key_does_not_verify_makes_no_envelope() -> None:
    with pytest.raises(AttestationError, match="its own public key does not verify") as caught:
        sign(b"{}", PAYLOAD_TYPE, Liar())
    assert "SHA-256" in caught.value.hint


def test_an_ed25519_key_signs_and_the_trusted_keys_own_kind_decides() -> None:
    key = generate_private_key(KeyAlgorithm.ED25519)
    envelope = sign(b"{}", PAYLOAD_TYPE, KeyFile(key))
    entry = trusted_key(key.public_key(), added_at=CREATED_AT)
    assert (entry.key_details, len(envelope.signatures[0].value)) == ("PKIX_ED25519", 64)
    both = with_key(trust_of(), entry)
    assert verify(envelope, both) == entry
    assert verify(_envelope(), both) == trust_of().keys[0]
    with pytest.raises(AttestationError, match="no trusted key made this signature"):
        verify(envelope, trust_of())


def test_a_signer_shows_no_key() -> None:
    assert repr(KeyFile(gate_key())) == "KeyFile()"
