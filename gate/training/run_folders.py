"""Puts files beside each run: the harness, and declared data by mounts, links or copies.

Data with a path in the tree is placed among files that a pull request wrote. So no link on the way
to it is followed: the gate may run as root, and a link could lead it anywhere.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import cache_from_source
from pathlib import Path, PurePath

from gate.data.declared import CopiedFile, FetchedData
from gate.errors import DataError, RunError, StorageError
from gate.isolation.cluster_settings import ON_NODE, ClusterSettings
from gate.isolation.modes import Isolation
from gate.isolation.process_request import ReadOnlyMount
from gate.system.files.port import Files
from gate.training.runs import SECOND_STRICT, CarriedCheckpoint, PlannedRun, RunFolders

HARNESS = Path(__file__).resolve().parent.parent / "harness"
HARNESS_PACKAGE = "repro_gate_harness"
HARNESS_FILE_LIMIT = 1024 * 1024
MAX_HARNESS_FILES = 100
START_UP = "startup"
# a separate program that torch's launcher starts, see `gate/pipelines/real_all_reduce.py`
ALL_REDUCE_PROGRAM = HARNESS / START_UP / "all_reduce.py"
BUNDLE = "modules.bundle"
# the start-up files are outside the bundle, and byte-code is added separately
LEFT_BEHIND = {START_UP, "__pycache__"}
# every Python since 3.4 reads this form, so the training's Python may differ from the gate's
MARSHAL_VERSION = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class HarnessCopy:
    """The names and contents of the harness's files, including byte-code.

    It is kept in memory, so no run can change it for the next one, under any account.
    """

    contents: tuple[tuple[PurePath, bytes], ...]

    def put(self, files: Files, target: Path) -> None:
        """Empty a folder and write the harness into it."""
        files.fresh_folder(target)
        for name, data in self.contents:
            files.write_new(target / name, data)


# keyed by the `Files` through which it was read
_made: dict[object, HarnessCopy] = {}


def made_harness(files: Files) -> HarnessCopy:
    """Return the harness with its byte-code, and nothing else of the gate; read once a process.

    Every process of the training starts the harness, and none may write byte-code in its folder. So
    the byte-code is included.
    """
    if files not in _made:
        start_up, package = HARNESS / START_UP, PurePath(HARNESS_PACKAGE)
        site = "sitecustomize.py"
        _made[files] = HarnessCopy(
            contents=(
                *_with_byte_code(files, start_up / site, PurePath(site)),
                *_with_byte_code(files, start_up / "package.py", package / "__init__.py"),
                (package / BUNDLE, _bundle(files, HARNESS)),
            )
        )
    return _made[files]


def install_harness(files: Files, target: Path) -> None:
    """Write the harness into a folder, as each run has it."""
    made_harness(files).put(files, target)


def _bundle(files: Files, package: Path) -> bytes:
    """Return all modules below a folder as one file for `harness/startup/package.py` to read."""
    modules = dict(_modules(files, package, PurePath()))
    # the file that reads the bundle takes the place of this module
    for own in _names(PurePath("__init__.py")):
        modules.pop(own.as_posix(), None)
    return marshal.dumps(modules, MARSHAL_VERSION)


def _modules(files: Files, top: Path, within: PurePath) -> Iterator[tuple[str, bytes]]:
    """Yield the modules of a package and its subpackages; follow no link."""
    for name in files.list_names(top / within, max_names=MAX_HARNESS_FILES):
        path = within / name
        if name.endswith(".py"):
            for module, data in _with_byte_code(files, top / path, path):
                yield module.as_posix(), data
        # `is_folder` is False for a link to a folder, so nothing from elsewhere is included
        elif name not in LEFT_BEHIND and files.is_folder(top / path):
            yield from _modules(files, top, path)


def _with_byte_code(
    files: Files, source: Path, name: PurePath
) -> tuple[tuple[PurePath, bytes], ...]:
    # read first: this fails for a link, before anything is compiled
    text = files.read_bytes(source, max_bytes=HARNESS_FILE_LIMIT)
    return tuple(zip(_names(name), (text, files.byte_code(source)), strict=True))


def _names(module: PurePath) -> tuple[PurePath, PurePath]:
    """Return the name of a module's source, and of the byte-code that Python looks for."""
    return module, module.parent / "__pycache__" / PurePath(cache_from_source(module.name)).name


