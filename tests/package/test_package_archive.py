"""Reading a package: whatever the writer would not write is refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from attestation_cases import FILES, member
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import AttestationError
from gate.package.archive import read_archive
from gate.package.packing import pack
from gate.package.seal_records import Archive, PackageMember
from gate.package.ustar import RECORD_BYTES, header, padding, sums_text
from gate.text.digests import sha256_hex

NOT_OURS = "the package is not an archive that repro-gate wrote"
KEEP = frozenset({"SHA256SUMS", "kept"})


def _packed(*members: PackageMember) -> bytes:
    target = io.BytesIO()
    pack(members, path=Path("p"), target=target, files=FILES)
    return target.getvalue()


def _read(data: bytes) -> Archive:
    return read_archive(io.BytesIO(data), size_bytes=len(data), keep=KEEP)


def _refusal(data: bytes) -> str:
    with pytest.raises(AttestationError) as caught:
        _read(data)
    assert caught.value.hint
    return caught.value.message


def _raw(*rows: tuple[str, bytes]) -> bytes:
    """An archive with exactly these members, in this order."""
    blocks = b"".join(header(name, len(data)) + data + padding(len(data)) for name, data in rows)
    return _closed(blocks)


def _closed(blocks: bytes) -> bytes:
    data = blocks + bytes(1024)
    return data + bytes(-len(data) % RECORD_BYTES)


def _by_tarfile(kind: bytes, **fields: object) -> bytes:
    """An archive by another writer, with one member of another kind."""
    info = tarfile.TarInfo("a")
    info.type = kind
    for name, value in fields.items():
        setattr(info, name, value)
    return _closed(info.tobuf(tarfile.USTAR_FORMAT))


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.binary(max_size=1500)))
def test_reading_is_the_inverse_of_packing(contents: dict[str, bytes]) -> None:
    data = _packed(*(member(name, content) for name, content in contents.items()))
    archive = _read(data)
    found = {each.name: (each.size_bytes, each.sha256) for each in archive.members[:-1]}
    assert found == {name: (len(part), sha256_hex(part)) for name, part in contents.items()}
    assert archive.sha256 == sha256_hex(data)


def test_only_content_that_was_asked_for_is_kept() -> None:
    archive = _read(_packed(member("kept", b"here"), member("other", b"there")))
    assert [each.content for each in archive.members[:2]] == [b"here", None]


def test_large_member_is_read_in_pieces() -> None:
    content = bytes(3 * 1024 * 1024 + 5)
    assert _read(_packed(member("a", content))).members[0].sha256 == sha256_hex(content)


@each_row(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"L"],
    ids=["symlink", "hardlink", "folder", "fifo", "device", "longname"],
)
def test_what_is_no_regular_file_is_refused(kind: bytes) -> None:
    data = _by_tarfile(kind, linkname="/etc/passwd")
    assert _refusal(data) == "the package holds something that is not a regular file"


@each_row(
    "fields",
    [{"mode": 0o755}, {"mtime": 1}, {"uid": 1}, {"uname": "root"}, {"linkname": "b"}],
)
def test_header_with_other_fields_is_refused(fields: dict[str, object]) -> None:
    base: dict[str, object] = {"mode": 0o644}
    assert _refusal(_by_tarfile(tarfile.REGTYPE, **(base | fields))) == NOT_OURS


def test_unsafe_name_in_an_archive_is_refused() -> None:
    info = tarfile.TarInfo("../a")
    message = _refusal(_closed(info.tobuf(tarfile.USTAR_FORMAT)))
    assert message == "unsafe name in package: '../a' has an empty part, '.' or '..'"


@pytest.mark.parametrize("offset", [0, 124], ids=["name", "size"])
def test_header_field_that_is_no_text_is_refused(offset: int) -> None:
    data = bytearray(_packed(member("a")))
    data[offset] = 0xFF
    assert _refusal(bytes(data)) == NOT_OURS


def test_empty_archive_and_one_without_sums_are_refused() -> None:
    wanted = "the package does not end with SHA256SUMS"
    assert _refusal(_raw()) == wanted
    assert _refusal(_raw(("a", b""))) == wanted
    assert _refusal(_raw(("SHA256SUMS", b""), ("a", b""))) == wanted


@pytest.mark.parametrize("names", [("b", "a"), ("a", "SHA256SUMS", "b")])
def test_members_out_of_order_are_refused(names: tuple[str, ...]) -> None:
    rows = [(name, b"") for name in (*names, "SHA256SUMS")]
    assert _refusal(_raw(*rows)) == NOT_OURS


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "a"), "names in package collide: 'a' and 'a'"),
        (("A", "a"), "names in package collide: 'A' and 'a'"),
        (("a", "a/b"), "names in package collide: 'a' and 'a/b'"),
    ],
)
def test_colliding_members_are_refused(names: tuple[str, ...], message: str) -> None:
    assert _refusal(_raw(*((name, b"") for name in names), ("SHA256SUMS", b""))) == message


def test_cut_archive_is_refused() -> None:
    data = _packed(member("a"))
    assert _refusal(b"") == "the package is truncated"
    assert _refusal(data[:700]) == "the package is truncated"
    assert _refusal(_closed(header("a", 10**9))) == "the package is truncated"


@each_row("extra", [b"\0", b"x", bytes(512), bytes(RECORD_BYTES), b"x" * 10240])
def test_bytes_after_the_end_are_refused(extra: bytes) -> None:
    assert _refusal(_packed(member("a")) + extra) == NOT_OURS


def test_bytes_hidden_in_padding_are_refused() -> None:
    data = _packed(member("a", b"1"))
    for position in (513, 1023, len(data) - 1):
        changed = bytearray(data)
        changed[position] = 1
        assert _refusal(bytes(changed)) == NOT_OURS


def test_stream_shorter_than_announced_is_refused() -> None:
    data = _packed(member("a"))
    with pytest.raises(AttestationError, match="the package is truncated"):
        read_archive(io.BytesIO(data[:-1]), size_bytes=len(data), keep=KEEP)


def test_too_many_members_are_refused() -> None:
    rows = [(f"{number:05}", b"") for number in range(10_001)]
    assert _refusal(_raw(*rows)) == "the package holds more than 10,000 files"


def test_largest_package_is_read() -> None:
    rows = [(f"{number:05}", b"") for number in range(9_999)]
    sums = sums_text([(name, sha256_hex(data)) for name, data in rows])
    assert len(_read(_raw(*rows, ("SHA256SUMS", sums))).members) == 10_000


def test_kept_member_has_a_limit() -> None:
    size = 64 * 1024 * 1024 + 1
    message = f"kept in the package has {size:,} bytes, the limit is 67,108,864"
    assert _refusal(header("kept", size)) == message
