"""The parts of the machine and software that a result depends on, as this process sees them.

*Installed* are the distributions that `importlib.metadata` finds, for each name the first on the
path: one behind it can never be imported. *Imported* are those with a loaded module or a mapped
shared library among their files (RECORD). So a library that torch uses counts although no script
names it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import torch

from .. import cuda
from ..output import Problems
from ..settings import VARIABLES
from ..sources.outside import OwnReads

NAMES: Final = frozenset(
    (
        "NVIDIA_TF32_OVERRIDE",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "DISABLE_ADDMM_CUDA_LT",
        "CUDA_FORCE_PTX_JIT",
    )
)
PREFIXES: Final = (
    *("NCCL_", "CUBLAS", "CUDNN_", "TORCH_CUDNN_", "TORCH_BLAS_", "TORCH_LINALG_"),
    *("ONEDNN_", "DNNL_", "MKL_", "ATEN_CPU_"),
)
# variables that only change what is printed
TALK: Final = ("DEBUG", "LOG", "VERBOSE", "_INFO")
# Which card a number refers to. Attested, but no part of the environment, since the device's name
# is one.
PLACES: Final = (
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
)
MAX_TEXT: Final = 200
AT_START: Final = Path("/proc/self/environ")


def chosen(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may change a result, by name; knobs are reported as knobs."""
    knobs = set(VARIABLES.values())
    return {
        name: text
        for name, text in sorted(environ.items())
        if (name in NAMES or name.startswith(PREFIXES))
        and name not in knobs
        and not any(word in name for word in TALK)
    }


def attested() -> dict[str, str]:
    """Return those variables as they are now in this process, and which devices it may see."""
    places = {name: os.environ[name] for name in PLACES if name in os.environ}
    return {name: text[:MAX_TEXT] for name, text in {**chosen(os.environ), **places}.items()}


def at_start(source: Path = AT_START) -> dict[str, str]:
    """Return the variables that the process was started with, or the present ones without /proc."""
    try:
        pairs = source.read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return dict(os.environ)
    return {name: text for name, _, text in (pair.partition("=") for pair in pairs) if name}


def started_with(source: Path = AT_START) -> str:
    """Return `NAME=value` of the variables at the start, or a digest if they are too long.

    The values at the start describe the machine. What the script sets later is the script's code.
    """
    variables = chosen(at_start(source))
    text = "; ".join(f"{name}={value}" for name, value in variables.items())
    if len(text) <= MAX_TEXT:
        return text
    return f"{len(variables)} variables, SHA-256 {hashlib.sha256(text.encode()).hexdigest()}"


INDEX: Final = "index"
PROJECT: Final = "project"
MAX_PACKAGES: Final = 5000
# Modules that `.pth` files load into every Python: setuptools' and the finder of an editable
# installation. No training asks for them.
NOT_THE_TRAININGS: Final = ("_distutils_hack", "__editable__")
PACKAGE_FOLDERS: Final = ("site-packages", "dist-packages")
PROJECT_FILES: Final = ("pyproject.toml", "setup.cfg", "setup.py")
MAX_PROJECT_FILE: Final = 1024**2
MAX_EDITABLE_FILES: Final = 5000
MAX_EDITABLE_BYTES: Final = 64 * 1024**2
SKIPPED_FOLDERS: Final = ("__pycache__", "node_modules", *PACKAGE_FOLDERS)
_NAMED: Final = re.compile(r"""\bname\s*=\s*["']?([A-Za-z0-9][A-Za-z0-9._-]*)""")


class Installed:
    """A distribution as this process finds it; docs/harness-protocol.md describes the origins."""

    __slots__ = ("imported", "name", "origin", "version")

    def __init__(self, name: str, version: str, origin: str, *, imported: bool) -> None:
        self.name = name[:MAX_TEXT]
        self.version = version[:MAX_TEXT]
        self.origin = origin[:MAX_TEXT]
        self.imported = imported

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"[:MAX_TEXT]


def survey(tree: Path) -> list[Installed]:
    """Return all distributions by name; reads small files of each and runs none of their code.

    `tree` is the copy of the commit in which this process was started.
    """
    used = UsedFiles()
    return [_seen(package, name, used, tree) for name, package in _first_of_each()]


def distribution_lines() -> list[str]:
    """Return `name==version` of each distribution, sorted."""
    return sorted(f"{name}=={package.version}"[:MAX_TEXT] for name, package in _first_of_each())


