from __future__ import annotations

import os
import struct
import tempfile
import zipfile
from pathlib import Path

import pytest
from checkpoint_digests import content_of, root_of
from hostile_archives import archive, pickled, tensor
from hypothesis import given
from hypothesis import strategies as st

from gate.checkpoint.formats import torch_files, zip_archives
from gate.checkpoint.untrusted_files import open_untrusted
from gate.errors import EvidenceError
from gate.system.files.files import LocalFiles

WHOLE = pickled(tensor())
WRONG = "its bytes do not match the CRC-32 in the archive"
LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"


def refusal(path: Path) -> str:
    with pytest.raises(EvidenceError) as caught:
        content_of(path)
    assert caught.value.message.startswith(f"{path.name}: ")
    return caught.value.message.removeprefix(f"{path.name}: ")


def patched(path: Path, magic: bytes, offset: int, new: bytes, *, nth: int = 0) -> Path:
    """Overwrite bytes in the nth header of a kind."""
    content = bytearray(path.read_bytes())
    start = -1
    for _ in range(nth + 1):
        start = content.index(magic, start + 1)
    content[start + offset : start + offset + len(new)] = new
    path.write_bytes(content)
    return path


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = archive(tmp_path, WHOLE)
    assert len(content_of(path).leaves) == 1
    return path


def test_every_cut_of_an_archive_is_refused(whole: Path) -> None:
    size = whole.stat().st_size
    for end in range(size - 1, -1, -7):
        os.truncate(whole, end)
        assert refusal(whole)


@pytest.mark.parametrize(
    ("magic", "offset", "new", "told"),
    [
        (CENTRAL, 8, b"\x01", "zip entry 'bad/data.pkl' is encrypted"),
        (LOCAL, 6, b"\x01", "zip entry 'bad/data.pkl': its two headers contradict each other"),
        (CENTRAL, 10, b"\x08", "zip entry 'bad/data.pkl': its two headers contradict each other"),
        (
            CENTRAL,
            10,
            b"\x0c",
            "zip entry 'bad/data.pkl' is compressed by method 12, which is not supported",
        ),
        (
            CENTRAL,
            20,
            b"\x01",
            "zip entry 'bad/data.pkl' is stored with a size other than its own",
        ),
        (LOCAL, 8, b"\x08", "zip entry 'bad/data.pkl': its two headers contradict each other"),
        (LOCAL, 18, b"\x01", "zip entry 'bad/data.pkl': its two headers contradict each other"),
        (LOCAL, 22, b"\x01", "zip entry 'bad/data.pkl': its two headers contradict each other"),
        (LOCAL, 30, b"good", "zip entry 'bad/data.pkl': its two headers contradict each other"),
        (CENTRAL, 42, b"\x01", "zip entry 'bad/data.pkl': its two headers contradict each other"),
        (CENTRAL, 42, b"\xf0\xff\xff\xf0", "is truncated or points past its own end"),
        (CENTRAL, 42, b"\xff\xff\xff\xff", "zip entry 'bad/data.pkl' lacks its 64-bit sizes"),
        (CENTRAL, 0, b"XX", "zip directory is damaged at entry 1"),
        (CENTRAL, 28, b"\xff\xff", "zip directory is damaged at entry 1"),
        (END, 20, b"\x01", "zip archive without an end record: it is truncated or has a comment"),
        (END, 4, b"\x01", "zip archive in several parts"),
        (END, 8, b"\x02", "zip archive in several parts"),
        (END, 8, b"\x02\0\x02", "zip directory has bytes after its last entry"),
        (END, 8, b"\x04\0\x04", "zip directory ends before entry 4"),
        (END, 16, b"\x00", "zip directory is not where the end record says"),
    ],
)
def test_a_header_that_lies_is_refused(
    whole: Path, magic: bytes, offset: int, new: bytes, told: str
) -> None:
    assert refusal(patched(whole, magic, offset, new)) == told


def test_a_compressed_bomb_is_refused_unopened(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("bomb/data.pkl", b"\0" * 10_000_000)
    assert refusal(path) == "zip entry 'bomb/data.pkl' is compressed"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path, WHOLE)
    with zipfile.ZipFile(path, "a") as target:
        target.writestr("bad/data/0", b"another 16 bytes")
    assert refusal(path) == "zip entry 'bad/data/0' occurs twice"


def test_records_over_each_other_are_refused(whole: Path) -> None:
    size = struct.pack("<2I", 500, 500)
    patched(patched(whole, CENTRAL, 20, size, nth=1), LOCAL, 18, size, nth=1)
    assert refusal(whole) == "zip entry 'bad/byteorder' overlaps other data"


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 200)), min_size=2, max_size=6))
def test_headers_over_each_other_are_refused_whatever_their_names(
    headers: list[tuple[int, int]],
) -> None:
    """The header that begins last need not be the one that ends last."""
    entries = [zip_archives.Entry(start, b"n" * length, 0, 0, 0, 0) for start, length in headers]
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(1000))
        file.flush()
        with (
            open_untrusted(LocalFiles(), Path(file.name), "x.pt", max_bytes=1000) as opened,
            pytest.raises(EvidenceError),
        ):
            list(zip_archives.located(opened, entries))


def test_large_sizes_stand_in_the_64_bit_field(whole: Path, tmp_path: Path) -> None:
    before, content = root_of(whole), whole.read_bytes()
    assert root_of(rewritten(tmp_path, content, sizes=(16, 16))) == before
    assert root_of(rewritten(tmp_path, content, sizes=())) == before
    other = rewritten(tmp_path, content, sizes=(16, 17))
    assert refusal(other) == "zip entry 'bad/data/0' is stored with a size other than its own"


