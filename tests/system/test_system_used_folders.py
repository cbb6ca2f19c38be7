"""Folders of runs that ended: opened to a reader's group, and set aside until the call ends."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gate.system.files import trees
from gate.system.files.files import LocalFiles

FILES = LocalFiles()
GROUP = 60900
DEEP = 3000


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """What a run left: closed and open files, a closed folder, a link that leads out."""
    folder = tmp_path / "out"
    (folder / "closed").mkdir(parents=True)
    for name in ("closed/secret", "plain", "private", "shut"):
        (folder / name).write_text(name)
    (tmp_path / "elsewhere").write_text("not a run's")
    (tmp_path / "elsewhere").chmod(0o600)
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "fifo", 0o600)
    modes = {"closed/secret": 0o4600, "closed": 0o700, "plain": 0o644, "private": 0o600, "shut": 0}
    for name, bits in modes.items():
        (folder / name).chmod(bits)
    folder.chmod(0o700)
    return folder


@pytest.mark.usefixtures("root")
def test_a_group_reads_what_the_owner_reads_and_changes_nothing(out: Path, tmp_path: Path) -> None:
    FILES.let_read(out, gid=GROUP)
    assert mode(out) == mode(out / "closed") == 0o750
    assert mode(out / "closed" / "secret") == mode(out / "private") == 0o640
    # everybody may read it already, nobody may, and not a run's own
    assert (mode(out / "plain"), mode(out / "shut")) == (0o644, 0)
    assert mode(tmp_path / "elsewhere") == 0o600
    assert (out / "plain").stat().st_gid != GROUP
    assert (tmp_path / "elsewhere").stat().st_gid != GROUP
    assert {path.stat().st_gid for path in (out, out / "closed", out / "private")} == {GROUP}


@pytest.mark.usefixtures("root")
def test_a_hard_link_to_somebody_elses_file_opens_nothing(out: Path, tmp_path: Path) -> None:
    FILES.give_to(out, 60901, 60901)
    os.link(tmp_path / "elsewhere", out / "hard")
    FILES.let_read(out, gid=GROUP)
    assert mode(tmp_path / "elsewhere") == 0o600
    assert (tmp_path / "elsewhere").stat().st_gid != GROUP
    assert (out / "private").stat().st_uid == 60901


def test_a_folder_is_set_aside_where_nobody_else_can_enter(out: Path, tmp_path: Path) -> None:
    (out / "large").write_bytes(bytes(trees.LARGE_BYTES + 1))
    FILES.set_aside(out, tmp_path / "used" / "0")
    assert not out.exists()
    assert mode(tmp_path / "used") == 0o700
    assert (tmp_path / "used" / "0" / "plain").read_text() == "plain"
    assert not (tmp_path / "used" / "0" / "large").exists()
    FILES.fresh_folder(out)
    FILES.set_aside(out, tmp_path / "used" / "1")
    assert len(list((tmp_path / "used").iterdir())) == 2


@pytest.mark.parametrize("name", ["MAX_ASIDE_BYTES", "MAX_ASIDE_ENTRIES"])
def test_a_folder_of_too_much_is_removed(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(trees, name, 3)
    FILES.set_aside(out, tmp_path / "used" / "0")
    assert not out.exists()
    assert not (tmp_path / "used").exists()


def test_what_cannot_be_counted_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    here = os.open(out, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("folder", dir_fd=here)
        below = os.open("folder", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    FILES.set_aside(out, tmp_path / "used" / "0")
    assert not out.exists()


def test_a_link_in_the_place_of_a_folder_is_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    FILES.set_aside(tmp_path / "out", tmp_path / "used" / "0")
    assert (tmp_path / "elsewhere").is_dir()
    assert not (tmp_path / "out").is_symlink()


def test_nothing_to_set_aside_is_fine(tmp_path: Path) -> None:
    FILES.set_aside(tmp_path / "out", tmp_path / "used" / "0")
    assert list(tmp_path.iterdir()) == []
