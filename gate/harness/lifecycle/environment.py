"""Which distributions are installed, where each came from, and which this process imported.

Installed is all that `importlib.metadata` finds, of each name the first on the path: another one
behind it can never be imported. Imported is one of whose files (RECORD) a module was loaded or a
shared library is mapped, so that a library under torch counts although no script names it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from .. import cuda

INDEX: Final = "index"
PROJECT: Final = "project"
MAX_PACKAGES: Final = 5000
MAX_TEXT: Final = 200
# modules that .pth files load into every Python, that of setuptools and that which finds an
# editable installation: no training asked for them
NOT_THE_TRAININGS: Final = ("_distutils_hack", "__editable__")
PACKAGE_FOLDERS: Final = ("site-packages", "dist-packages")
PROJECT_FILES: Final = ("pyproject.toml", "setup.cfg", "setup.py")
MAX_PROJECT_FILE: Final = 1024**2
MAX_EDITABLE_FILES: Final = 5000
MAX_EDITABLE_BYTES: Final = 64 * 1024**2
SKIPPED_FOLDERS: Final = ("__pycache__", "node_modules", *PACKAGE_FOLDERS)
_NAMED: Final = re.compile(r"""\bname\s*=\s*["']?([A-Za-z0-9][A-Za-z0-9._-]*)""")


class Installed:
    """One distribution as this process finds it, and the words of docs/harness-protocol.md."""

    __slots__ = ("imported", "name", "origin", "version")

    def __init__(self, name: str, version: str, origin: str, *, imported: bool) -> None:
        self.name = name[:MAX_TEXT]
        self.version = version[:MAX_TEXT]
        self.origin = origin[:MAX_TEXT]
        self.imported = imported

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"[:MAX_TEXT]


def survey(tree: Path) -> list[Installed]:
    """All of them by name; reads small files of each and runs nothing of them.

    `tree` is the copy of the commit that this process was started in.
    """
    used = UsedFiles()
    return [_seen(package, name, used, tree) for name, package in _first_of_each()]


def distribution_lines() -> list[str]:
    """`name==version` of each, sorted."""
    return sorted(f"{name}=={package.version}"[:MAX_TEXT] for name, package in _first_of_each())


def _first_of_each() -> list[tuple[str, Distribution]]:
    found: dict[str, tuple[str, Distribution]] = {}
    for package in distributions():
        # a folder that a broken installation left has no metadata, or none with a name
        about: Any = package.metadata
        name = about.get("Name") if about is not None else None
        if name:
            found.setdefault(normalized(name), (str(name), package))
        if len(found) >= MAX_PACKAGES:
            break
    return [found[key] for key in sorted(found)]


