"""Packing: the bytes depend on names and contents alone, and unsafe names are refused."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from attestation_cases import FILES, member, pack_to
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import AttestationError, StorageError
from gate.package.packing import pack
from gate.package.seal_records import PackageMember
from gate.package.ustar import MAX_MEMBER_BYTES, header, parse_header
from gate.system.files.files import LocalFiles

SAFE_NAME = st.from_regex(r"[a-z]{1,60}(/[a-z]{1,60}){0,3}", fullmatch=True)


def test_digest_and_size_are_those_of_the_file(tmp_path: Path) -> None:
    package = pack_to(tmp_path / "package.tar", member("b", b"2"), member("a", b"1"))
    data = package.path.read_bytes()
    assert package.sha256 == hashlib.sha256(data).hexdigest()
    assert package.size_bytes == len(data)
    assert package.members[0] == ("a", hashlib.sha256(b"1").hexdigest())
    assert [name for name, _ in package.members] == ["a", "b", "SHA256SUMS"]


def test_python_reads_the_archive(tmp_path: Path) -> None:
    package = pack_to(tmp_path / "package.tar", member("a/b.txt", b"hello"), member("c", b""))
    with tarfile.open(package.path, "r:") as archive:
        rows = [(each.name, each.size, each.mode, each.mtime, each.uid) for each in archive]
        sums = cast("io.BufferedReader", archive.extractfile("SHA256SUMS")).read()
    assert rows[:2] == [("a/b.txt", 5, 0o644, 0, 0), ("c", 0, 0o644, 0, 0)]
    assert sums.splitlines()[0] == hashlib.sha256(b"hello").hexdigest().encode() + b"  a/b.txt"


def test_bytes_do_not_depend_on_order_time_or_permissions(tmp_path: Path) -> None:
    digests = set()
    for attempt, mode in enumerate((0o600, 0o755)):
        source = tmp_path / f"source-{attempt}"
        source.write_bytes(b"same")
        source.chmod(mode)
        os.utime(source, (attempt * 1000, attempt * 1000))
        members = [PackageMember(name="x", path=source), member("Y"), member("a/z")]
        ordered = members[attempt:] + members[:attempt]
        digests.add(pack_to(tmp_path / f"{attempt}.tar", *ordered).sha256)
    assert len(digests) == 1


@given(st.lists(st.tuples(SAFE_NAME, st.binary(max_size=1100)), max_size=6))
def test_packing_is_independent_of_order(rows: list[tuple[str, bytes]]) -> None:
    members = [member(name, data) for name, data in rows]
    assert _outcome(members) == _outcome(members[::-1])


def _outcome(members: list[PackageMember]) -> bytes | None:
    target = io.BytesIO()
    try:
        pack(members, path=Path("package.tar"), target=target, files=FILES)
    except AttestationError:
        return None
    return target.getvalue()


@each_row(
    ("name", "problem"),
    [
        ("/etc/passwd", "is absolute"),
        ("../up", "has an empty part, '.' or '..'"),
        ("a/../b", "has an empty part, '.' or '..'"),
        ("./a", "has an empty part, '.' or '..'"),
        ("a//b", "has an empty part, '.' or '..'"),
        ("a/", "has an empty part, '.' or '..'"),
        ("", "has a character that is not printable ASCII"),
        ("a\nb", "has a character that is not printable ASCII"),
        ("a\n", "has a character that is not printable ASCII"),
        ("a\x1b[2J", "has a character that is not printable ASCII"),
        ("naïve", "has a character that is not printable ASCII"),
        ("a\\b", "has a backslash"),
        (".git/config", "has a part that begins with .git"),
        ("a/.GitHub/x", "has a part that begins with .git"),
        ("x" * 101, "is too long for the ustar format"),
        ("x" * 156 + "/y", "is too long for the ustar format"),
        ("d/" + "x" * 101, "is too long for the ustar format"),
    ],
)
def test_unsafe_name_is_refused(tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(AttestationError) as caught:
        pack_to(tmp_path / "package.tar", member(name))
    assert caught.value.message == f"unsafe name in package: {name!r} {problem}"


@each_row(
    ("names", "message"),
    [
        (("a", "a"), "names in package collide: 'a' and 'a'"),
        (("Read", "read"), "names in package collide: 'Read' and 'read'"),
        (("a", "A/b"), "names in package collide: 'a' and 'A/b'"),
        (("sha256sums",), "names in package collide: 'sha256sums' and 'SHA256SUMS'"),
        (("SHA256SUMS",), "SHA256SUMS is written by the packer itself"),
        (tuple(f"{n}" for n in range(10_000)), "10,001 files in the package, the limit is 10,000"),
    ],
    ids=["twice", "case", "folder", "sums-case", "sums", "many"],
)
def test_names_that_collide_are_refused(
    tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(AttestationError) as caught:
        pack_to(tmp_path / "package.tar", *(member(name) for name in names))
    assert caught.value.message == message
    assert not (tmp_path / "package.tar").read_bytes()


@pytest.mark.parametrize("name", ["d" * 155 + "/" + "f" * 100, "a" * 100, "a/" * 60 + "b"])
def test_long_name_round_trips_through_the_header(name: str) -> None:
    assert parse_header(header(name, 7)) == (name, 7)


def test_member_beyond_the_format_is_refused() -> None:
    assert parse_header(header("a", MAX_MEMBER_BYTES)) == ("a", MAX_MEMBER_BYTES)
    with pytest.raises(AttestationError, match="'a' has 8,589,934,592 bytes"):
        header("a", MAX_MEMBER_BYTES + 1)


def test_link_is_not_followed(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/etc/hostname")
    with pytest.raises(StorageError, match="not a regular file"):
        pack_to(tmp_path / "package.tar", PackageMember(name="a", path=link))


class _Growing(io.BytesIO):
    """A file that something still writes to."""

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return max(0, super().seek(offset, whence) - 1)


class _Shrinking(io.BytesIO):
    """A file that something cuts while it is read."""

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return super().seek(offset, whence) + 1


class _Full(io.BytesIO):
    """A disk without room."""

    def write(self, _data: object, /) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


class _Moving(LocalFiles):
    """Files that hand out one stream, whatever is asked for."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    @contextmanager
    def open_binary(self, path: Path, *, max_bytes: int) -> Iterator[BinaryIO]:  # noqa: ARG002 the port's signature
        yield self._stream


@pytest.mark.parametrize("kind", [_Growing, _Shrinking])
def test_file_that_changes_meanwhile_is_refused(kind: type[io.BytesIO]) -> None:
    members = [PackageMember(name="a", path=Path("a"))]
    with pytest.raises(StorageError, match="a changed while it was packed"):
        pack(members, path=Path("p"), target=io.BytesIO(), files=_Moving(kind(b"12345")))


def test_full_disk_is_told() -> None:
    with pytest.raises(StorageError, match="could not be written: No space left on device"):
        pack([member("a")], path=Path("p"), target=cast("BinaryIO", _Full()), files=FILES)