def mounts_of(
    data: tuple[FetchedData, ...], folders: RunFolders, isolation: Isolation
) -> tuple[ReadOnlyMount, ...]:
    """Return the data that a run sees at another path; none if the isolation cannot show it."""
    if not isolation.shows_mounts:
        return ()
    return tuple(
        ReadOnlyMount(source=fetched.source, target=_target(fetched, folders))
        for fetched in data
        if fetched.source is not None
    )


def links_of(data: tuple[FetchedData, ...], isolation: Isolation) -> str:
    """Return the targets of a run's links to data, so that the harness counts them as declared.

    Empty if the isolation uses mounts instead.
    """
    if isolation.shows_mounts:
        return ""
    return ":".join(str(fetched.source) for fetched in data if fetched.source is not None)


def place_data(
    files: Files, data: tuple[FetchedData, ...], folders: RunFolders, isolation: Isolation
) -> None:
    """Copy the data that each run gets as a copy; make a mount point or a link for the rest.

    Raises `DataError` if a link of the commit is in the way, or if a copy has different bytes.
    """
    files.fresh_folder(folders.data)
    for fetched in data:
        for copied in fetched.copies:
            _copy(files, fetched, copied, folders.tree)
        if fetched.source is None:
            continue
        target = _target(fetched, folders)
        _clear_way(files, fetched, target, folders)
        if not isolation.shows_mounts:
            files.link(target, fetched.source)
        elif files.is_folder(fetched.source):
            files.fresh_folder(target)
        else:
            files.write_new(target, b"")


def _target(fetched: FetchedData, folders: RunFolders) -> Path:
    return folders.tree / fetched.place if fetched.place else folders.data / fetched.name


def _copy(files: Files, fetched: FetchedData, copied: CopiedFile, tree: Path) -> None:
    target = tree / copied.place
    _refuse_links(files, fetched, target, tree)
    files.remove_tree(target)
    if files.copy_file(copied.source, target, max_bytes=copied.size_bytes) != copied.sha256:
        raise DataError(
            f"{fetched.name}: the fetched content of {copied.place} changed on disk",
            hint="Something else writes to the folder of fetched data (fetch.cache): empty it, "
            "and give the gate one that nothing else writes to.",
        )


def _clear_way(files: Files, fetched: FetchedData, target: Path, folders: RunFolders) -> None:
    """Remove what the commit has at the data's own path, such as a pointer."""
    if fetched.place:
        _refuse_links(files, fetched, target, folders.tree)
        files.remove_tree(target)


def place_checkpoint(files: Files, carried: CarriedCheckpoint, tree: Path, workdir: str) -> None:
    """Put a checkpoint where the script looks for it, and remove what the commit has there.

    Raises `RunError` if a link of the commit is in the way, or if the copy has different bytes.
    """
    target = tree / workdir / carried.place
    try:
        files.refuse_links(target, below=tree)
    except StorageError as error:
        raise RunError(
            f"the commit has a link on the way to {carried.place} (resume.checkpoint)",
            hint="A checkpoint is not put behind a link: remove the link from the commit.",
        ) from error
    files.remove_tree(target)
    for file in carried.files:
        path = target / file.name if file.name else target
        if files.copy_file(file.path, path, max_bytes=file.size_bytes) != file.sha256:
            raise RunError(
                f"{carried.place}: the gate's copy changed on disk before the resumed run",
                hint="Something else writes to the output folder: give the gate one of its own.",
            )


def _refuse_links(files: Files, fetched: FetchedData, target: Path, tree: Path) -> None:
    try:
        files.refuse_links(target, below=tree)
    except StorageError as error:
        raise DataError(
            f"{fetched.name}: the commit has a link on the way to {target.relative_to(tree)}",
            hint="Declared data is not put behind a link: remove the link from the commit.",
        ) from error


def elsewhere(planned: PlannedRun, cluster: ClusterSettings) -> bool:
    """Return whether a run goes to other nodes: the repeat, if the settings ask for two jobs."""
    return cluster.allocations > 1 and planned.label == SECOND_STRICT


def on_its_node(folders: RunFolders) -> RunFolders:
    """Return the folders with those that each node has on its own disk.

    A shared folder is slow, and a socket in it would not be the node's own.
    """
    return replace(
        folders,
        home=Path(ON_NODE / folders.home.name),
        tmp=Path(ON_NODE / folders.tmp.name),
        out=Path(ON_NODE / folders.out.name),
    )
