"""The trust file's life: what comes in, and that nothing ever goes back."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from itertools import pairwise

import pytest
from attestation_cases import (
    CREATED_AT,
    Sealed,
    gate_key,
    locked_key,
    other_key,
    sealed_in,
    trust_of,
)
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from each_row import each_row
from harmless import log_faults
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from rich.cells import cell_len

from gate.commands.keys import keys_view
from gate.errors import AttestationError, SettingsError
from gate.package.envelope import sign, verify
from gate.package.keys import (
    KeyFile,
    PrivateKey,
    PublicKey,
    generate_private_key,
    key_id,
    private_pem,
    public_pem,
    read_trusted_keys,
    trusted_key,
    with_key,
)
from gate.package.seal_records import PAYLOAD_TYPE, Envelope, KeyStatus, TrustedKeys
from gate.package.trust_file import (
    find_key,
    read_public_key,
    with_key_retired,
    with_key_revoked,
    write_trusted_keys,
)

BEFORE, AFTER = "2026-01-31T11:59:59+00:00", "2026-01-31T12:00:01+00:00"
ORDER = list(KeyStatus)
NONE = TrustedKeys(keys=())


@cache
def keys() -> tuple[PrivateKey, ...]:
    return (gate_key(), other_key(), generate_private_key())


@cache
def seal_of(number: int) -> Envelope:
    return sign(b"{}", PAYLOAD_TYPE, KeyFile(keys()[number]))


class TrustFileLife(RuleBasedStateMachine):
    """Any order of calls over the bytes of one file, as processes leave it to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.data = write_trusted_keys(NONE)
        self.best: dict[str, int] = {}

    @property
    def document(self) -> TrustedKeys:
        return read_trusted_keys(self.data, "trusted-keys.json")

    @rule(number=st.integers(0, 2), comment=st.text(max_size=200))
    def add(self, number: int, comment: str) -> None:
        public = keys()[number].public_key()
        entry = trusted_key(public, added_at=CREATED_AT, comment=comment)
        if entry.key_id in self.best:
            with pytest.raises(SettingsError, match="is already listed"):
                with_key(self.document, entry)
            return
        self.data = write_trusted_keys(with_key(self.document, entry))
        self.best[entry.key_id] = 0

    @precondition(lambda self: self.best)
    @rule(choice=st.data(), to=st.sampled_from((KeyStatus.RETIRED, KeyStatus.REVOKED)))
    def end(self, choice: st.DataObject, to: KeyStatus) -> None:
        name = choice.draw(st.sampled_from(sorted(self.best)))
        key = find_key(self.document, name, "trusted-keys.json")
        change = with_key_retired if to is KeyStatus.RETIRED else with_key_revoked
        if ORDER.index(to) <= self.best[name]:
            with pytest.raises(SettingsError, match=f"is already {key.status}, since "):
                change(self.document, key, at=AFTER)
            return
        self.data = write_trusted_keys(change(self.document, key, at=AFTER))
        self.best[name] = ORDER.index(to)

    @invariant()
    def no_state_goes_back_and_no_key_goes(self) -> None:
        found = {key.key_id: ORDER.index(key.status) for key in self.document.keys}
        assert found == self.best

    @invariant()
    def the_list_shows_what_a_verification_obeys(self) -> None:
        document = self.document
        states = [line.split()[2] for line in keys_view(document).plain.splitlines()[1:]]
        by_id = {key_id(key.public_key()): number for number, key in enumerate(keys())}
        for key, state in zip(document.keys, states, strict=True):
            seal = seal_of(by_id[key.key_id])
            if state == "revoked":
                with pytest.raises(AttestationError, match="is revoked"):
                    verify(seal, document)
            else:
                assert verify(seal, document).status == state

    @invariant()
    def the_file_is_sorted_and_has_a_line_for_each_fact(self) -> None:
        lines = self.data.decode().splitlines()
        ids = [line for line in lines if line.startswith('      "key_id": "')]
        assert all(left < right for left, right in pairwise(ids))
        assert write_trusted_keys(self.document) == self.data


TestTrustFileLife = TrustFileLife.TestCase


@pytest.fixture
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    """A package that says it was made at `CREATED_AT`."""
    return sealed_in(tmp_path_factory.mktemp("sealed"))


def retired(at: str) -> TrustedKeys:
    return with_key_retired(trust_of(), trust_of().keys[0], at=at)


def test_a_seal_from_before_the_retirement_verifies_and_a_later_one_does_not(
    sealed: Sealed,
) -> None:
    for at in (AFTER, CREATED_AT):
        notes = sealed.verified(trusted=retired(at)).notes
        assert any(f"has been retired since {at}" in note for note in notes)
    with pytest.raises(AttestationError, match=f"was retired at {BEFORE[:19]}"):
        sealed.verified(trusted=retired(BEFORE))


@pytest.mark.parametrize("at", [BEFORE, AFTER, "2030-01-01T00:00:00+00:00"])
@pytest.mark.parametrize("before", [trust_of(), retired(AFTER)], ids=["active", "retired"])
def test_a_seal_of_a_revoked_key_never_verifies_whatever_its_time(
    sealed: Sealed, before: TrustedKeys, at: str
) -> None:
    trusted = with_key_revoked(before, before.keys[0], at=at, reason="stolen\x1b[2J")
    with pytest.raises(AttestationError, match="is revoked") as caught:
        sealed.verified(trusted=trusted)
    assert caught.value.details == (f"since: {at}", "reason: stolen?[2J")