def _first_of_each() -> list[tuple[str, Distribution]]:
    first_of_each: dict[str, tuple[str, Distribution]] = {}
    for package in distributions():
        # the remains of a broken installation have no metadata, or none with a name
        about: Any = package.metadata
        name = about.get("Name") if about is not None else None
        if name:
            first_of_each.setdefault(normalized(name), (str(name), package))
        if len(first_of_each) >= MAX_PACKAGES:
            break
    return [first_of_each[key] for key in sorted(first_of_each)]


def normalized(name: str) -> str:
    """Return the normalised name: `Foo_Bar` becomes `foo-bar` (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _seen(package: Distribution, name: str, used: UsedFiles, tree: Path) -> Installed:
    direct = _direct_url(package)
    folder = _local_folder(package, direct)
    imported = used.has_one_of(package, name) or (folder is not None and used.has_below(folder))
    if folder is None:
        return Installed(name, str(package.version), _remote(direct), imported=imported)
    if _is_the_project(name, folder, tree):
        return Installed(name, str(package.version), PROJECT, imported=imported)
    # only code that was used gets a digest: the folder may be large
    origin = f"editable {_code_digest(folder)}" if _editable(direct) and imported else "folder"
    return Installed(name, str(package.version), origin, imported=imported)


def _direct_url(package: Distribution) -> dict[str, Any] | None:
    """Return the content of `direct_url.json` (PEP 610); None if an index delivered the package."""
    try:
        text = package.read_text("direct_url.json")
        document = json.loads(text) if text else None
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _table(direct: dict[str, Any] | None, key: str) -> dict[str, Any] | None:
    table = (direct or {}).get(key)
    return table if isinstance(table, dict) else None


def _editable(direct: dict[str, Any] | None) -> bool:
    """Whether the code is imported from its own folder, as it is without `direct_url.json`."""
    return direct is None or bool((_table(direct, "dir_info") or {}).get("editable"))


def _local_folder(package: Distribution, direct: dict[str, Any] | None) -> Path | None:
    """Return the local folder it was installed from, or in which it is used uninstalled."""
    if _table(direct, "dir_info") is not None:
        return Path(url2pathname(urlsplit(str((direct or {}).get("url", ""))).path))
    root = Path(str(package.locate_file("")))
    # `setup.py develop` leaves its metadata beside the code, a wheel in a packages folder
    develops = package.read_text("RECORD") is None and package.read_text("SOURCES.txt") is not None
    return root if develops and not set(PACKAGE_FOLDERS) & set(root.parts) else None


def _remote(direct: dict[str, Any] | None) -> str:
    """Describe a commit or an archive; the address is shown without a login, which is secret."""
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
        # one digest is enough: the first by name, so that the order in the file does not matter
        return "archive {}:{}".format(*min(hashes.items()))
    # the older key of PEP 610, with `algorithm=digest`
    digest = str((archive or {}).get("hash", "")).replace("=", ":", 1)
    return f"archive {digest or shown}"


def _is_the_project(name: str, folder: Path, tree: Path) -> bool:
    """Whether the commit under test contains this distribution's own project file.

    The tree is a copy of the commit in another place. So the last parts of the folder's path are
    tried below the tree too. Code that is installed from there is the commit's and no part of the
    environment.
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
    """Return SHA-256 over names and content of the Python files below a folder, within limits."""
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
    """The files of this process's modules, and the shared libraries that it has mapped."""

    def __init__(self) -> None:
        self._files = {*_module_files(), *_mapped_files()}
        self._modules = {name.partition(".")[0].lower() for name in list(sys.modules)}
        self._below: dict[str, set[str]] = {}

    def has_one_of(self, package: Distribution, name: str) -> bool:
        """Whether a file of this distribution is in use; without RECORD, whether a module is."""
        record = package.read_text("RECORD")
        if record is None:
            listed = (package.read_text("top_level.txt") or normalized(name)).split()
            return any(word.replace("-", "_").lower() in self._modules for word in listed)
        used = self._relative_to(str(package.locate_file("")))
        # `path,hash,size`; a path with a comma in it is quoted
        return any(line.rsplit(",", 2)[0].strip('"') in used for line in record.splitlines())

    def has_below(self, folder: Path) -> bool:
        """Whether a file below the folder is in use, except in packages installed below it."""
        inside = self._relative_to(str(folder))
        return any(set(PACKAGE_FOLDERS).isdisjoint(name.split("/")) for name in inside)

    def _relative_to(self, root: str) -> set[str]:
        if root not in self._below:
            # an environment's `lib64` is a link to `lib`, and the kernel reports the latter
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
        # from the module's dictionary: an attribute look-up makes a lazy module load something
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and not name.startswith(NOT_THE_TRAININGS):
            yield file


