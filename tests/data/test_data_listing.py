"""The listing of a data set: every file once, no link followed, nothing that did not hold still."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from data_folders import ODD_NAMES, coreutils_listing, folder_of

from gate.data.data_digests import listing_digest, listing_line
from gate.data.declared import ListedFile
from gate.data.hashing import BLOCK_BYTES, MAX_NAME_BYTES, Buffers, file_digest
from gate.data.listing import first_change, take_listing
from gate.errors import DataError
from gate.settings.data import Verify

FOREIGN_UID = 60900


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "mini", {b"a": b"1", b"b/c": b"22", b"b/d/e": b"333"})


def _full(source: Path) -> tuple[ListedFile, ...]:
    return take_listing(source, Verify.FULL, None).files


def test_files_come_in_the_order_of_their_names_bytes(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "mini", {b"a/b": b"", b"a.c": b"", b"a-d": b"", b"\xff": b""})
    assert [os.fsencode(file.name) for file in _full(source)] == [b"a-d", b"a.c", b"a/b", b"\xff"]


def test_digests_are_those_of_coreutils_whatever_the_names(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "mini", {name: name * 3 for name in ODD_NAMES})
    listed = coreutils_listing(source)
    assert b"".join(map(listing_line, _full(source))) == listed
    assert listing_digest(_full(source)) == hashlib.sha256(listed).hexdigest()


def test_a_file_by_itself_has_the_digest_of_its_bytes(data: Path) -> None:
    files = _full(data / "b" / "c")
    assert [(file.name, file.size_bytes) for file in files] == [("", 2)]
    assert listing_digest(files) == hashlib.sha256(b"22").hexdigest()


def test_a_large_file_and_many_small_ones_are_read_whole(tmp_path: Path) -> None:
    names = {b"many/%d" % number: b"%d" % number for number in range(300)}
    large = os.urandom(2 * BLOCK_BYTES + 17)
    found = {file.name: file.sha256 for file in _full(folder_of(tmp_path, names | {b"l": large}))}
    assert len(found) == 301
    assert found["l"] == hashlib.sha256(large).hexdigest()
    assert found["many/123"] == hashlib.sha256(b"123").hexdigest()


@pytest.mark.parametrize("pieces", [[(0, b"x")], [(5_000_000, b"y" * 9000)], []])
def test_holes_are_zeros(tmp_path: Path, pieces: list[tuple[int, bytes]]) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        for start, data in pieces:
            file.seek(start)
            file.write(data)
        file.truncate(9_000_000)
    (found,) = _full(path)
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: path.symlink_to("a"), "a link"),
        (lambda path: path.symlink_to("."), "a link"),
        (lambda path: path.symlink_to("/etc"), "a link"),
        (lambda path: path.symlink_to("../../outside"), "a link"),
        (_fifo, "a FIFO"),
        (_socket, "a socket"),
    ],
)
def test_what_is_neither_file_nor_folder_is_named(
    data: Path, make: Callable[[Path], None], kind: str
) -> None:
    make(data / "b" / "odd")
    with pytest.raises(DataError) as fault:
        take_listing(data, Verify.FULL, None)
    assert fault.value.message == (
        f"{data}/b/odd is {kind}; declared data holds files and folders only"
    )
    assert ("Name the real path" in fault.value.hint) is (kind == "a link")


def test_a_loop_of_links_is_a_link(data: Path) -> None:
    (data / "one").symlink_to("two")
    (data / "two").symlink_to("one")
    with pytest.raises(DataError, match="is a link; declared data holds files and folders only"):
        take_listing(data, Verify.FULL, None)


def test_a_path_through_a_loop_of_links_is_named(data: Path) -> None:
    (data / "loop").symlink_to("loop")
    with pytest.raises(DataError, match="mini/loop/x leads through a loop of links"):
        take_listing(data / "loop" / "x", Verify.FULL, None)


def test_a_link_in_the_place_of_the_whole_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(data)
    with pytest.raises(DataError, match="link is a link") as fault:
        take_listing(tmp_path / "link", Verify.FULL, None)
    assert fault.value.hint.startswith("Name the real path")


@pytest.mark.parametrize("name", ["missing", "a/below-a-file"])
def test_a_missing_path_is_named(data: Path, name: str) -> None:
    with pytest.raises(DataError) as fault:
        take_listing(data / name, Verify.FULL, None)
    assert fault.value.message == f"{data}/{name} does not exist"


def test_folders_without_a_file_are_no_data(tmp_path: Path) -> None:
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    with pytest.raises(DataError, match="empty holds no file"):
        take_listing(tmp_path / "empty", Verify.FULL, None)


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """Its remover needs no stack either; that of Python does."""
    folder = tmp_path / "deep"
    folder.mkdir()
    yield folder
    subprocess.run(["/bin/rm", "-rf", str(folder)], check=True)


def test_a_deep_tree_needs_no_stack_and_one_too_deep_is_named(deep: Path) -> None:
    # made step by step, as it is read: one path for all of it is too long for the system
    here = os.open(deep, os.O_RDONLY)
    for _ in range(MAX_NAME_BYTES // 2 - 1):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    assert len(_full(deep)) == 1
    os.mkdir("more", dir_fd=here)
    below = os.open("more", os.O_RDONLY, dir_fd=here)
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=below))
    os.close(below)
    os.close(here)
    with pytest.raises(DataError, match="has a name of more than 4,000 bytes"):
        take_listing(deep, Verify.FULL, None)


class WritingBuffers(Buffers):
    """Changes the file after it was opened, before its first byte is read."""

    def __init__(self, change: Callable[[], object]) -> None:
        self._change = change
        self._block = memoryview(bytearray(BLOCK_BYTES))

    @property
    def block(self) -> memoryview:  # type: ignore[override]  # changes when it is asked for
        self._change()
        return self._block


@pytest.mark.parametrize("text", ["2", "333", "2222222", "xx"])
def test_a_file_that_changes_while_it_is_read_is_named(data: Path, text: str) -> None:
    path = data / "b" / "c"
    (listed,) = _full(path)
    change = WritingBuffers(lambda: path.write_text(text))
    with pytest.raises(DataError) as fault:
        file_digest(None, str(path), listed, path, change)
    assert fault.value.message == f"{path} changed while it was read"
    assert fault.value.hint == (
        "Let nothing write to the data while the gate runs, then run it again."
    )


def test_a_folder_swapped_for_a_link_leads_nowhere(data: Path, tmp_path: Path) -> None:
    listing = take_listing(data, Verify.FULL, None)
    shutil.move(data / "b", tmp_path / "elsewhere")
    (data / "b").symlink_to(tmp_path / "elsewhere")
    assert first_change(data, listing) == "b"


def test_what_others_may_not_read_is_listed_by_its_bits(data: Path) -> None:
    assert take_listing(data, Verify.FULL, None).unreadable == ()
    (data / "a").chmod(0o640)
    (data / "b").chmod(0o751)
    (data / "b" / "d").chmod(0o754)
    assert take_listing(data, Verify.FULL, None).unreadable == ("a", "b/", "b/d/")
    data.chmod(0o700)
    assert take_listing(data, Verify.FULL, None).unreadable[0] == "./"


def test_the_first_five_that_others_may_not_read(tmp_path: Path) -> None:
    folder_of(tmp_path, {b"%d" % number: b"" for number in range(9)})
    for number in range(1, 9):
        (tmp_path / str(number)).chmod(0o600)
    tmp_path.chmod(0o755)
    assert take_listing(tmp_path, Verify.FULL, None).unreadable == ("1", "2", "3", "4", "5")


def test_a_file_by_itself_that_others_may_not_read(data: Path) -> None:
    (data / "a").chmod(0o600)
    assert take_listing(data / "a", Verify.FULL, None).unreadable == ("a",)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Below `/tmp`: pytest's own folders are closed to other accounts."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another account")
@pytest.mark.parametrize(("closed", "mode"), [("a", 0o600), ("b/", 0o711), ("b/d/", 0o744)])
def test_no_permission_is_told_with_what_to_do(
    open_folder: Path, data: Path, closed: str, mode: int
) -> None:
    source = open_folder / "mini"
    shutil.copytree(data, source)
    (source / closed).chmod(mode)
    program = (
        "import os\n"
        "from pathlib import Path\n"
        "from gate.data.listing import Verify, take_listing\n"
        "from gate.errors import DataError\n"
        f"os.setuid({FOREIGN_UID})\n"
        f"try: take_listing(Path({str(source)!r}), Verify.FULL, None)\n"
        "except DataError as fault: print(fault)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    assert told.startswith(f"{source / closed}")
    assert "cannot be read: no permission\nhint: Let the account that runs the gate read it" in told


# what is looked at again after the trainings


def test_nothing_changed_is_the_empty_text(data: Path) -> None:
    assert first_change(data, take_listing(data, Verify.FULL, None)) == ""
    assert first_change(data / "a", take_listing(data / "a", Verify.FULL, None)) == ""


@pytest.mark.parametrize(
    ("change", "first"),
    [
        (lambda data: (data / "b" / "c").write_text("2x"), "b/c"),
        (lambda data: (data / "b" / "c").write_text("2x3"), "b/c"),
        (lambda data: (data / "a").unlink(), "a"),
        (lambda data: (data / "b" / "new").touch(), "b/new"),
        (lambda data: shutil.rmtree(data / "b"), "b/c"),
        (shutil.rmtree, "mini"),
        (lambda data: (data / "A\n").touch(), "A\\x0a"),
        (lambda data: (data / "link").symlink_to("a"), "link"),
    ],
)
def test_the_first_change_is_named(
    data: Path, change: Callable[[Path], object], first: str
) -> None:
    listing = take_listing(data, Verify.FULL, None)
    change(data)
    assert first_change(data, listing) == first


def test_a_change_that_puts_the_times_back_is_seen(data: Path) -> None:
    listing = take_listing(data, Verify.FULL, None)
    before = (data / "a").stat()
    # until the disk's clock has ticked
    while (data / "a").stat().st_ctime_ns == before.st_ctime_ns:
        (data / "a").write_text("9")
        os.utime(data / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert first_change(data, listing) == "a"


def test_a_file_that_was_only_touched_has_not_changed(data: Path) -> None:
    listing = take_listing(data, Verify.FULL, None)
    (data / "a").touch()
    shutil.copytree(data, data.with_name("copy"))
    shutil.rmtree(data)
    data.with_name("copy").rename(data)
    assert first_change(data, listing) == ""


def test_a_file_by_itself_that_changed_has_its_own_name(data: Path) -> None:
    listing = take_listing(data / "a", Verify.FULL, None)
    (data / "a").write_text("2")
    assert first_change(data / "a", listing) == "a"
    (data / "a").unlink()
    (data / "a").mkdir()
    assert first_change(data / "a", listing) == "a"


# samples


def test_a_sample_has_all_names_and_reads_64_files_of_more(tmp_path: Path) -> None:
    folder_of(tmp_path, {b"%d" % number: b"x" for number in range(100)})
    listing = take_listing(tmp_path, Verify.SAMPLE, None)
    read = [file.name for file in listing.files if file.sha256]
    assert (len(listing.files), len(read)) == (100, 64)
    again = take_listing(tmp_path, Verify.SAMPLE, None)
    assert [file.name for file in again.files if file.sha256] == read
    folder_of(tmp_path, {b"new": b"x"})
    more = take_listing(tmp_path, Verify.SAMPLE, None)
    assert len(set(read) - {file.name for file in more.files if file.sha256}) <= 1


def test_a_touched_file_that_was_never_read_counts_as_changed(tmp_path: Path) -> None:
    folder_of(tmp_path, {b"%d" % number: b"x" for number in range(100)})
    listing = take_listing(tmp_path, Verify.SAMPLE, None)
    unread = next(file.name for file in listing.files if not file.sha256)
    os.utime(tmp_path / unread, ns=(2, 2))
    assert first_change(tmp_path, listing) == unread


# sizes


@pytest.mark.slow
def test_a_hundred_thousand_small_files(tmp_path: Path) -> None:
    for folder in range(100):
        (tmp_path / str(folder)).mkdir()
        for number in range(1000):
            (tmp_path / str(folder) / str(number)).write_bytes(b"%d" % number)
    listed = coreutils_listing(tmp_path)
    listing = take_listing(tmp_path, Verify.FULL, None)
    assert listing_digest(listing.files) == hashlib.sha256(listed).hexdigest()
    assert first_change(tmp_path, listing) == ""


@pytest.mark.slow
def test_twenty_gigabytes_of_hole(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    size_bytes = 20 * 10**9
    with path.open("wb") as file:
        file.seek(size_bytes - 1)
        file.write(b"x")
    zeros = bytes(10**6)
    expected = hashlib.sha256()
    for _ in range(size_bytes // len(zeros) - 1):
        expected.update(zeros)
    expected.update(zeros[1:] + b"x")
    (found,) = _full(path)
    assert (found.size_bytes, found.sha256) == (size_bytes, expected.hexdigest())
