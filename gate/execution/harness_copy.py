"""The harness, made once for a call and put beside each run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from gate.ports import Files

HARNESS = Path(__file__).resolve().parent.parent / "harness"
HARNESS_PACKAGE = "repro_gate_harness"
HARNESS_FILE_LIMIT = 1024 * 1024
MAX_HARNESS_FILES = 100
START_UP = "startup"
# the start-up file stands beside the package, and byte-code is made where it will be used
LEFT_BEHIND = {START_UP, "__pycache__"}


@dataclass(frozen=True, kw_only=True, slots=True)
class HarnessCopy:
    """The names and bytes of the harness's files, byte-code among them.

    Held in memory: no run can change it for the next one, whatever account it has.
    """

    contents: tuple[tuple[PurePath, bytes], ...]

    def put(self, files: Files, target: Path) -> None:
        """Put it into a folder, which is emptied."""
        files.fresh_folder(target)
        for name, data in self.contents:
            files.write_new(target / name, data)


def made_harness(files: Files, folder: Path) -> HarnessCopy:
    """Copy and byte-compile it in a folder that is gone afterwards.

    Where the byte-code was made does not matter: Python takes the path from where it finds it.
    """
    try:
        install_harness(files, folder)
        return HarnessCopy(contents=tuple(_contents(files, folder, PurePath())))
    finally:
        files.remove_tree(folder)


def _contents(files: Files, top: Path, within: PurePath) -> Iterator[tuple[PurePath, bytes]]:
    for name in files.list_names(top / within, max_names=MAX_HARNESS_FILES):
        path = within / name
        if files.is_folder(top / path):
            yield from _contents(files, top, path)
        else:
            yield path, files.read_bytes(top / path, max_bytes=HARNESS_FILE_LIMIT)


def install_harness(files: Files, target: Path) -> None:
    """Copy the harness under its own package name; it takes nothing else of the gate along."""
    files.fresh_folder(target)
    start_up = "sitecustomize.py"
    files.copy_file(HARNESS / START_UP / start_up, target / start_up, max_bytes=HARNESS_FILE_LIMIT)
    _copy_package(files, HARNESS, target / HARNESS_PACKAGE)
    # Every process of the training starts the harness, and none of them may write byte-code here.
    files.compile_python(target)


def _copy_package(files: Files, source: Path, target: Path) -> None:
    """Copy the modules of a package and its subpackages, no link followed."""
    files.fresh_folder(target)
    for name in files.list_names(source, max_names=MAX_HARNESS_FILES):
        if name.endswith(".py"):
            files.copy_file(source / name, target / name, max_bytes=HARNESS_FILE_LIMIT)
        # a link to a folder is no folder here, so nothing from elsewhere comes along
        elif name not in LEFT_BEHIND and files.is_folder(source / name):
            _copy_package(files, source / name, target / name)
