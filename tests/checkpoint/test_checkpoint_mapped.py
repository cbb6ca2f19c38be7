"""Stretches of a file without a copy, at any place of it."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.checkpoint.untrusted_files import file_part, open_untrusted
from gate.errors import EvidenceError
from gate.system.files.files import LocalFiles

CONTENT = bytes(range(251)) * 80
PLACES = st.tuples(st.integers(0, len(CONTENT)), st.integers(0, len(CONTENT))).map(sorted)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("mapped") / "state"
    written.write_bytes(CONTENT)
    return written


@given(PLACES, st.integers(0, 5000))
def test_a_mapped_stretch_is_what_reading_gives(path: Path, places: list[int], cut: int) -> None:
    start, end = places
    with open_untrusted(LocalFiles(), path, "state", max_bytes=2**20) as opened:
        with opened.mapped(start, end - start) as data:
            assert bytes(data) == CONTENT[start:end] == opened.read_at(start, end - start)
        part = file_part(opened, min(cut, start), len(CONTENT) - min(cut, start), "a part")
        with part.mapped(start - min(cut, start), end - start) as data:
            assert bytes(data) == CONTENT[start:end]


def test_a_stretch_behind_the_end_is_refused(path: Path) -> None:
    with (
        open_untrusted(LocalFiles(), path, "state", max_bytes=2**20) as opened,
        pytest.raises(EvidenceError, match="state: is truncated or points past its own end"),
        opened.mapped(len(CONTENT) - 1, 2),
    ):
        pass


def test_a_file_that_became_shorter_is_told(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(CONTENT)
    with open_untrusted(LocalFiles(), path, "state", max_bytes=2**20) as opened:
        path.write_bytes(b"short")
        with (
            pytest.raises(EvidenceError, match="state: became shorter while it was read"),
            opened.mapped(0, len(CONTENT)),
        ):
            pass


def test_what_writes_to_a_stretch_changes_no_file(path: Path) -> None:
    with open_untrusted(LocalFiles(), path, "state", max_bytes=2**20) as opened:
        with opened.mapped(5, 10) as data:
            data[0] = 0
        assert opened.read_at(0, len(CONTENT)) == CONTENT


def test_a_file_that_cannot_be_mapped_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(19, "No such device")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with (
        open_untrusted(LocalFiles(), path, "state", max_bytes=2**20) as opened,
        opened.mapped(4097, 300) as data,
    ):
        assert bytes(data) == CONTENT[4097:4397]


def test_a_fault_inside_the_body_stays_the_fault(path: Path) -> None:
    held: list[memoryview] = []

    def fail(data: memoryview) -> None:
        held.append(memoryview(data)[:50])
        raise ZeroDivisionError

    with (
        open_untrusted(LocalFiles(), path, "state", max_bytes=2**20) as opened,
        pytest.raises(ZeroDivisionError),
        opened.mapped(0, 100) as data,
    ):
        fail(data)
    assert bytes(held[0]) == CONTENT[:50]
