"""Whole folders: any depth, any permission, and never through a link."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gate.errors import StorageError
from gate.system.files import trees
from gate.system.files.files import LocalFiles
from gate.system.files.trees import keep_only

OTHER = 60900
Python = Callable[..., subprocess.CompletedProcess[bytes]]


def names(folder: Path | str) -> list[str]:
    return sorted(entry.name for entry in Path(folder).iterdir())


def test_a_fresh_folder_is_empty_and_has_its_mode(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "run" / "old").mkdir(parents=True)
    files.fresh_folder(tmp_path / "run", mode=0o700)
    assert names(tmp_path / "run") == []
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


def test_removing_a_link_to_outside_leaves_the_outside(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    (tmp_path / "run" / "deep").mkdir(parents=True)
    (tmp_path / "run" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "run" / "deep" / "link").symlink_to("../../outside")
    files.remove_tree(tmp_path / "run")
    assert names(tmp_path) == ["outside"]
    assert names(tmp_path / "outside") == ["kept"]


def test_removing_takes_files_links_and_nothing(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/")
    for name in ("file", "link", "nothing"):
        files.remove_tree(tmp_path / name)
    assert names(tmp_path) == []


@pytest.mark.parametrize("appears", [True, False])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_folder_that_is_still_written_into_is_removed(
    files: LocalFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, *, appears: bool
) -> None:
    """Between the listing and the removal a file comes, or one is renamed as those are."""
    (tmp_path / "run" / "deep").mkdir(parents=True)
    (tmp_path / "run" / "old").touch()
    listing, left = os.listdir, [*range(times)]

    def listed(folder: int) -> list[str]:
        found = listing(folder)
        if left and found:
            number = left.pop()
            if appears:
                (tmp_path / "run" / f"new-{number}").touch()
            else:
                # as a file that appears whole: it had another name while it was written
                (tmp_path / "run" / found[-1]).rename(tmp_path / "run" / f"renamed-{number}")
        return found

    monkeypatch.setattr(os, "listdir", listed)
    files.remove_tree(tmp_path / "run")
    assert names(tmp_path) == []
    assert not left


def test_removing_copes_with_any_depth(files: LocalFiles, tmp_path: Path) -> None:
    """5,000 levels: more than Python's stack, than open files, and than a path may hold."""
    top = tmp_path / "deep"
    top.mkdir()
    descriptor = os.open(top, os.O_RDONLY)
    for _ in range(5000):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    files.remove_tree(top)
    assert names(tmp_path) == []


@pytest.mark.usefixtures("root")
def test_removing_copes_with_closed_folders_as_an_ordinary_account(
    python: Python, open_folder_for_all: Path
) -> None:
    """The test's own account is root, which no permission stops; so another one removes."""
    closed = open_folder_for_all / "top" / "closed"
    (closed / "inner").mkdir(parents=True)
    for folder in (closed / "inner", closed, open_folder_for_all / "top"):
        os.chown(folder, OTHER, OTHER)
        folder.chmod(0)
    os.chown(open_folder_for_all, OTHER, OTHER)
    program = (
        "import os, pathlib, sys\n"
        "from gate.system.files.files import LocalFiles\n"
        "os.setuid(int(sys.argv[2]))\n"
        "LocalFiles().remove_tree(pathlib.Path(sys.argv[1]))\n"
    )
    python("-c", program, str(open_folder_for_all / "top"), str(OTHER)).check_returncode()
    assert names(open_folder_for_all) == []


def test_a_copy_keeps_content_links_permissions_and_times(
    files: LocalFiles, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "sub" / "run.sh").write_bytes(b"#!")
    (source / "sub" / "run.sh").chmod(0o4755)
    (source / "sub" / "link").symlink_to("/etc/shadow")
    for path in (source / "sub" / "run.sh", source / "sub"):
        os.utime(path, (1000, 1000))
    files.copy_tree(source, tmp_path / "copy")
    copied = (tmp_path / "copy" / "sub" / "run.sh").stat()
    assert (stat.S_IMODE(copied.st_mode), copied.st_mtime) == (0o755, 1000)
    assert (tmp_path / "copy" / "sub").stat().st_mtime == 1000
    assert (tmp_path / "copy" / "sub" / "link").readlink() == Path("/etc/shadow")
    assert names(tmp_path / "copy" / "sub") == ["empty", "link", "run.sh"]


def test_a_fifo_is_not_copied(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    os.mkfifo(tmp_path / "source" / "fifo")
    with pytest.raises(StorageError, match="fifo is neither file, folder nor link"):
        files.copy_tree(tmp_path / "source", tmp_path / "copy")


def test_a_copy_does_not_write_over_or_through_anything(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(b"new")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "file").symlink_to("../victim")
    with pytest.raises(StorageError, match=r"copying .* failed: File exists"):
        files.copy_tree(tmp_path / "source", tmp_path / "copy")
    assert not (tmp_path / "victim").exists()


@pytest.mark.usefixtures("root")
def test_giving_away_changes_links_and_not_their_targets(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "outside").touch()
    (tmp_path / "run" / "sub").mkdir(parents=True)
    (tmp_path / "run" / "sub" / "link").symlink_to("../../outside")
    files.give_to(tmp_path / "run", OTHER, OTHER)
    given = [tmp_path / "run", tmp_path / "run" / "sub", tmp_path / "run" / "sub" / "link"]
    assert {(os.lstat(path).st_uid, os.lstat(path).st_gid) for path in given} == {(OTHER, OTHER)}
    assert (tmp_path / "outside").stat().st_uid == 0


def test_giving_away_what_is_a_link_is_refused(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(StorageError, match=r"giving away .*link failed: Not a directory"):
        files.give_to(tmp_path / "link", OTHER, OTHER)


def test_what_lies_too_deep_for_a_path_is_left_out_when_a_group_may_read(tmp_path: Path) -> None:
    """Whoever reads by a path cannot come there either, and a run may leave any depth."""
    (tmp_path / "near").write_text("near")
    (tmp_path / "near").chmod(0o600)
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        for _ in range(60):
            Path("d" * 100).mkdir()
            os.chdir("d" * 100)
    finally:
        os.chdir(before)
    trees.let_group_read(tmp_path, os.getgid())
    assert stat.S_IMODE((tmp_path / "near").stat().st_mode) == 0o640
    trees.remove_tree(tmp_path / ("d" * 100))


def test_only_what_is_kept_stays_and_no_folder_without_a_file(tmp_path: Path) -> None:
    for name in ("a.py", "lib/b.py", "lib/deep/c.txt", "docs/page.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "lib/link").symlink_to("../docs/page.md")
    (tmp_path / "empty").mkdir()
    keep_only(tmp_path, lambda path: path in {"a.py", "lib/link"})
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    assert left == ["a.py", "lib", "lib/link"]
