"""Beside a run this file is the package `repro_gate_harness`; its modules come from one file.

The launcher puts them there with their byte-code, and nothing else: a folder of a hundred modules
was written before each run, removed after it, and opened file by file by each process of it. A zip
would not do: code that Python loads from one names files that were never there, and what is the
harness's own is recognised by the names of files.

Every Python process of a training imports this, so it imports what Python itself starts with.
"""

from __future__ import annotations

import marshal
import sys
from _frozen_importlib_external import SourceFileLoader, spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _frozen_importlib import ModuleSpec
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from _typeshed import ReadableBuffer as Buffer

_FOLDER = __file__.rpartition("/")[0]
_BUNDLE = "modules.bundle"


def _read(path: str) -> Mapping[str, bytes]:
    with open(path, "rb") as bundle:  # noqa: PTH123 - pathlib is slow to import
        files: Mapping[str, bytes] = marshal.load(bundle)  # noqa: S302 - the gate wrote it
        return files


class _Loader(SourceFileLoader):
    """Reads from the bundle where Python would read a file; with everything else, it is Python's.

    So the byte-code of another Python is passed over for the source, a traceback shows lines, and
    the code names the file beside which it would stand.
    """

    def get_data(self, path: str) -> bytes:
        try:
            return _files[path.removeprefix(f"{_FOLDER}/")]
        except KeyError:
            # what Python expects where there is no byte-code
            raise FileNotFoundError(path) from None

    def path_stats(self, path: str) -> Mapping[str, int]:
        return {"mtime": 0, "size": len(self.get_data(path))}

    def set_data(self, path: str, data: Buffer, *, _mode: int = 0) -> None:
        """Write no byte-code: no run may leave something for the next one."""


class _Finder:
    """Finds the modules of this package, and no other."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, within = name.partition(".")
        if package != __name__:
            return None
        inside = within.replace(".", "/")
        for file, folders in (
            (f"{inside}.py", None),
            (f"{inside}/__init__.py", [f"{_FOLDER}/{inside}"]),
        ):
            if file in _files:
                place = f"{_FOLDER}/{file}"
                loader = _Loader(name, place)
                return spec_from_file_location(
                    name, place, loader=loader, submodule_search_locations=folders
                )
        return None


_files = _read(f"{_FOLDER}/{_BUNDLE}")
sys.meta_path.insert(0, _Finder())