def _mapped_files() -> Iterator[str]:
    for line in cuda.loaded_files().splitlines():
        start = line.find("/")
        if start > 0:
            yield line[start:]


NONE: Final = "none"
MAX_PART_LENGTH = 200


def parts(problems: Problems) -> dict[str, str]:
    """Return each part of docs/harness-protocol.md as text; `none` if it does not apply."""
    texts: dict[str, str] = {}
    for name, read in _READERS.items():
        texts[name] = NONE
        with problems.noting(f"reading the environment's {name}"):
            texts[name] = read()[:MAX_PART_LENGTH] or NONE
    return texts


def _python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}"


def _numpy() -> str:
    numpy = sys.modules.get("numpy")
    return NONE if numpy is None else str(numpy.__version__)


def _device() -> str:
    return cuda.device_summary() if cuda.in_use() else "cpu"


def _cuda() -> str:
    if not cuda.in_use():
        return NONE
    return torch.version.cuda or f"HIP {torch.version.hip}"


def _cudnn() -> str:
    return cuda.cudnn_version() if cuda.in_use() else NONE


def _driver() -> str:
    if not cuda.in_use():
        return NONE
    return cuda.driver_version() or f"for CUDA {cuda.newest_supported_version() or 'unknown'}"


def _cublas() -> str:
    return cuda.cublas_version(cuda.loaded_files()) if cuda.in_use() else NONE


def _nccl() -> str:
    """Return NCCL's version; `none` for a single process, which does not use NCCL."""
    if not cuda.in_use() or world_size() == "1":
        return NONE
    return cuda.nccl_version(cuda.loaded_files())


def _cpu() -> str:
    about = Path("/proc/cpuinfo")
    text = about.read_text(encoding="utf-8", errors="replace") if about.is_file() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


def _cpu_capability() -> str:
    return torch.backends.cpu.get_cpu_capability()


def _os() -> str:
    """Return distribution, machine and C library.

    The kernel's version is left out: it computes nothing and changes weekly.
    """
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = f"{platform.system()} {platform.release()}"
    library = " ".join(platform.libc_ver())
    return ", ".join(text for text in (name, platform.machine(), library.strip()) if text)


class World:
    """The number of ranks, as of the first step: at the end the process group may be gone."""

    size = ""


def world_size() -> str:
    """Return the size of the process group, or else the launcher's variable."""
    if World.size:
        return World.size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return str(torch.distributed.get_world_size())
    return os.environ.get("WORLD_SIZE", "1")


class Packages:
    """The installed distributions as in the summary: `name==version`, names, name to origin."""

    def __init__(self, installed: Sequence[Installed] = ()) -> None:
        self.packages = sorted(str(package) for package in installed)
        self.imported = [package.name for package in installed if package.imported]
        self.origins = {
            package.name: package.origin for package in installed if package.origin != INDEX
        }


def packages(problems: Problems, tree: str = "") -> Packages:
    """Return every distribution that can be imported, and which were; empty after an error.

    `tree` is the copy of the commit that is trained; by default the working directory.
    """
    # files that the survey itself opens must not be reported as reads of the training
    with problems.noting("reading the environment's packages"), OwnReads():
        return Packages(survey(Path(tree) if tree else Path.cwd()))
    return Packages()


def _packages() -> str:
    """Return SHA-256 over `name==version` of all distributions, each line ended by a newline."""
    lines = distribution_lines()
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


_READERS: Final[dict[str, Callable[[], str]]] = {
    "python": _python,
    "torch": lambda: str(torch.__version__),
    "numpy": _numpy,
    "device": _device,
    "cuda": _cuda,
    "cudnn": _cudnn,
    "cublas": _cublas,
    "nccl": _nccl,
    "driver": _driver,
    "cpu": _cpu,
    "cpu_capability": _cpu_capability,
    "os": _os,
    "threads": lambda: str(torch.get_num_threads()),
    "world_size": world_size,
    "variables": started_with,
    "packages": _packages,
}
