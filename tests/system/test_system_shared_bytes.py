"""A file's bytes in another file: on file systems that share them, copy them, or do neither."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import StorageError
from gate.system.files import writing
from gate.system.files.files import LocalFiles

FILES = LocalFiles()
SIZES = [0, 1, writing.READ_BYTES, 3 * writing.READ_BYTES + 7]


def sharing(target: int, request: int, source: int) -> None:
    """As a file system that shares would do it: all bytes at once, whatever the offsets."""
    assert request == writing.FICLONE
    os.pwrite(target, os.pread(source, os.fstat(source).st_size, 0), 0)


def raising(number: int):  # type: ignore[no-untyped-def] # noqa: ANN201 - stands for two functions
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.fixture(params=["as here", "shared", "read and written", "stops early"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = request.param
    if kind == "shared":
        monkeypatch.setattr(fcntl, "ioctl", sharing)
    elif kind != "as here":
        monkeypatch.setattr(fcntl, "ioctl", raising(errno.EOPNOTSUPP))
    if kind == "read and written":
        monkeypatch.setattr(os, "copy_file_range", raising(errno.EXDEV))
    if kind == "stops early":
        real = os.copy_file_range
        pieces = [10]

        def some(source: int, target: int, count: int) -> int:
            return real(source, target, pieces.pop()) if pieces and count else 0

        monkeypatch.setattr(os, "copy_file_range", some)


@pytest.mark.usefixtures("file_system")
@pytest.mark.parametrize("size", SIZES)
def test_a_copy_has_all_bytes_whoever_makes_it(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "one").write_bytes(content)
    (tmp_path / "tree" / "one").chmod(0o750)
    FILES.copy_tree(tmp_path / "tree", tmp_path / "copy")
    copy = tmp_path / "copy" / "one"
    assert copy.read_bytes() == content
    assert copy.stat().st_mode & 0o777 == 0o750
    assert copy.stat().st_mtime_ns == (tmp_path / "tree" / "one").stat().st_mtime_ns
    told = FILES.copy_file(copy, tmp_path / "second", max_bytes=size)
    assert told == hashlib.sha256(content).hexdigest()
    assert (tmp_path / "second").read_bytes() == content
    # neither changes with the other
    copy.write_bytes(b"other")
    assert (tmp_path / "second").read_bytes() == content


@pytest.mark.usefixtures("file_system")
def test_too_much_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "one").write_bytes(b"x" * 100)
    with pytest.raises(StorageError, match="one: with it there are more than 99 bytes"):
        FILES.copy_tree(tmp_path / "tree", tmp_path / "copy", max_bytes=99)
    assert list((tmp_path / "copy").iterdir()) == []
    with pytest.raises(StorageError, match="99"):
        FILES.copy_file(tmp_path / "tree" / "one", tmp_path / "second", max_bytes=99)
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("name", ["ioctl", "copy_file_range"])
def test_a_full_disk_is_no_reason_to_try_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(fcntl if name == "ioctl" else os, name, raising(errno.ENOSPC))
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "one").write_bytes(b"x")
    with pytest.raises(StorageError, match="disk full while copying"):
        FILES.copy_tree(tmp_path / "tree", tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []


def test_a_file_that_grew_while_it_was_shared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "one"
    source.write_bytes(b"x" * 100)

    def grown(target: int, request: int, descriptor: int) -> None:
        source.write_bytes(b"x" * 101)
        sharing(target, request, descriptor)

    monkeypatch.setattr(fcntl, "ioctl", grown)
    with pytest.raises(StorageError):
        FILES.copy_file(source, tmp_path / "copy", max_bytes=100)
    assert not (tmp_path / "copy").exists()


@given(st.lists(st.binary(max_size=100), max_size=5))
def test_all_of_several_pieces_is_written(pieces: list[bytes]) -> None:
    descriptor = os.memfd_create("pieces")
    try:
        for piece in pieces:
            writing.write_all(descriptor, piece)
        assert os.pread(descriptor, 1000, 0) == b"".join(pieces)
    finally:
        os.close(descriptor)
