"""Declared data in a run's folders: shown by mounts where the isolation can, else by links.

What has a path in the tree lies among files that a pull request wrote, so no link on the way to it
is followed: as root, one would lead anywhere.
"""

from __future__ import annotations

from pathlib import Path

from gate.data.declared import CopiedFile, FetchedData
from gate.errors import DataError, StorageError
from gate.isolation.modes import Isolation
from gate.isolation.process_request import ReadOnlyMount
from gate.system.files.port import Files
from gate.training.runs import RunFolders


def mounts_of(
    data: tuple[FetchedData, ...], folders: RunFolders, isolation: Isolation
) -> tuple[ReadOnlyMount, ...]:
    """What a run is shown at another path; none where the isolation cannot."""
    if not isolation.shows_mounts:
        return ()
    return tuple(
        ReadOnlyMount(source=one.source, target=_target(one, folders))
        for one in data
        if one.source is not None
    )


def links_of(data: tuple[FetchedData, ...], isolation: Isolation) -> str:
    """Where links of a run lead, for the harness: data that is read there is declared."""
    if isolation.shows_mounts:
        return ""
    return ":".join(str(one.source) for one in data if one.source is not None)


def place_data(
    files: Files, data: tuple[FetchedData, ...], folders: RunFolders, isolation: Isolation
) -> None:
    """Copy what is copied, and make a mount point or a link for all else.

    Raises `DataError` where a link of the commit is in the way, or a copy has other bytes.
    """
    files.fresh_folder(folders.data)
    for one in data:
        for copied in one.copies:
            _copy(files, one, copied, folders.tree)
        if one.source is None:
            continue
        target = _target(one, folders)
        _clear_way(files, one, target, folders)
        if not isolation.shows_mounts:
            files.link(target, one.source)
        elif files.is_folder(one.source):
            files.fresh_folder(target)
        else:
            files.write_new(target, b"")


def _target(one: FetchedData, folders: RunFolders) -> Path:
    return folders.tree / one.place if one.place else folders.data / one.name


def _copy(files: Files, one: FetchedData, copied: CopiedFile, tree: Path) -> None:
    target = tree / copied.place
    _refuse_links(files, one, target, tree)
    files.remove_tree(target)
    if files.copy_file(copied.source, target, max_bytes=copied.size_bytes) != copied.sha256:
        raise DataError(
            f"{one.name}: the fetched content of {copied.place} changed on disk",
            hint="Something else writes to the folder of fetched data (fetch.cache): empty it, "
            "and give the gate one that nothing else writes to.",
        )


def _clear_way(files: Files, one: FetchedData, target: Path, folders: RunFolders) -> None:
    """Take away what the commit has at the data's own path, such as a pointer."""
    if one.place:
        _refuse_links(files, one, target, folders.tree)
        files.remove_tree(target)


def _refuse_links(files: Files, one: FetchedData, target: Path, tree: Path) -> None:
    try:
        files.refuse_links(target, below=tree)
    except StorageError as error:
        raise DataError(
            f"{one.name}: the commit has a link on the way to {target.relative_to(tree)}",
            hint="Declared data is not put behind a link: remove the link from the commit.",
        ) from error