def normalized(name: str) -> str:
    """`Foo_Bar` is `foo-bar` (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _seen(package: Distribution, name: str, used: UsedFiles, tree: Path) -> Installed:
    direct = _direct_url(package)
    folder = _local_folder(package, direct)
    imported = used.has_one_of(package, name) or (folder is not None and used.has_below(folder))
    if folder is None:
        return Installed(name, str(package.version), _remote(direct), imported=imported)
    if _is_the_project(name, folder, tree):
        return Installed(name, str(package.version), PROJECT, imported=imported)
    # a digest only of code that was used: the folder may be large
    origin = f"editable {_code_digest(folder)}" if _editable(direct) and imported else "folder"
    return Installed(name, str(package.version), origin, imported=imported)


def _direct_url(package: Distribution) -> dict[str, Any] | None:
    """The file of PEP 610, None for what an index gave."""
    try:
        text = package.read_text("direct_url.json")
        found = json.loads(text) if text else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _table(direct: dict[str, Any] | None, key: str) -> dict[str, Any] | None:
    found = (direct or {}).get(key)
    return found if isinstance(found, dict) else None


def _editable(direct: dict[str, Any] | None) -> bool:
    """Whether its code is imported from where it lies; what has no such file lies there itself."""
    return direct is None or bool((_table(direct, "dir_info") or {}).get("editable"))


def _local_folder(package: Distribution, direct: dict[str, Any] | None) -> Path | None:
    """The folder of this machine that it was installed from, or that it lies in uninstalled."""
    if _table(direct, "dir_info") is not None:
        return Path(url2pathname(urlsplit(str((direct or {}).get("url", ""))).path))
    root = Path(str(package.locate_file("")))
    # `setup.py develop` leaves its metadata beside the code; a wheel's lie in a folder of packages
    develops = package.read_text("RECORD") is None and package.read_text("SOURCES.txt") is not None
    return root if develops and not set(PACKAGE_FOLDERS) & set(root.parts) else None


def _remote(direct: dict[str, Any] | None) -> str:
    """Words for a commit or an archive; an address without the user in it, whose word is secret."""
    if direct is None:
        return INDEX
    address = urlsplit(str(direct.get("url", "")))
    shown = f"{address.scheme}://{address.hostname or ''}{address.path}"
    version_control, archive = _table(direct, "vcs_info"), _table(direct, "archive_info")
    if version_control is not None:
        kind, commit = version_control.get("vcs", "vcs"), version_control.get("commit_id", "")
        return f"{kind} {str(commit)[:40]} of {shown}"
    hashes = (archive or {}).get("hashes")
    if isinstance(hashes, dict) and hashes:
        return "archive {}:{}".format(*min(hashes.items()))
    told = str((archive or {}).get("hash", "")).replace("=", ":", 1)
    return f"archive {told or shown}"


def _is_the_project(name: str, folder: Path, tree: Path) -> bool:
    """Whether the commit under test holds this distribution's own project file.

    The tree is a copy of the commit in another place, so the folder is looked for by its last parts
    too. What is installed from it is the commit's code, and no environment.
    """
    ends = (folder.parts[-count:] for count in range(1, min(4, len(folder.parts))))
    places = [tree, *(tree.joinpath(*end) for end in ends)]
    if folder.is_relative_to(tree):
        places.append(folder)
    return any(_names_project(place, name) for place in places)


def _names_project(folder: Path, name: str) -> bool:
    for file in PROJECT_FILES:
        try:
            with (folder / file).open("rb") as opened:
                text = opened.read(MAX_PROJECT_FILE).decode("utf-8", "replace")
        except OSError:
            continue
        if any(normalized(match) == normalized(name) for match in _NAMED.findall(text)):
            return True
    return False


def _code_digest(folder: Path) -> str:
    """SHA-256 over names and content of the Python files below a folder, bounded."""
    total, digest = 0, hashlib.sha256()
    for number, path in enumerate(_python_files(folder)):
        try:
            data = path.read_bytes()
        except OSError:
            data = b""
        total += len(data)
        if number >= MAX_EDITABLE_FILES or total > MAX_EDITABLE_BYTES:
            return "(too large for a digest)"
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\n".encode(errors="replace"))
    return f"sha256:{digest.hexdigest()}"


def _python_files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in SKIPPED_FOLDERS
        )
        yield from (Path(place, name) for name in sorted(files) if name.endswith(".py"))


class UsedFiles:
    """The files that modules of this process came from, and the libraries that it has mapped."""

    def __init__(self) -> None:
        self._files = {*_module_files(), *_mapped_files()}
        self._modules = {name.partition(".")[0].lower() for name in list(sys.modules)}
        self._below: dict[str, set[str]] = {}

    def has_one_of(self, package: Distribution, name: str) -> bool:
        """Whether a file of this distribution is among them; by its name where it lists none."""
        record = package.read_text("RECORD")
        if record is None:
            listed = (package.read_text("top_level.txt") or normalized(name)).split()
            return any(word.replace("-", "_").lower() in self._modules for word in listed)
        used = self._relative_to(str(package.locate_file("")))
        # path,hash,size: a path with a comma in it is quoted
        return any(line.rsplit(",", 2)[0].strip('"') in used for line in record.splitlines())

    def has_below(self, folder: Path) -> bool:
        """Whether one lies below the folder, but not in packages that are installed below it."""
        inside = self._relative_to(str(folder))
        return any(set(PACKAGE_FOLDERS).isdisjoint(name.split("/")) for name in inside)

    def _relative_to(self, root: str) -> set[str]:
        if root not in self._below:
            # `lib64` of an environment is a link to `lib`, and the kernel names the latter
            starts = {f"{place.rstrip(os.sep)}{os.sep}" for place in (root, os.path.realpath(root))}
            self._below[root] = {
                file[len(start) :]
                for start in starts
                for file in self._files
                if file.startswith(start)
            }
        return self._below[root]


def _module_files() -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        # from its own table: a lazy module loads something when it is asked
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and not name.startswith(NOT_THE_TRAININGS):
            yield file


def _mapped_files() -> Iterator[str]:
    for line in cuda.loaded_files().splitlines():
        start = line.find("/")
        if start > 0:
            yield line[start:]
