"""The package `repro_gate_harness` in a run's folder; it loads its modules from a single file.

The launcher puts this file there with its byte-code and the bundle of modules, and nothing else. A
folder with a hundred modules would be written before each run, removed after it, and opened file by
file by each of its processes. A zip archive would not do: code from an archive names files that
never existed, and the harness's own code is recognised by the names of its files.

Every Python process of a training imports this, so it imports only what Python itself starts with.
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
    """A source loader that reads from the bundle where Python would read a file.

    All else is Python's own. So byte-code of another Python version is ignored in favour of the
    source. Tracebacks show lines, and code names the file in which it would be.
    """

    def get_data(self, path: str) -> bytes:
        try:
            return _files[path.removeprefix(f"{_FOLDER}/")]
        except KeyError:
            # Python expects this error if there is no byte-code
            raise FileNotFoundError(path) from None

    def path_stats(self, path: str) -> Mapping[str, int]:
        return {"mtime": 0, "size": len(self.get_data(path))}

    def set_data(self, path: str, data: Buffer, *, _mode: int = 0) -> None:
        """Write no byte-code: no run may leave anything for the next one."""


class _Finder:
    """Finds the modules of this package only."""

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
