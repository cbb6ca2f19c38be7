"""Pointers of Git LFS, files that are their own content, and torn pointers."""

from __future__ import annotations

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.data.data_sets import DataPointer, PointerFile
from gate.data.pointers import read_lfs
from gate.errors import DataError
from gate.settings.data import DataKind

A = "a" * 64
FILE = PointerFile(name="data/*.bin", kind=DataKind.LFS, path="data/x.bin")
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{A}\nsize 12345\n"


def test_a_pointer_names_its_object() -> None:
    assert read_lfs(FILE, POINTER.encode()) == DataPointer(
        name="data/*.bin", kind=DataKind.LFS, path="data/x.bin", digest=A, size_bytes=12345
    )


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", b"version 1\n", POINTER.encode() + b"x" * 999])
def test_a_file_that_is_its_own_content_is_none(data: bytes) -> None:
    assert read_lfs(FILE, data) is None


@each_row(
    ("before", "after", "told"),
    [
        ("v1", "v2", "has version 'https://git-lfs.github.com/spec/v2', not"),
        ("sha256:", "sha1:", "has no oid of 64 hexadecimal digits behind sha256:"),
        (A, "A" * 64, "has no oid of 64 hexadecimal digits"),
        ("12345", "-1", "has no size in bytes"),
        ("12345", "012", "has no size in bytes"),
        ("12345\n", "12345", "ends in the middle of a line"),
        ("size 12345", "size", "has a line that is not a key and a value: 'size'"),
        ("size", "oid", "has the key oid twice"),
        ("size", "abc", "has its keys in a different order"),
        ("oid", "ext-0-crypt sha256:00\noid", "with an extension is not supported"),
        ("12345", "\xff", "is not UTF-8 at byte"),
    ],
)
def test_a_torn_pointer_is_one_error(before: str, after: str, told: str) -> None:
    with pytest.raises(DataError) as caught:
        read_lfs(FILE, POINTER.replace(before, after).encode("latin-1"))
    assert caught.value.message.startswith("data/x.bin: ")
    assert told in caught.value.message
    assert caught.value.hint


@given(st.binary(max_size=200), st.sampled_from([0, 40, 60, 200]))
def test_any_bytes_are_a_pointer_or_content_or_one_error(data: bytes, kept: int) -> None:
    told = "none"
    try:
        read_lfs(FILE, POINTER.encode()[:kept] + data)
    except DataError as error:
        told = error.message
    assert told.isprintable()