def rewritten(folder: Path, content: bytes, sizes: tuple[int, ...]) -> Path:
    """The last entry with sizes and place in a zip64 field, behind a field of another kind."""
    start, end = content.rindex(CENTRAL), content.index(END)
    fields = list(struct.unpack("<4s6H3I5H2I", content[start : start + 46]))
    values = struct.pack(f"<{len(sizes) + 1}Q", *sizes, fields[16])
    extra = struct.pack("<2HI", 0x5455, 4, 7) + struct.pack("<2H", 1, len(values)) + values
    if sizes:
        fields[8:10] = [0xFFFFFFFF] * 2
    fields[11], fields[16] = len(extra), 0xFFFFFFFF
    entry = struct.pack("<4s6H3I5H2I", *fields) + content[start + 46 : end] + extra
    grown = struct.pack("<I", struct.unpack_from("<I", content, end + 12)[0] + len(extra))
    tail = content[end : end + 12] + grown + content[end + 16 :]
    (folder / "large.pt").write_bytes(content[:start] + entry + tail)
    return folder / "large.pt"


def with_large_end(path: Path, **changes: int) -> Path:
    """The same archive with a 64-bit end record, as torch writes it."""
    content = path.read_bytes()
    end = content.index(END)
    entries, size, start = struct.unpack_from("<H2I", content, end + 10)
    told = {"here": entries, "entries": entries, "size": size, "start": start, **changes}
    record = struct.pack("<4sQ2H2I", b"PK\x06\x06", 44, 45, 45, 0, 0)
    record += struct.pack("<4Q", told["here"], told["entries"], told["size"], told["start"])
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    path.write_bytes(content[:end] + record + locator + content[end:])
    return path


def test_a_64_bit_end_record_is_read(whole: Path) -> None:
    before = root_of(whole)
    assert root_of(with_large_end(whole)) == before


@pytest.mark.parametrize("part", ["here", "entries", "size", "start"])
def test_end_records_that_disagree_are_refused(whole: Path, part: str) -> None:
    with_large_end(whole, **{part: 1})
    assert refusal(whole) == "zip archive with two end records that contradict each other"


def test_an_archive_with_too_many_entries_is_refused(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zip_archives, "MAX_ENTRIES", 2)
    assert refusal(whole) == "zip archive with 3 entries is too large to read"


def test_an_empty_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(LOCAL)
    assert refusal(tmp_path / "a.pt") == "is truncated or points past its own end"
    (tmp_path / "a.pt").write_bytes(LOCAL + END + b"\0" * 12 + b"\x04" + b"\0" * 5)
    assert refusal(tmp_path / "a.pt") == "is a zip archive of neither torch nor NumPy"


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.docx", "w") as target:
        target.writestr("word/document.xml", b"")
    assert refusal(tmp_path / "a.docx") == "is a zip archive of neither torch nor NumPy"


def test_two_states_in_one_archive_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path, WHOLE, {"other/data.pkl": WHOLE})
    assert refusal(path) == "is a zip archive that torch.save did not write"


def test_big_endian_archives_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path, WHOLE, {"bad/byteorder": b"big"})
    assert refusal(path) == "was written on a big-endian machine"


@pytest.mark.parametrize("order", [b"", b"littl", b"LITTLE", b"big\n"])
def test_a_byte_order_that_is_none_is_told_as_that(tmp_path: Path, order: bytes) -> None:
    path = archive(tmp_path, WHOLE, {"bad/byteorder": order})
    assert refusal(path) == (
        f"its record byteorder holds {ascii(order)[1:]}, neither 'little' nor 'big'"
    )


def test_a_directory_that_cuts_the_byte_order_short_says_nothing_of_machines(whole: Path) -> None:
    """torch writes sizes behind the data, so that only the directory has them."""
    size = struct.pack("<2I", 5, 5)
    patched(patched(whole, CENTRAL, 20, size, nth=1), LOCAL, 6, b"\x08", nth=1)
    assert refusal(whole) == f"zip entry 'bad/byteorder' is damaged: {WRONG}"


def test_a_long_record_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path, WHOLE, {"bad/byteorder": b"l" * 17})
    assert refusal(path) == "zip entry 'bad/byteorder' is too large"
    monkeypatch.setattr(torch_files, "MAX_PICKLE_BYTES", 10)
    assert refusal(archive(tmp_path, WHOLE)) == "zip entry 'bad/data.pkl' is too large"


@pytest.mark.parametrize("content", [b"PK", b"not a checkpoint", b"\0" * 100])
def test_an_unknown_kind_of_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.pt").write_bytes(content)
    assert refusal(tmp_path / "a.pt") == "has an unknown format"


def test_an_empty_file_is_called_that(tmp_path: Path) -> None:
    (tmp_path / "a.pt").touch()
    assert refusal(tmp_path / "a.pt") == "is empty"


def test_a_link_is_not_followed(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "link.pt").symlink_to(whole)
    assert refusal(tmp_path / "link.pt").startswith("cannot be read: ")


def test_storage_order_and_old_archives_without_byteorder_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("old/data/0", b"0123456789abcdef")
        target.writestr("old/data.pkl", WHOLE)
    assert root_of(path) == root_of(archive(tmp_path, WHOLE))
