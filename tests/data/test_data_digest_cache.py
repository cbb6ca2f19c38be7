"""The cache of digests: trusted with `verify: cached` alone, and never a fault."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from data_folders import folder_of

from gate.data.declared import Listing
from gate.data.hashing import FILE_NAME, SETTLED_NANOSECONDS, DigestCache
from gate.data.listing import take_listing
from gate.settings.data import Verify

FALSE = "f" * 64


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "mini", {b"a": b"1", b"b/c": b"22", b"b/\xff": b"333"})


@pytest.fixture
def cache(tmp_path: Path) -> DigestCache:
    return _later(tmp_path / "cache")


def _later(folder: Path) -> DigestCache:
    """One for which every file of a test has settled."""
    return DigestCache(folder, now_ns=lambda: time.time_ns() + 2 * SETTLED_NANOSECONDS)


def _table(folder: Path) -> Path:
    return folder / "cache" / FILE_NAME


def _falsify(folder: Path, sha256: object = FALSE) -> None:
    with sqlite3.connect(_table(folder)) as database:
        database.execute("update files set sha256 = ?", (sha256,))
    database.close()


def _digests(listing: Listing) -> set[str]:
    return {file.sha256 for file in listing.files}


def test_a_file_that_was_read_before_is_not_read_again(
    data: Path, cache: DigestCache, tmp_path: Path
) -> None:
    first = take_listing(data, Verify.CACHED, cache)
    assert take_listing(data, Verify.CACHED, cache) == first
    _falsify(tmp_path)
    assert _digests(take_listing(data, Verify.CACHED, cache)) == {FALSE}


def test_many_files_are_asked_for_at_once(cache: DigestCache, tmp_path: Path) -> None:
    data = folder_of(tmp_path / "many", {b"%d" % number: b"%d" % number for number in range(1200)})
    first = take_listing(data, Verify.CACHED, cache)
    assert cache.known(first.files) == dict(enumerate(file.sha256 for file in first.files))


@pytest.mark.parametrize("verify", [Verify.FULL, Verify.SAMPLE])
def test_only_cached_asks(data: Path, cache: DigestCache, tmp_path: Path, verify: Verify) -> None:
    first = take_listing(data, Verify.CACHED, cache)
    _falsify(tmp_path)
    assert take_listing(data, verify, cache).files == first.files
    # and nothing else writes it
    _table(tmp_path).unlink()
    take_listing(data, verify, cache)
    assert not _table(tmp_path).exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text("2"),
        lambda path: path.write_text("222"),
        lambda path: os.utime(path, ns=(2, 2)),
        lambda path: (path.unlink(), path.write_text("1")),
    ],
)
def test_a_file_whose_stamp_moved_is_read(
    data: Path, cache: DigestCache, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    take_listing(data, Verify.CACHED, cache)
    _falsify(tmp_path)
    change(data / "a")
    a, *others = take_listing(data, Verify.CACHED, cache).files
    assert a.sha256 not in {"", FALSE}
    assert {file.sha256 for file in others} == {FALSE}


def test_a_file_that_changed_just_now_is_not_remembered(data: Path, tmp_path: Path) -> None:
    # the time of the inode is now, whatever the file's own says
    cache = DigestCache(tmp_path / "cache", now_ns=lambda: (data / "a").stat().st_ctime_ns + 10**9)
    take_listing(data, Verify.CACHED, cache)
    with sqlite3.connect(_table(tmp_path)) as database:
        assert database.execute("select count(*) from files").fetchone() == (0,)
    database.close()


@pytest.mark.parametrize("sha256", ["", "x" * 64, FALSE + "\n", 5, b"f" * 64, None])
def test_what_is_no_digest_is_none(
    data: Path, cache: DigestCache, tmp_path: Path, sha256: object
) -> None:
    first = take_listing(data, Verify.CACHED, cache)
    _falsify(tmp_path, sha256)
    assert take_listing(data, Verify.CACHED, cache) == first


def test_a_broken_database_is_begun_anew(data: Path, cache: DigestCache, tmp_path: Path) -> None:
    first = take_listing(data, Verify.CACHED, cache)
    _table(tmp_path).write_bytes(b"no database" * 1000)
    assert take_listing(data, Verify.CACHED, cache) == first
    assert take_listing(data, Verify.CACHED, cache) == first
    _falsify(tmp_path)
    assert _digests(take_listing(data, Verify.CACHED, cache)) == {FALSE}


def test_a_locked_database_answers_nothing(data: Path, tmp_path: Path) -> None:
    cache = DigestCache(tmp_path / "cache", wait_seconds=0.01)
    first = take_listing(data, Verify.CACHED, cache)
    with sqlite3.connect(_table(tmp_path)) as database:
        database.execute("begin exclusive")
        assert take_listing(data, Verify.CACHED, cache) == first
    database.close()


@pytest.mark.parametrize("spoil", [Path.mkdir, lambda path: path.symlink_to("elsewhere")])
def test_something_else_in_its_place_is_no_fault(
    data: Path, cache: DigestCache, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    _table(tmp_path).parent.mkdir()
    spoil(_table(tmp_path))
    assert _digests(take_listing(data, Verify.CACHED, cache))
    assert not (tmp_path / "cache" / "elsewhere").exists()


def test_other_accounts_do_not_read_it(data: Path, cache: DigestCache, tmp_path: Path) -> None:
    take_listing(data, Verify.CACHED, cache)
    assert _table(tmp_path).stat().st_mode & 0o777 == 0o600
