"""Declared data in the folders of a run: links, mount points, copies; nothing behind a link."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gate.data.declared import CopiedFile, FetchedData
from gate.errors import DataError
from gate.isolation.modes import Credentials, Isolation, IsolationMode, WriteGuard
from gate.settings.data import DataKind
from gate.system.files.files import LocalFiles
from gate.training.launch import run_folders
from gate.training.run_folders import links_of, mounts_of, place_data
from gate.training.runs import RunFolders

FILES = LocalFiles()
ACCOUNT = Credentials(uid=61001, gid=61001)
OPEN = Isolation(mode=IsolationMode.NONE, credentials=None, reason="")
LANDLOCKED = Isolation(
    mode=IsolationMode.UID, credentials=ACCOUNT, reason="", guard=WriteGuard.LANDLOCK
)
MOUNTED = Isolation(
    mode=IsolationMode.UID, credentials=ACCOUNT, reason="", guard=WriteGuard.MOUNT_NAMESPACE
)


@pytest.fixture
def folders(tmp_path: Path) -> RunFolders:
    made = run_folders(tmp_path / "run")
    (made.tree / "data").mkdir(parents=True)
    return made


@pytest.fixture
def mini(tmp_path: Path) -> FetchedData:
    folder = tmp_path / "srv" / "mini"
    folder.mkdir(parents=True)
    (folder / "x").write_text("1")
    return FetchedData(name="mini", kind=DataKind.PATH, origin="", source=folder)


@pytest.mark.parametrize("isolation", [OPEN, LANDLOCKED])
def test_a_link_leads_to_it_where_nothing_can_be_mounted(
    folders: RunFolders, mini: FetchedData, isolation: Isolation
) -> None:
    place_data(FILES, (mini,), folders, isolation)
    assert (folders.data / "mini" / "x").read_text() == "1"
    assert mounts_of((mini,), folders, isolation) == ()
    assert links_of((mini,), isolation) == str(mini.source)


def test_a_mount_point_is_empty_until_the_run_begins(
    folders: RunFolders, mini: FetchedData, tmp_path: Path
) -> None:
    file = FetchedData(
        name="d", kind=DataKind.DVC, origin="", place="data/x.csv", source=tmp_path / "srv/mini/x"
    )
    (folders.tree / "data/x.csv").write_text("what the commit has there")
    place_data(FILES, (mini, file), folders, MOUNTED)
    assert list((folders.data / "mini").iterdir()) == []
    assert (folders.tree / "data/x.csv").read_bytes() == b""
    pairs = [(one.source, one.target) for one in mounts_of((mini, file), folders, MOUNTED)]
    assert pairs == [
        (mini.source, folders.data / "mini"),
        (file.source, folders.tree / "data/x.csv"),
    ]
    assert links_of((mini, file), MOUNTED) == ""


def copied(tmp_path: Path, content: bytes = b"content") -> FetchedData:
    source = tmp_path / "object"
    source.write_bytes(content)
    digest = hashlib.sha256(b"content").hexdigest()
    copies = (CopiedFile(source=source, place="data/x.bin", sha256=digest, size_bytes=7),)
    return FetchedData(name="*.bin", kind=DataKind.LFS, origin="", copies=copies)


def test_a_copy_takes_the_place_of_its_pointer(folders: RunFolders, tmp_path: Path) -> None:
    (folders.tree / "data/x.bin").write_text("version https://git-lfs.github.com/spec/v1")
    place_data(FILES, (copied(tmp_path),), folders, OPEN)
    assert (folders.tree / "data/x.bin").read_bytes() == b"content"


def test_a_copy_of_other_bytes_is_an_error(folders: RunFolders, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the fetched content of data/x.bin changed") as caught:  # noqa: RUF043
        place_data(FILES, (copied(tmp_path, b"another"),), folders, OPEN)
    assert "fetch.cache" in caught.value.hint


@pytest.mark.parametrize("isolation", [OPEN, MOUNTED])
def test_a_link_of_the_commit_is_not_followed(
    folders: RunFolders, mini: FetchedData, tmp_path: Path, isolation: Isolation
) -> None:
    """As root it would lead anywhere: what lay there would be removed, or written over."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "train").write_text("kept")
    (folders.tree / "data").rmdir()
    (folders.tree / "data").symlink_to(outside)
    placed = FetchedData(
        name="data/train.dvc", kind=DataKind.DVC, origin="", place="data/train", source=mini.source
    )
    with pytest.raises(DataError, match="the commit has a link on the way to data/train"):
        place_data(FILES, (placed,), folders, isolation)
    assert (outside / "train").read_text() == "kept"