@each_row(
    ("edit", "message"),
    [
        ({"status": "active"}, "a revoked key needs revoked_at, and no other key has it"),
        ({"revoked_at": None}, "a revoked key needs revoked_at, and no other key has it"),
        ({"status": "active", "revoked_at": None}, "an active key has no retired_at"),
        ({"added_at": "2026-01-31\n12:00:00+00:00"}, "added_at: must be an ISO 8601 time"),
        ({"added_at": "0001-01-01T00:00:00+14:00"}, "added_at: must be an ISO 8601 time"),
        ({"added_at": "yesterday"}, "added_at: must be an ISO 8601 time"),
    ],
)
def test_an_edit_by_hand_that_takes_something_back_is_told_with_file_and_key(
    edit: dict[str, object], message: str
) -> None:
    document = retired(AFTER)
    value = json.loads(write_trusted_keys(with_key_revoked(document, document.keys[0], at=AFTER)))
    value["keys"][0] |= edit
    with pytest.raises(AttestationError) as caught:
        read_trusted_keys(json.dumps(value).encode(), "team.json")
    assert caught.value.message == "team.json: 1 error"
    assert caught.value.details[0].startswith("keys[0]")
    assert message in caught.value.details[0]


def test_a_key_that_is_damaged_is_told_with_file_and_key() -> None:
    data = write_trusted_keys(trust_of()).replace(b'"key_id": "', b'"key_id": "0')[:-1]
    name = trust_of().keys[0].key_id
    data = data.replace(f"0{name}".encode(), f"0{name[:-1]}".encode())
    with pytest.raises(AttestationError) as caught:
        read_trusted_keys(data, "team.json")
    assert caught.value.message == (
        f"team.json: trusted key 0{name[:15]}: raw_bytes does not match this key id"
    )


def test_a_revoked_key_does_not_come_back_in_other_bytes() -> None:
    key = trust_of(KeyStatus.REVOKED).keys[0]
    point = gate_key().public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    # the same key with its point compressed (SEC 1, 2.3.3): valid DER, and another digest
    der = bytes.fromhex("3039301306072a8648ce3d020106082a8648ce3d030107032200") + point
    again = key.model_copy(
        update={
            "key_id": hashlib.sha256(der).hexdigest(),
            "raw_bytes": base64.b64encode(der).decode(),
            "status": KeyStatus.ACTIVE,
            "revoked_at": None,
        }
    )
    with pytest.raises(AttestationError, match="raw_bytes is not the usual form of this key"):
        read_trusted_keys(write_trusted_keys(TrustedKeys(keys=(again, key))), "t.json")
    pem = b"-----BEGIN PUBLIC KEY-----\n%b\n-----END PUBLIC KEY-----\n" % base64.b64encode(der)
    added = trusted_key(read_public_key(pem, "again.pem"), added_at=AFTER)
    with pytest.raises(SettingsError, match="already listed, as revoked"):
        with_key(TrustedKeys(keys=(key,)), added)


def other_pem(key: PublicKey | x25519.X25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@each_row(
    ("pem", "message"),
    [
        (locked_key(), "holds a private key"),
        (private_pem(gate_key(), None, allow_plain=True), "holds a private key"),
        (public_pem(gate_key().public_key()) + locked_key(), "a private"),
        (public_pem(gate_key().public_key()) * 2, "holds 2 PEM blocks"),
        (b"", "is not a public key in PEM"),
        (b"\xff\x00", "is not a public key in PEM"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "is not a public key"),
        (other_pem(x25519.X25519PrivateKey.generate().public_key()), "is neither an ECDSA key"),
        (other_pem(ec.generate_private_key(ec.SECP384R1()).public_key()), "is neither an ECDSA"),
    ],
)
def test_what_is_no_public_key_of_ours_is_refused_and_never_repeated(
    pem: bytes, message: str
) -> None:
    with pytest.raises(AttestationError, match=message) as caught:
        read_public_key(pem, "key.pem")
    told = str(caught.value)
    assert not any(line in told for line in pem.decode("latin-1").split("\n")[1:] if line)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_in_one_way(data: bytes) -> None:
    with pytest.raises(AttestationError):
        read_public_key(data, "key.pem")


def test_a_key_is_found_by_a_prefix_that_names_only_one() -> None:
    document = with_key(trust_of(), trusted_key(other_key().public_key(), added_at=CREATED_AT))
    for key in document.keys:
        assert find_key(document, key.key_id[:32].upper(), "t.json") == key
    # 17 keys and 16 digits: two of them begin alike
    crowd = [generate_private_key().public_key() for _ in range(17)]
    many = tuple(trusted_key(key, added_at=CREATED_AT) for key in crowd)
    first = next(d for d in "0123456789abcdef" if sum(k.key_id[0] == d for k in many) > 1)
    with pytest.raises(SettingsError, match=f"keys of t.json begin with '{first}'") as caught:
        find_key(TrustedKeys(keys=many), first, "t.json")
    assert all(line.startswith(first) for line in caught.value.details)
    with pytest.raises(SettingsError, match=r"no key of t\.json begins with '\?'"):
        find_key(document, "\x1b", "t.json")
    with pytest.raises(SettingsError, match="the id of the key is empty"):
        find_key(trust_of(), "", "t.json")


@given(
    st.text(max_size=200)
    | st.sampled_from(("\x1b[31mred", "##[set-output name=x;]y", "\n::error::x", "日本" * 50))
)
def test_a_hostile_comment_is_one_harmless_row_of_80_columns(comment: str) -> None:
    key = trust_of().keys[0].model_copy(update={"comment": comment})
    lines = keys_view(TrustedKeys(keys=(key,))).plain.split("\n")
    assert len(lines) == 2
    assert lines[1].startswith(f"{key.key_id[:16]}  P-256      active  2026-01-31 12:00")
    assert log_faults(lines) == []
    assert all(cell_len(line) <= 80 for line in lines)


def test_an_empty_list_says_so() -> None:
    assert keys_view(NONE).plain == "No keys."
