"""Files outside the commit that the training opens for reading: data that nobody declared.

An audit hook sees what passes Python's own `open` and `os.open`; a library that opens files in C
does not. The hook stands in every Python process, so its first line leaves for any other event. A
file is looked at once, and after `MAX_KNOWN` files no more is looked at.

Imported by every Python process of a training, so nothing heavy is imported here.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

MAX_KNOWN = 5_000
MAX_KNOWN_OF_TREE = 2_000
# The first files of a folder have a line each, and those of all folders in one; more are counted.
OF_A_FOLDER = 8
OF_SEVERAL_FOLDERS = 16
COUNTS = frozenset(4**power for power in range(2, 8))
# a path is told in as many characters as a call is
MAX_PATH = 200
WRITTEN = os.O_WRONLY | os.O_CREAT
# what is imported is the environment's, which is told by the distributions
CODE = (".py", ".pyc", ".pyi", ".so", ".pth")
# The system's own. Not all of /usr/share, /opt and /var: data sets are put there too.
SYSTEM = (
    *("/proc", "/sys", "/dev", "/run", "/var/run", "/boot", "/etc", "/nix/store"),
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/usr/local/cuda", "/opt/nvidia", "/opt/rocm", "/opt/intel", "/opt/amazon"),
    *("/var/lib/dpkg", "/var/lib/ca-certificates", "/var/lib/dbus", "/var/cache/fontconfig"),
)
OF_A_PREFIX = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "include", "etc", "src")
SHARED = (
    *("zoneinfo", "locale", "i18n", "terminfo", "mime", "ca-certificates", "icu", "misc"),
    *("fonts", "fontconfig", "X11", "glib-2.0", "doc", "hwdata", "python", "python3"),
)
# an interpreter of the distribution has all of this for its prefix
COMMON_PREFIXES = ("/usr", "/usr/local")
POINTER_BEGINS = b"version https://git-lfs.github.com/spec/"
# a pointer has at least a version, an identifier and a size, and is never longer
POINTER_BYTES = range(100, 1024)
MAX_POINTERS = 3


class OutsideReads:
    """Notes the files of one process, and of those that are forked from it."""

    def __init__(self, tree: str, environ: Mapping[str, str]) -> None:
        self._tree = _folder(os.path.realpath(tree or os.getcwd()))  # noqa: PTH109 - pathlib is slow to import
        declared = environ.get("REPRO_GATE_DECLARED", "").split(os.pathsep)
        self._declared = frozenset(filter(None, declared))
        self._passed = tuple(_passed_over(self._tree, environ, declared))
        self._known: set[str] = set()
        self._known_of_tree: set[str] = set()
        self._folders: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._told: set[str] = set()
        self._pointers = 0
        self._full = False

    def opened(self, args: tuple[Any, ...]) -> None:
        """A file is about to be opened: its name or number, its mode and its flags."""
        path, _, flags = args
        if self._full or isinstance(path, int):
            return
        whole = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - as above
        if whole.startswith(self._passed) or whole.endswith(CODE):
            return
        in_tree = whole.startswith(self._tree)
        known = self._known_of_tree if in_tree else self._known
        if whole in known:
            return
        if len(known) >= (MAX_KNOWN_OF_TREE if in_tree else MAX_KNOWN):
            self._full = not in_tree
            return
        known.add(whole)
        # what the training writes, it may read again
        if not flags & WRITTEN:
            self._look(self._without_links(whole))

    def _without_links(self, whole: str) -> str:
        folder, _, name = whole.rpartition(os.sep)
        real = self._folders.get(folder)
        if real is None:
            real = self._folders[folder] = _folder(os.path.realpath(folder or os.sep))
        path = real + name
        return os.path.realpath(path) if os.path.islink(path) else path  # noqa: PTH114 - as above

    def _look(self, path: str) -> None:
        if path.startswith(self._tree):
            self._look_for_pointer(path)
            return
        if path.startswith(self._passed) or path in self._declared:
            return
        # most processes come to no such file
        from ..user_code import caller_of, user_stack
        from .found import READ, SOURCES, Source

        status = os.stat(path)  # noqa: PTH116 - as above
        caller = caller_of(sys._getframe())  # noqa: SLF001 - inspect offers only slower copies
        # what a library reads while it is imported is its own
        if not stat.S_ISREG(status.st_mode) or caller.importing or SOURCES.full(READ):
            return
        told, count = self._counted(path)
        if told == path:
            stamp = f"{status.st_size} {status.st_mtime_ns}"
            source = Source(READ, _short(path), caller.place, [], after=stamp)
        elif count in COUNTS or told not in self._told:
            self._told.add(told)
            source = Source(READ, _short(told), caller.place, [], before=str(count))
        else:
            return
        source.stack = user_stack(sys._getframe())  # noqa: SLF001 - as above
        SOURCES.report(source)

    def _counted(self, path: str) -> tuple[str, int]:
        """What is told of a file: itself, or a folder and how many of its files were read."""
        folder = _folder(os.path.dirname(path))  # noqa: PTH120 - as above
        above = _folder(os.path.dirname(folder[:-1]))  # noqa: PTH120 - as above
        own = self._counts[folder] = self._counts.get(folder, 0) + 1
        # /srv, /data and their like hold more than one data set
        several = above.count(os.sep) > 2  # noqa: PLR2004 - of `/srv/`
        # with a name that no folder has: the files of all folders in it
        key = f"{above}*"
        if several:
            self._counts[key] = self._counts.get(key, 0) + 1
        of_all = self._counts.get(key, 0)
        if of_all > OF_SEVERAL_FOLDERS and own < of_all:
            return above, of_all
        return (path, 1) if own <= OF_A_FOLDER else (folder, own)

    def _look_for_pointer(self, path: str) -> None:
        """Say on stderr that the script reads a pointer of Git LFS as if it were data."""
        if self._pointers >= MAX_POINTERS or os.stat(path).st_size not in POINTER_BYTES:  # noqa: PTH116 - as above
            return
        self._known_of_tree.add(path)
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            begins = os.read(number, len(POINTER_BEGINS))
        finally:
            os.close(number)
        if begins == POINTER_BEGINS:
            self._pointers += 1
            name = path.removeprefix(self._tree)
            sys.stderr.write(f"repro-gate: {name!r} is a Git LFS pointer, not its content\n")


def install(tree: str, environ: Mapping[str, str]) -> None:
    """Look at what this process opens from now on; an audit hook cannot be taken away again."""
    opened = OutsideReads(tree, environ).opened

    def on_event(event: str, args: tuple[Any, ...]) -> None:
        if event != "open":
            return
        try:
            opened(args)
        except Exception:
            # what the harness cannot find out must not be the script's worry
            return

    sys.addaudithook(on_event)


def _passed_over(tree: str, environ: Mapping[str, str], declared: list[str]) -> Iterable[str]:
    """How the names begin of files that are no data, or declared, or the run's own."""
    own = [environ.get(n, "") for n in ("HOME", "TMPDIR", "REPRO_GATE_OUT", "REPRO_GATE_DATA")]
    # by now all of site-packages and PYTHONPATH, and the harness's own folder
    imported = [entry for entry in sys.path if not tree.startswith(_folder(entry))]
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    several = [*imported, *own, *declared, *prefixes.difference(COMMON_PREFIXES)]
    roots = [*SYSTEM, *several, *map(os.path.realpath, filter(None, several))]
    for prefix in COMMON_PREFIXES:
        roots += [f"{prefix}/{name}" for name in OF_A_PREFIX]
        roots += [f"{prefix}/share/{name}" for name in SHARED]
    absolute = (root for root in roots if root.startswith(os.sep) and root.strip(os.sep))
    return dict.fromkeys(_folder(os.path.normpath(root)) for root in absolute)


def _folder(path: str) -> str:
    return path.rstrip(os.sep) + os.sep


def _short(path: str) -> str:
    """A path, or the innermost folder of it that is short enough."""
    while len(path) > MAX_PATH:
        path = _folder(os.path.dirname(path.rstrip(os.sep)))  # noqa: PTH120 - as above
    return path
