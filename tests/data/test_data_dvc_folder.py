"""Listings of folders: put together, damaged, and written to lead astray."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.data.cache import md5_of, wrong_md5
from gate.data.dvc import is_whole, put_together, read_listing
from gate.errors import DataError

A = "a" * 32


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def listing(tmp_path: Path, rows: object) -> Path:
    path = tmp_path / "x.dir"
    path.write_text(json.dumps(rows), "utf-8")
    return path


def test_a_folder_is_put_together_and_checked_again(tmp_path: Path) -> None:
    content = {"a/1.npy": b"one", "a/2.npy": b"one", "ä b": b"two"}
    objects = {}
    for data in set(content.values()):
        objects[md5(data)] = tmp_path / md5(data)
        objects[md5(data)].write_bytes(data)
    rows = [{"md5": md5(data), "relpath": name} for name, data in content.items()]
    file = listing(tmp_path, rows)
    digest = md5(file.read_bytes())
    folder = tmp_path / "folder"
    size = put_together(read_listing(file, "mini"), file, objects, folder)
    assert size == 9
    assert {name: (folder / "content" / name).read_bytes() for name in content} == content
    assert is_whole(folder, digest, dos2unix=False)
    (folder / "content" / "more").touch()
    assert not is_whole(folder, digest, dos2unix=False)
    (folder / "content" / "more").unlink()
    (folder / "content" / "ä b").unlink()
    assert not is_whole(folder, digest, dos2unix=False)


@each_row(
    "path",
    [
        "../up",
        "a/../../up",
        "/etc/passwd",
        "",
        ".",
        "a//b",
        "a\0b",
        "x" * 256,
        "\ud800",
        "a/" * 2000,
    ],
)
def test_a_path_that_leads_out_of_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    file = listing(tmp_path, [{"md5": A, "relpath": path}])
    with pytest.raises(DataError) as caught:
        read_listing(file, "mini")
    assert caught.value.message.startswith("data: mini: the remote's listing of it is refused: ")
    assert caught.value.message.isprintable()


@each_row(
    "rows",
    [
        {},
        [1],
        [{"relpath": "x"}],
        [{"md5": "../../x", "relpath": "x"}],
        [{"md5": A, "relpath": "x"}] * 2,
    ],
)
def test_what_is_no_listing_is_refused(tmp_path: Path, rows: object) -> None:
    with pytest.raises(DataError, match="the remote's listing of it is refused"):
        read_listing(listing(tmp_path, rows), "mini")


@given(st.binary(max_size=2000))
def test_an_old_digest_leaves_out_the_carriage_returns_of_text(data: bytes) -> None:
    # 512 bytes of text decide, whatever comes behind them
    text = b"text \r\n" * 80 + data
    binary = b"\0" + text
    with NamedTemporaryFile() as file:
        path = Path(file.name)
        path.write_bytes(text)
        assert md5_of(path, dos2unix=True) == md5(text.replace(b"\r\n", b"\n"))
        assert md5_of(path, dos2unix=False) == md5(text)
        path.write_bytes(binary)
        assert md5_of(path, dos2unix=True) == md5(binary)


def test_a_missing_file_and_a_link_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    (tmp_path / "link").symlink_to("x")
    rows = [(tmp_path / name, md5(b"x")) for name in ("x", "link", "none")]
    assert list(wrong_md5(rows, dos2unix=False)) == [tmp_path / "link", tmp_path / "none"]
