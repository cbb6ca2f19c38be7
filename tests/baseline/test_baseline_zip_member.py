"""One file out of an archive that may be crafted."""

from __future__ import annotations

import io
import struct
import tempfile
import zipfile
from pathlib import Path

import pytest
from each_row import each_row
from github_artifacts import archive_of
from hypothesis import given
from hypothesis import strategies as st

from gate.baseline.folder import zip_member
from gate.errors import DocumentError, GateError

NAME = "proposed-baseline.json"
GOOD = archive_of({"verdict.json": b"{}", f"folder/{NAME}": b'{"a": 1}' * 20})


def member(folder: Path, archive: bytes, *, max_bytes: int = 1000) -> bytes:
    path = folder / "artifact.zip"
    path.write_bytes(archive)
    return zip_member(path, NAME, "the artifact", max_archive=100_000, max_bytes=max_bytes)


def test_the_one_file_is_read_and_nothing_is_written(tmp_path: Path) -> None:
    assert member(tmp_path, GOOD) == b'{"a": 1}' * 20
    assert [path.name for path in tmp_path.iterdir()] == ["artifact.zip"]


@each_row("name", [f"../../{NAME}", f"/etc/{NAME}", f"a\\{NAME}", f"{NAME}/", "x"])
def test_a_path_leads_nowhere(tmp_path: Path, name: str) -> None:
    archive = archive_of({name: b"{}"})
    if name.endswith(f"/{NAME}"):
        assert member(tmp_path, archive) == b"{}"
    else:
        with pytest.raises(DocumentError, match=r"the artifact: holds no proposed-baseline\.json"):
            member(tmp_path, archive)
    assert [path.name for path in tmp_path.iterdir()] == ["artifact.zip"]


def test_two_of_that_name_are_refused(tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(NAME, "1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr(NAME, "2")
    with pytest.raises(DocumentError, match="holds 2 files called"):
        member(tmp_path, made.getvalue())


def test_a_bomb_is_unpacked_to_the_limit_only(tmp_path: Path) -> None:
    bomb = archive_of({NAME: b"0" * 1_000_000})
    with pytest.raises(DocumentError, match="the baseline in it is larger than"):
        member(tmp_path, bomb)
    # the directory says that it is small
    lying = bomb.replace(struct.pack("<I", 1_000_000), struct.pack("<I", 10))
    assert lying != bomb
    with pytest.raises(DocumentError):
        member(tmp_path, lying)


def test_another_compression_than_githubs_is_refused(tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr(NAME, "{}")
    with pytest.raises(DocumentError, match="compressed in a way that GitHub does not use"):
        member(tmp_path, made.getvalue())


def test_an_encrypted_one_is_refused(tmp_path: Path) -> None:
    archive = bytearray(GOOD)
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = archive.rindex(magic)
        archive[place + offset] |= 1
    with pytest.raises(DocumentError, match="not a readable zip archive"):
        member(tmp_path, bytes(archive))


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real.zip").write_bytes(GOOD)
    (tmp_path / "link.zip").symlink_to(tmp_path / "real.zip")
    with pytest.raises(GateError, match="is a link"):
        zip_member(tmp_path / "link.zip", NAME, "x", max_archive=100_000, max_bytes=1000)


@given(
    st.one_of(
        st.binary(max_size=400),
        st.integers(0, len(GOOD)).map(lambda end: GOOD[:end]),
        st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)).map(
            lambda change: GOOD[: change[0]] + bytes([change[1]]) + GOOD[change[0] + 1 :]
        ),
    )
)
def test_whatever_the_bytes_are_it_is_the_content_or_a_fault_with_words(archive: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            said = "the artifact: " if len(member(Path(folder), archive)) <= 1000 else ""
        except DocumentError as fault:
            said = fault.message if fault.hint else ""
    assert said.startswith("the artifact: ")
