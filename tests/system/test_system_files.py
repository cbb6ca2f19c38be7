"""Files: hostile things are refused by name, and what goes wrong loses nothing."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import StorageError
from gate.system.files.files import LocalFiles
from gate.system.files.regular_files import CappedReader, storage_fault, storage_faults
from gate.system.files.trees import is_private, make_named_folder

OTHER = 60900


Python = Callable[..., subprocess.CompletedProcess[bytes]]


def names(folder: Path | str) -> list[str]:
    return sorted(entry.name for entry in Path(folder).iterdir())


def refused(files: LocalFiles, path: Path) -> str:
    with pytest.raises(StorageError) as caught:
        files.read_bytes(path, max_bytes=100)
    return caught.value.message


def test_reads_what_was_written(files: LocalFiles, tmp_path: Path) -> None:
    files.write_bytes(tmp_path / "new" / "folder" / "file", b"content")
    assert files.read_bytes(tmp_path / "new" / "folder" / "file", max_bytes=7) == b"content"


def test_a_missing_file_is_named(files: LocalFiles, tmp_path: Path) -> None:
    path = tmp_path / "missing"
    assert refused(files, path) == f"reading {path} failed: No such file or directory"


def test_a_fifo_does_not_block(files: LocalFiles, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert refused(files, tmp_path / "fifo").endswith("fifo is a FIFO, not a regular file")


def test_a_link_is_not_followed(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s")
    (tmp_path / "link").symlink_to("secret")
    assert refused(files, tmp_path / "link").endswith("link is a link, not a regular file")


def test_a_folder_a_device_and_a_socket_are_no_files(files: LocalFiles, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert refused(files, tmp_path / "s").endswith("is a socket, not a regular file")
    assert refused(files, tmp_path).endswith("is a folder, not a regular file")
    assert refused(files, Path("/dev/zero")) == "/dev/zero is a device, not a regular file"


def test_a_file_above_the_limit_is_refused(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 101)
    assert refused(files, tmp_path / "big").endswith("big is larger than 100 bytes")


def test_a_file_that_grows_while_it_is_read_is_refused(files: LocalFiles, tmp_path: Path) -> None:
    path = tmp_path / "growing"
    path.write_bytes(b"x" * 100)
    with files.open_binary(path, max_bytes=100) as stream:
        path.write_bytes(b"x" * 200)
        with pytest.raises(StorageError, match="growing is larger than 100 bytes"):
            stream.read()


def test_an_open_file_can_be_read_in_any_order(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with files.open_binary(tmp_path / "file", max_bytes=10) as stream:
        stream.seek(-3, os.SEEK_END)
        assert stream.read() == b"789"
        stream.seek(2)
        assert stream.read(3) == b"234"


@pytest.mark.usefixtures("root")
def test_a_link_of_another_account_on_the_way_is_refused(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    assert files.read_bytes(tmp_path / "link" / "file", max_bytes=9) == b"x"
    os.lchown(tmp_path / "link", OTHER, OTHER)
    assert refused(files, tmp_path / "link" / "file").endswith("a link of another account")


def test_a_file_that_turns_into_a_fifo_is_refused(python: Python, tmp_path: Path) -> None:
    """Between the look and the opening: played by a look that always sees a regular file."""
    program = (
        "import os, pathlib, sys\n"
        "from gate.system.files.files import LocalFiles\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "path.write_bytes(b'')\n"
        "seen = os.lstat(path)\n"
        "path.unlink(); os.mkfifo(path)\n"
        "real = os.lstat\n"
        "os.lstat = lambda p: seen if p == path else real(p)\n"
        "LocalFiles().read_bytes(path, max_bytes=9)\n"
    )
    done = python("-c", program, str(tmp_path / "f"))
    assert b"f is a FIFO, not a regular file" in done.stderr


def test_exists_tells_a_dangling_link_from_nothing(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    assert files.exists(tmp_path / "dangling")
    assert not files.exists(tmp_path / "nowhere")
    assert not files.exists(tmp_path / "dangling" / "below")


def test_exists_does_not_call_the_unknown_absent(files: LocalFiles, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="File name too long"):
        files.exists(tmp_path / ("x" * 300))


def test_names_are_sorted_and_limited(files: LocalFiles, tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).touch()
    assert files.list_names(tmp_path, max_names=3) == ("a", "b", "c")
    assert files.list_names(tmp_path / "none", max_names=3) == ()
    with pytest.raises(StorageError, match="has more than 2 entries"):
        files.list_names(tmp_path, max_names=2)


def test_names_behind_a_link_are_not_listed(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(StorageError, match=r"listing .*link failed: Not a directory"):
        files.list_names(tmp_path / "link", max_names=100)


def test_writing_replaces_a_link_and_not_its_target(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    files.write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "target").read_bytes() == b"old"
    assert not (tmp_path / "link").is_symlink()


def test_a_written_file_has_the_mode_asked_for(files: LocalFiles, tmp_path: Path) -> None:
    files.write_bytes(tmp_path / "open", b"")
    files.write_bytes(tmp_path / "key", b"", mode=0o600)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("open", "key")]
    assert modes == [0o644, 0o600]


def test_writing_to_a_folder_leaves_no_temporary_file(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match=r"writing .*folder failed: Is a directory"):
        files.write_bytes(tmp_path / "folder", b"x")
    assert names(tmp_path) == ["folder"]


def test_a_full_disk_keeps_the_old_content(files: LocalFiles, small_disk: Path) -> None:
    files.write_bytes(small_disk / "verdict", b"old")
    with pytest.raises(StorageError) as caught:
        files.write_bytes(small_disk / "verdict", b"x" * 200_000)
    assert caught.value.message == f"disk full while writing {small_disk}/verdict"
    assert caught.value.hint.startswith("Free some space there")
    assert names(small_disk) == ["verdict"]
    assert (small_disk / "verdict").read_bytes() == b"old"


def test_a_copy_to_a_full_disk_leaves_nothing(
    files: LocalFiles, small_disk: Path, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "big").write_bytes(b"x" * 200_000)
    with pytest.raises(StorageError, match=r"disk full while copying .*code"):
        files.copy_tree(tmp_path / "code", small_disk)
    assert names(small_disk) == []


def test_a_file_of_holes_does_not_fill_the_disk(
    files: LocalFiles, small_disk: Path, tmp_path: Path
) -> None:
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(64 * 1024**3)
    told = (
        r"disk full while writing .*copy: the file has 68,719,476,736 bytes, 6\d,\d{3} are free\n"
    )
    with pytest.raises(StorageError, match=told):
        files.copy_file(tmp_path / "holes", small_disk / "copy", max_bytes=64 * 1024**3)
    assert names(small_disk) == []


def test_a_size_limit_of_the_account_is_explained(python: Python, tmp_path: Path) -> None:
    program = (
        "import pathlib, resource, sys\n"
        "from gate.system.files.files import LocalFiles\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "LocalFiles().write_bytes(pathlib.Path(sys.argv[1]), b'x' * 2000)\n"
    )
    done = python("-c", program, str(tmp_path / "f"))
    assert b"f failed: File too large\nhint: Raise the limit (ulimit -f)" in done.stderr
    assert names(tmp_path) == []


def test_a_copied_file_must_be_new(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    files.copy_file(tmp_path / "a", tmp_path / "b", max_bytes=1)
    assert (tmp_path / "b").read_bytes() == b"a"
    with pytest.raises(StorageError, match=r"writing .*b failed: File exists"):
        files.copy_file(tmp_path / "a", tmp_path / "b", max_bytes=1)


def test_a_fault_without_a_number_still_has_a_hint() -> None:
    fault = storage_fault(OSError("odd"), "reading", Path("x"))
    assert str(fault) == ("reading x failed: odd\nhint: Check the path and the disk that it is on.")


def test_a_name_cannot_speak_to_the_terminal() -> None:
    with pytest.raises(StorageError) as caught, storage_faults("reading", Path("a\x1b[2Jb\n::x")):
        raise OSError(errno.EACCES, "Permission denied")
    assert caught.value.message == "reading ab\\n: :x failed: Permission denied"


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_the_last_content_written_is_read(first: bytes, second: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        LocalFiles().write_bytes(path, first)
        LocalFiles().write_bytes(path, second)
        assert LocalFiles().read_bytes(path, max_bytes=200) == second
        assert names(folder) == ["file"]


def test_open_files_do_not_leak(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 101)
    before = len(names("/proc/self/fd"))
    for _ in range(50):
        refused(files, tmp_path / "big")
    assert len(names("/proc/self/fd")) == before


def test_what_is_added_goes_to_the_end(files: LocalFiles, tmp_path: Path) -> None:
    files.append_bytes(tmp_path / "summary", b"one\n")
    files.append_bytes(tmp_path / "summary", b"two\n")
    assert (tmp_path / "summary").read_bytes() == b"one\ntwo\n"


def test_a_new_file_comes_with_its_folders_and_never_takes_a_place(
    files: LocalFiles, tmp_path: Path
) -> None:
    files.write_new(tmp_path / "a" / "b", b"mine")
    (tmp_path / "link").symlink_to("victim")
    for name in ("a/b", "a", "link"):
        with pytest.raises(StorageError, match=r"writing .* failed: File exists"):
            files.write_new(tmp_path / name, b"other")
    with pytest.raises(StorageError, match=r"writing .*c failed"):
        files.write_new(tmp_path / "a" / "b" / "c", b"below a file")
    assert (tmp_path / "a" / "b").read_bytes() == b"mine"
    assert not (tmp_path / "victim").exists()


def test_nothing_is_added_through_a_link_or_to_a_device(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("victim")
    with pytest.raises(StorageError, match=r"appending to .*link failed: Too many levels"):
        files.append_bytes(tmp_path / "link", b"x")
    with pytest.raises(StorageError, match="/dev/null is a device, not a regular file"):
        files.append_bytes(Path("/dev/null"), b"x")
    assert not (tmp_path / "victim").exists()


def test_adding_to_a_fifo_that_nobody_reads_does_not_block(
    files: LocalFiles, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(StorageError, match=r"appending to .*fifo failed: No such device"):
        files.append_bytes(tmp_path / "fifo", b"x")


def test_a_replacement_that_fails_half_way_never_was(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "package").write_bytes(b"old")

    def replace() -> None:
        with files.replacing(tmp_path / "package") as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        replace()
    assert names(tmp_path) == ["package"]
    assert (tmp_path / "package").read_bytes() == b"old"


def test_the_owner_of_a_link_is_its_own(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert files.owner(tmp_path / "link") == (os.geteuid(), os.getegid())
    with pytest.raises(StorageError, match=r"looking at .*nowhere failed"):
        files.owner(tmp_path / "nowhere")


def test_closing_twice_does_not_close_another_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    raw = CappedReader(os.open(tmp_path / "file", os.O_RDONLY), tmp_path / "file", 9)
    raw.close()
    with (tmp_path / "file").open() as other:
        raw.close()
        assert other.read() == ""


def test_a_named_folder_is_made_and_private_where_no_other_may_write(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "above" / "own"
    folder.parent.mkdir()
    have = partial(make_named_folder, mode=0o755, is_ours=lambda names: names == {"kept"})
    have(folder)
    (folder / "kept").touch()
    have(folder)
    assert is_private(folder)
    for place, mode in ((folder, 0o775), (folder, 0o777), (folder.parent, 0o777)):
        place.chmod(mode)
        assert not is_private(folder)
        place.chmod(0o755)
    # as /tmp is: others may write there, and rename nothing of mine
    folder.parent.chmod(0o1777)
    assert is_private(folder)
    (tmp_path / "link").symlink_to(folder)
    assert not is_private(tmp_path / "link")
    (folder / "other").touch()
    with pytest.raises(StorageError, match="contains other files, such as kept"):
        have(folder)
