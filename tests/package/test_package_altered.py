"""One changed byte, anywhere: the package or its seal is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from attestation_cases import Sealed, sealed_in
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import AttestationError
from gate.package.envelope import read_envelope
from gate.package.seal_records import SealFile

FIRST_HEADER = range(512)
SOME_OF_THE_REST = range(512, 10240, 23)
SIGNED_TEXT = re.compile(rb'"(?:payload|sig)":"([^"]*)"')


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    return sealed_in(tmp_path_factory.mktemp("sealed"))


def _flipped(data: bytes, position: int, mask: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= mask
    return bytes(changed)


def _refused(sealed: Sealed, package: bytes) -> bool:
    good = sealed.path.read_bytes()
    sealed.path.write_bytes(package)
    try:
        sealed.verified()
    except AttestationError:
        return True
    finally:
        sealed.path.write_bytes(good)
    return False


def _seal_refused(sealed: Sealed, seal: SealFile) -> bool:
    try:
        sealed.verified(seals=(seal,))
    except AttestationError:
        return True
    return False


def test_flipped_bytes_of_the_package_are_refused(sealed: Sealed) -> None:
    good = sealed.path.read_bytes()
    assert len(good) == 10240
    accepted = [
        position
        for position in (*FIRST_HEADER, *SOME_OF_THE_REST)
        if not _refused(sealed, _flipped(good, position, 1 << position % 8))
    ]
    assert accepted == []


@given(position=st.integers(0, 10239), mask=st.integers(1, 255))
def test_any_other_byte_of_the_package_is_refused(sealed: Sealed, position: int, mask: int) -> None:
    assert _refused(sealed, _flipped(sealed.path.read_bytes(), position, mask))


@pytest.mark.parametrize("form", [0, 1], ids=["bare", "bundle"])
def test_flipped_bytes_of_payload_and_signature_are_refused(sealed: Sealed, form: int) -> None:
    seal = sealed.seals[form]
    spans = [match.span(1) for match in SIGNED_TEXT.finditer(seal.content)]
    assert len(spans) == 2
    accepted = [
        position
        for position in (place for span in spans for place in range(*span))
        if not _seal_refused(sealed, _changed(seal, position, 1 << position % 8))
    ]
    assert accepted == []


def _changed(seal: SealFile, position: int, mask: int) -> SealFile:
    return SealFile(name=seal.name, content=_flipped(seal.content, position, mask))


@given(data=st.data(), form=st.integers(0, 1), mask=st.integers(1, 255))
def test_accepted_seal_holds_the_same_signed_bytes(
    sealed: Sealed, data: st.DataObject, form: int, mask: int
) -> None:
    """A key id is a hint, and `+` may be written `-`: neither changes what is signed."""
    seal = sealed.seals[form]
    position = data.draw(st.integers(0, len(seal.content) - 1))
    changed = _changed(seal, position, mask)
    if not _seal_refused(sealed, changed):
        before, after = read_envelope(seal), read_envelope(changed)
        assert (after.payload, after.payload_type) == (before.payload, before.payload_type)
        assert after.signatures[0].value == before.signatures[0].value


def test_undamaged_package_is_accepted_after_all_this(sealed: Sealed, tmp_path: Path) -> None:
    assert sealed.verified() == sealed_in(tmp_path).verified()
