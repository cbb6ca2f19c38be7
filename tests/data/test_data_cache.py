"""The shared cache: claims, eviction of what nobody uses, room, and who may write to it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from data_bench import Shown

from gate.data.cache import SharedCache
from gate.errors import DataError

A, B, C = (f"sha256/{letter * 64}" for letter in "abc")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[SharedCache]:
    made = SharedCache(tmp_path / "cache", 100, Shown())
    yield made
    made.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[SharedCache]:
    made = SharedCache(tmp_path / "cache", 100, Shown())
    yield made
    made.close()


def stored(cache: SharedCache, name: str, size: int = 40, used: int = 1) -> Path:
    """An object that no gate uses, last used at a time in seconds since 1970."""
    key = name[-8:]
    with cache.being_fetched(key, 1.0) as staging:
        (staging / "x").write_bytes(bytes(size))
        path = cache.store(name, staging / "x", size)
        cache.done(staging)
    os.utime(cache.path(name).parents[3] / "sizes" / name, (used, used))
    return path


def test_what_is_missing_is_answered_once(cache: SharedCache) -> None:
    assert cache.claim([A, A, B]) == (A, B)
    stored(cache, A)
    assert cache.claim([A, B]) == (B,)


def test_the_oldest_goes_first(cache: SharedCache, other: SharedCache) -> None:
    first, second = stored(other, A, used=2), stored(other, B, used=1)
    assert cache.make_room(50, "mini") >= 50
    assert first.exists()
    assert not second.exists()


def test_using_makes_young(cache: SharedCache, other: SharedCache) -> None:
    first, second = stored(other, A, used=1), stored(other, B, used=2)
    other.claim([A])
    other.close()
    cache.make_room(50, "mini")
    assert (first.exists(), second.exists()) == (True, False)


def test_nothing_goes_that_this_or_another_gate_uses(
    cache: SharedCache, other: SharedCache
) -> None:
    first, second = stored(other, A), stored(other, B)
    cache.claim([A])
    other.claim([B])
    with pytest.raises(DataError) as caught:
        cache.make_room(50, "mini")
    assert caught.value.message == (
        "mini has 50 bytes; beside what gates use now, the cache may hold 20 more"
    )
    other.close()
    cache.make_room(50, "mini")
    assert (first.exists(), second.exists()) == (True, False)


def test_what_is_larger_than_the_limit_is_refused(cache: SharedCache) -> None:
    with pytest.raises(DataError, match="mini has 101 bytes; the cache may hold 100"):
        cache.make_room(101, "mini")


def test_a_folder_is_read_only_for_all(cache: SharedCache) -> None:
    with cache.being_fetched("key", 1.0) as staging:
        (staging / "folder" / "sub").mkdir(parents=True)
        (staging / "folder" / "sub" / "x").touch(0o600)
        there = cache.store(A, staging / "folder", 0)
    assert stat.S_IMODE((there / "sub").stat().st_mode) == 0o755
    assert stat.S_IMODE((there / "sub" / "x").stat().st_mode) == 0o444


def test_a_strict_umask_closes_nothing(cache: SharedCache) -> None:
    before = os.umask(0o077)
    try:
        path = stored(cache, A)
    finally:
        os.umask(before)
    # below the folder of the test, which is closed
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in path.parents[:4]} == {0o755}
    assert stat.S_IMODE((path.parents[3] / "fetching").stat().st_mode) == 0o755


def test_another_gate_waits_for_what_is_being_fetched(
    cache: SharedCache, other: SharedCache
) -> None:
    cache.claim([A])
    with (
        cache.being_fetched("key", 1.0),
        pytest.raises(DataError) as caught,
        other.being_fetched("key", 0.3),
    ):
        pass
    assert "has held" in caught.value.message
    assert caught.value.hint == "Wait for the other gate, or raise fetch.timeout_seconds."


def test_what_a_killed_gate_left_unfinished_stays_for_the_next_one(cache: SharedCache) -> None:
    with cache.being_fetched("key", 1.0) as staging:
        (staging / "part").write_bytes(b"half")
    with cache.being_fetched("key", 1.0) as staging:
        assert (staging / "part").read_bytes() == b"half"
    assert cache.claim([A]) == (A,)


def test_a_part_that_nobody_came_back_to_is_removed(cache: SharedCache) -> None:
    with cache.being_fetched("key", 1.0) as staging:
        (staging / "part").write_bytes(b"half")
    os.utime(staging, (1, 1))
    cache.make_room(1, "mini")
    assert not staging.exists()


def test_a_folder_that_others_can_write_to_is_refused(cache: SharedCache, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(DataError) as caught:
        cache.claim([A])
    assert "can be written by, another account" in caught.value.message


def test_a_cache_that_cannot_be_made_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError) as caught:
        SharedCache(tmp_path / "file" / "cache", 1, Shown()).claim([A])
    assert "cannot be used: Not a directory" in caught.value.message
    assert "fetch.cache" in caught.value.hint


def test_of_a_named_cache_only_the_last_folder_is_made(tmp_path: Path) -> None:
    made = SharedCache(tmp_path / "a" / "cache", 1, Shown())
    with pytest.raises(DataError) as caught:
        made.claim([A])
    assert caught.value.message == (
        f"fetch.cache: {tmp_path}/a/cache cannot be made: there is no {tmp_path}/a"
    )
    assert (
        caught.value.hint == f"Make the folder as the gate's account: mkdir -p {tmp_path}/a/cache"
    )
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("place", ["/etc/rg-planted", "/usr/local/rg", "/etc"])
def test_no_cache_is_made_among_the_systems_files(place: str) -> None:
    before = {*Path("/etc").iterdir()}
    with pytest.raises(DataError, match="which belongs to the system"):
        SharedCache(Path(place), 1, Shown()).claim([A])
    assert {*Path("/etc").iterdir()} == before


@pytest.mark.parametrize("killed_after", [(), ("objects",), ("file-digests.sqlite3", "objects")])
def test_a_cache_that_another_gate_has_only_begun_is_used(
    tmp_path: Path, killed_after: tuple[str, ...]
) -> None:
    SharedCache(tmp_path / "cache", 1, Shown()).prepare()
    for name in killed_after:
        (tmp_path / "cache" / name).mkdir()
    assert SharedCache(tmp_path / "cache", 1, Shown()).claim([A]) == (A,)


def test_a_folder_with_other_files_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("mine")
    with pytest.raises(DataError, match="contains other files, such as keys"):
        SharedCache(tmp_path, 1, Shown()).claim([A])
    assert [*tmp_path.iterdir()] == [tmp_path / "keys"]
