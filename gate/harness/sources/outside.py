"""Reports files outside the commit that the training opens.

An audit hook sees what passes Python's own `open` and `os.open`. The hook runs in every Python
process, so its first line returns for any other event. Each file is looked at once; after
`MAX_KNOWN` files no more are. Files that a library opens in C are found only if they are open or
mapped at the process's first step or end. Their line is unknown.

In folders where the run can create a link (the commit's copy, its home, its folder for temporary
files) a name proves nothing: the target of the link counts. Every Python process of a training
imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import FrameType
    from typing import Any

    from ..user_code import CodeLine


# SQLite's audit event, and the prefix of a database that is named by a URI
DATABASE = "sqlite3.connect"
ADDRESS = "file:"
# Ways by which the user's own lines may read data out of sight of every hook. Each line that raises
# such an audit event is reported once.
OUT_OF_SIGHT = frozenset(
    (
        *("ctypes.dlopen", "ctypes.dlsym", "mmap.__new__", "socket.connect", "socket.sendto"),
        *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn"),
        # SQLite opens its file in C; a hard link gives an outside file a second name
        *(DATABASE, "os.link", "os.getxattr"),
    )
)
LISTINGS = frozenset(("os.listdir", "os.scandir"))
# after these a known name may lead to another file
NEW_NAMES = frozenset(("os.symlink", "os.rename"))
# what the machine says about itself, and its configuration
MACHINE = (
    *("/proc/", "/sys/", "/etc/", "/run/", "/var/run/", "/boot/"),
    # files by their descriptors' numbers, as below /proc
    *("/dev/fd/", "/dev/shm/"),  # noqa: S108 - read
)
# files whose content no seed sets
ENTROPY = "entropy"
OF_ENTROPY = frozenset(
    ("/dev/urandom", "/dev/random", "/dev/hwrng", "/proc/sys/kernel/random/uuid")
)
MAX_KNOWN = 5_000
MAX_KNOWN_OWN = 2_000
# The first files of a folder get a line each, then the folder gets lines with a count. The files of
# many sibling folders are counted together.
OF_A_FOLDER = 8
OF_SEVERAL_FOLDERS = 16
# a line at each power of four, so that a folder of any size takes few lines
COUNTS = frozenset(4**power for power in range(2, 8))
MAX_PATH = 200
# opened like this, a file will only contain what the training itself writes
NEW_CONTENT = os.O_TRUNC | os.O_EXCL
HEARD = OUT_OF_SIGHT | LISTINGS | NEW_NAMES | {"open"}
UPWARDS = f"{os.pardir}{os.sep}"
# packages that read a zip archive for an `import`
IMPORTERS = frozenset(("importlib", "zipimport"))
# imported code belongs to the environment, which the list of distributions covers
CODE = (".py", ".pyc", ".pyi", ".so")
# The system's folders. Not all of /usr/share, /opt and /var: data sets are put there too.
SYSTEM = (
    *("/proc", "/sys", "/dev", "/run", "/var/run", "/boot", "/etc", "/nix/store"),
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/usr/local/cuda", "/opt/nvidia", "/opt/rocm", "/opt/intel", "/opt/amazon"),
    *("/var/lib/dpkg", "/var/lib/ca-certificates", "/var/lib/dbus", "/var/cache/fontconfig"),
)
INSTALLED = ("/site-packages", "/dist-packages")
OF_A_PREFIX = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "include", "etc", "src")
SHARED = (
    *("zoneinfo", "locale", "i18n", "terminfo", "mime", "ca-certificates", "icu", "misc"),
    *("fonts", "fontconfig", "X11", "glib-2.0", "doc", "hwdata", "python", "python3"),
)
# an interpreter of the distribution has one of these as its prefix, where data may be too
COMMON_PREFIXES = ("/usr", "/usr/local")
POINTER_BEGINS = b"version https://git-lfs.github.com/spec/"
# a pointer has at least a version, an identifier and a size, and is never longer
POINTER_BYTES = range(100, 1024)
MAX_POINTERS = 3
# suffixes of files that contain a state, as libraries name them
STATES = (
    *(".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".pkl", ".pickle", ".joblib", ".npz"),
    *(".npy", ".h5", ".onnx", ".pt2", ".msgpack", ".tar"),
)
CONFIGURATIONS = (".yaml", ".yml", ".toml", ".json")
MAX_SAVED = 20
MAX_SAVED_FOLDERS = 200
MAX_SAVED_ENTRIES = 5_000
# taken now, before `os.scandir` may be wrapped to report listings
_scandir = os.scandir


_outside: OutsideReads | None = None


class OutsideReads:
    """Notes the files that one process opens, and each process forked from it."""

    def __init__(self, tree: str, environ: Mapping[str, str]) -> None:
        self._tree = _folder(os.path.realpath(tree or os.getcwd()))  # noqa: PTH109 - pathlib is slow to import
        declared = environ.get("REPRO_GATE_DECLARED", "").split(os.pathsep)
        # declared files; `_passed` covers declared folders only, since its prefixes end in a slash
        self._declared = frozenset(map(os.path.realpath, filter(None, declared)))
        changed = filter(None, environ.get("REPRO_GATE_CHANGED", "").split(os.pathsep))
        self._changed = {self._tree + name for name in changed}
        # compared first: nearly every opened file has a different name
        self._changed_names = {path.rpartition(os.sep)[2] for path in self._changed}
        self._passed = tuple(_passed_over(self._tree, environ, declared))
        self._folders_of_run = tuple(_folders_of_the_run(environ))
        self._own = (self._tree, *self._folders_of_run)
        self._known: set[str] = set()
        self._known_own: set[str] = set()
        self._written: set[str] = set()
        self._folders: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._reported: set[str] = set()
        self._pointers = 0
        self._full = False
        self._began_ns = time.time_ns()
        # the thread in which the harness itself reads files, while it does
        self.surveyor: int | None = None
        # in this thread, a line of the training is on the stack above whatever it asked for
        self.main_thread = get_ident()

    def opened(self, args: tuple[Any, ...]) -> None:
        """Handle the event before a file is opened: name or descriptor, mode, flags."""
        if self.surveyor is not None and get_ident() == self.surveyor:
            return
        path, mode, flags = args
        if isinstance(path, int) or (self._full and not self._changed):
            return
        name = os.fsdecode(path)
        # `..` behind a link leads elsewhere than the text of the path says
        plain = os.path.realpath if UPWARDS in name else os.path.abspath
        whole = plain(name)
        if whole in OF_ENTROPY:
            _tell(ENTROPY, whole)
        if whole.startswith(MACHINE):
            _tell_unseen(whole[: whole.index(os.sep, 1) + 1])
        elif mode is None and os.path.isdir(whole):  # noqa: PTH112 - as above
            # by `os.open`: its descriptor opens files whose names no event shows
            _tell_folder()
            return
        writes = flags & os.O_ACCMODE == os.O_WRONLY or bool(flags & NEW_CONTENT)
        if self._changed and not writes:
            self._look_for_changed(whole)
        if not self._full and self._is_new(whole, flags) and not writes:
            self._look(self._without_links(whole))

    def connected(self, args: tuple[Any, ...]) -> None:
        """Handle the event before an SQLite database is opened, by a path or a URI."""
        name = os.fsdecode(args[0])
        if name.startswith(ADDRESS):
            name = name.removeprefix(ADDRESS).partition("?")[0]
        if self._changed:
            self._look_for_changed(os.path.abspath(name))  # noqa: PTH100 - as above

    def listed(self, args: tuple[Any, ...]) -> None:
        """Handle a listing of a folder: the names of its files may be all that is read."""
        path = args[0] or "."
        if not isinstance(path, int):
            whole = _folder(os.path.realpath(os.fsdecode(path)))
            if not whole.startswith((*self._own, *self._passed)):
                _tell_unseen("os.listdir")

    def named(self, event: str, args: tuple[Any, ...]) -> None:
        """Handle a new link or name, after which cached look-ups may be wrong."""
        source, target = (os.path.abspath(os.fsdecode(path)) for path in args[:2])  # noqa: PTH100 - as above
        if event == "os.rename" and not os.path.islink(source):  # noqa: PTH114 - as above
            whole = os.path.realpath(source)
            if not whole.startswith((*self._own, *self._passed)) and target.startswith(self._own):
                # moved into the run's folders, it would no longer be seen as an outside file
                _tell_unseen(event)
            # a renamed file leaves the cached folders valid
            if not os.path.isdir(source):  # noqa: PTH112 - as above
                return
        self._known_own.clear()
        self._folders.clear()

    def imported(self) -> None:
        """Report loaded modules and search paths that are neither the commit's nor installed."""
        from ..user_code import CodeLine
        from .recorded import SOURCES, UNSEEN, SourceRecord

        loaded = (
            getattr(module, "__dict__", {}).get("__file__") for module in [*sys.modules.values()]
        )
        # a folder in `sys.path` may later get a module that it does not have now
        for path in (*map(str, filter(None, loaded)), *map(_folder, sys.path)):
            # no hook sees what a compiled module does, not even one of the commit
            installed = path.startswith((*self._own, *self._passed))
            known = ".so" not in path if path.startswith(self._tree) else installed
            if path.startswith(os.sep) and path != os.sep and not known:
                SOURCES.report(SourceRecord(UNSEEN, "import", CodeLine(), []))

    def held(self) -> None:
        """Look at the files that are open or mapped now, and at the imported modules."""
        from ..user_code import CodeLine

        self.imported()
        # in the order of names: the order of addresses differs from run to run
        for path in sorted({*_mapped(), *_open()}):
            self._look_for_changed(path)
            if ".so" not in path and not path.startswith(self._own) and self._is_new(path):
                try:
                    self._tell(path, CodeLine(), [])
                except OSError:
                    # deleted in the meantime, or not the name of a file
                    continue

    def _look_for_changed(self, whole: str) -> None:
        """Report once that a file is read which the change under test touches."""
        if whole.rpartition(os.sep)[2] not in self._changed_names:
            return
        path = self._without_links(whole)
        if path not in self._changed:
            return
        from ..user_code import CodeLine
        from .recorded import OPENED, SOURCES, SourceRecord

        self._changed.discard(path)
        SOURCES.report(SourceRecord(OPENED, path.removeprefix(self._tree), CodeLine(), []))

    def saved(self) -> None:
        """Report states that were written into the commit's tree since this process began."""
        from ..user_code import CodeLine
        from .recorded import SAVED, SOURCES, SourceRecord

        states = sorted(self._states_since())
        for path in states[:MAX_SAVED]:
            shown = path.removeprefix(self._tree)
            if len(shown) <= MAX_PATH:
                SOURCES.report(SourceRecord(SAVED, shown, CodeLine(), []))

    def _states_since(self) -> Iterator[str]:
        folders, entries = [self._tree], 0
        for folder in folders:
            try:
                listed = list(_scandir(folder))
            except OSError:
                continue
            for entry in listed:
                entries += 1
                if entries > MAX_SAVED_ENTRIES:
                    return
                if entry.is_dir(follow_symlinks=False):
                    if len(folders) < MAX_SAVED_FOLDERS:
                        # appending to the list while iterating over it is intended
                        folders.append(entry.path)
                elif (
                    entry.name.endswith(STATES)
                    # files of the harness are no states of the script
                    and not entry.path.startswith((*self._passed, *self._folders_of_run))
                    and entry.is_file(follow_symlinks=False)
                    and entry.stat(follow_symlinks=False).st_mtime_ns >= self._began_ns
                ):
                    yield entry.path

    def _is_new(self, whole: str, flags: int = os.O_RDONLY) -> bool:
        """Whether this file may be data and was not looked at yet.

        A file that this run has written may be read again: that is not new. If the file is older
        than the run, writing failed, and reading it is new after all.
        """
        if whole.startswith(self._passed):
            return False
        own = whole.startswith(self._own)
        known = self._known_own if own else self._known
        if whole in known:
            new = whole in self._written and not flags & NEW_CONTENT and self._is_older(whole)
            self._written.discard(whole)
            return new
        # not remembered, so that each line that reads a file of code is reported
        if not own and whole.endswith(CODE):
            return True
        # beyond the limit such files are looked at each time, and take no place from outside files
        if own and len(known) >= MAX_KNOWN_OWN:
            return True
        if len(known) >= MAX_KNOWN:
            self._full = True
            _report_unseen("open")
            return False
        if flags & NEW_CONTENT or flags & os.O_ACCMODE != os.O_WRONLY:
            known.add(whole)
        if flags & NEW_CONTENT:
            self._written.add(whole)
        return True

    def _is_older(self, whole: str) -> bool:
        return os.stat(whole).st_mtime_ns < self._began_ns  # noqa: PTH116 - as above

    def _without_links(self, whole: str) -> str:
        folder, _, name = whole.rpartition(os.sep)
        real = self._folders.get(folder)
        if real is None:
            real = self._folders[folder] = _folder(os.path.realpath(folder or os.sep))
        path = real + name
        return os.path.realpath(path) if os.path.islink(path) else path  # noqa: PTH114 - as above

    def _look(self, path: str) -> None:
        if path.startswith(self._own):
            if not path.startswith(self._folders_of_run):
                self._look_in_tree(path)
            return
        if path in OF_ENTROPY:
            _tell(ENTROPY, path)
        if path.startswith(self._passed):
            return
        if path.endswith(CODE):
            if not _tell_unseen("open"):
                # an `import` reads it; its module may be gone when the process ends
                _report_unseen("import")
            return
        # imported late: most processes open no such file
        from ..user_code import caller_of, user_stack

        frame = sys._getframe()  # noqa: SLF001 - inspect offers only slower copies
        caller = caller_of(frame)
        # what a library reads during its import belongs to that library
        if not caller.importing or _by_importer():
            self._known.add(path)
            self._tell(path, caller.place, user_stack(frame))

    def _look_in_tree(self, path: str) -> None:
        if path.endswith(CONFIGURATIONS):
            from .configuration import note_opened

            note_opened(path)
        self._look_for_pointer(path)

    def _tell(self, path: str, place: CodeLine, stack: list[str]) -> None:
        from .recorded import READ, SOURCES, SourceRecord

        status = os.stat(path)  # noqa: PTH116 - as above
        if path in self._declared or SOURCES.full(READ):
            return
        if not stat.S_ISREG(status.st_mode):
            # through a folder's descriptor any file in it can be opened; a pipe may have any writer
            _tell_unseen("open")
            return
        already, count = self._counted(path)
        if already == path:
            stamp = f"{status.st_size} {status.st_mtime_ns}"
            SOURCES.report(SourceRecord(READ, _short(path), place, stack, after=stamp))
        elif count in COUNTS or already not in self._reported:
            self._reported.add(already)
            SOURCES.report(SourceRecord(READ, _short(already), place, stack, before=str(count)))

    def _counted(self, path: str) -> tuple[str, int]:
        """Return the path with 1, or a folder with the number of its files that were read."""
        folder = _folder(os.path.dirname(path))  # noqa: PTH120 - as above
        above = _folder(os.path.dirname(folder[:-1]))  # noqa: PTH120 - as above
        own = self._counts[folder] = self._counts.get(folder, 0) + 1
        # /srv, /data and the like contain several data sets, so they are not counted as one
        several = above.count(os.sep) > 2  # noqa: PLR2004 - of `/srv/`
        # the key for all folders in `above`, which no folder can have as its name
        key = f"{above}*"
        if several:
            self._counts[key] = self._counts.get(key, 0) + 1
        of_all = self._counts.get(key, 0)
        if of_all > OF_SEVERAL_FOLDERS and own < of_all:
            return above, of_all
        return (path, 1) if own <= OF_A_FOLDER else (folder, own)

    def _look_for_pointer(self, path: str) -> None:
        """Warn on stderr that the script reads a Git LFS pointer as if it were data."""
        if self._pointers >= MAX_POINTERS or os.stat(path).st_size not in POINTER_BYTES:  # noqa: PTH116 - as above
            return
        self._known_own.add(path)
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
    """Report what this process opens from now on; an audit hook cannot be removed."""
    global _outside
    _outside = OutsideReads(tree, environ)
    opened, listed, named = _outside.opened, _outside.listed, _outside.named
    connected = _outside.connected

    def on_event(event: str, args: tuple[Any, ...]) -> None:
        if event not in HEARD:
            return
        try:
            if event == "open":
                opened(args)
            elif event in LISTINGS:
                listed(args)
            elif event in NEW_NAMES:
                named(event, args)
            else:
                _tell_unseen(event)
                if event == DATABASE:
                    connected(args)
        except Exception:
            # an error of the harness must never reach the script
            return

    def in_child() -> None:
        if _outside is not None:
            _outside.main_thread = get_ident()

    os.register_at_fork(after_in_child=in_child)
    sys.addaudithook(on_event)


def _tell_unseen(what: str) -> bool:
    """Report a user's line that no hook can follow; returns False as `_tell` does."""
    from .recorded import UNSEEN

    return _tell(UNSEEN, what)


def _tell(kind: str, what: str) -> bool:
    """Report what a user's line does; return False if a library does it for itself.

    What a library does during its import, or without a user's line above it, belongs to the
    environment. In a thread no user's line is on the stack, though, even if the user handed over
    the work. So a thread's call is reported without a line.
    """
    from ..user_code import CodeLine, caller_of, user_stack
    from .recorded import SOURCES, SourceRecord

    if SOURCES.full(kind):
        return True
    frame = _outer_frame()
    # the harness opens files itself; its own frames are then above the hook
    if _by_harness(frame):
        return True
    stack, caller = user_stack(frame), caller_of(frame)
    in_main = _outside is None or get_ident() == _outside.main_thread
    if caller.importing or (not stack and in_main):
        return False
    SOURCES.report(SourceRecord(kind, what, caller.place if stack else CodeLine(), stack))
    return True


def _outer_frame() -> FrameType | None:
    """Return the first frame above the hook itself."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect offers only slower copies
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    return frame


def _report_unseen(what: str) -> None:
    """Report a finding without a line, no matter which code causes it."""
    from ..user_code import CodeLine
    from .recorded import SOURCES, UNSEEN, SourceRecord

    SOURCES.report(SourceRecord(UNSEEN, what, CodeLine(), []))


def _tell_folder() -> None:
    """Report that a folder is opened, unless `shutil.rmtree` does so to delete its content."""
    frame = _outer_frame()
    if frame is None or not (
        frame.f_globals.get("__name__") == "shutil" and "rmtree" in frame.f_code.co_name
    ):
        _tell_unseen("os.open")


def _by_importer() -> bool:
    """Whether the import system itself reads the file."""
    frame = _outer_frame()
    return frame is not None and _package(frame) in IMPORTERS


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _by_harness(frame: FrameType | None) -> bool:
    """Whether the harness makes this call, on behalf of a user's line."""
    from ..user_code import in_library

    own = __name__.partition(".")[0]
    while frame is not None:
        if _package(frame) == own:
            # such a wrapper passes a call on to the plain function: the call is the user's
            return frame.f_code.co_name not in {"start", "__call__"}
        if not in_library(frame.f_code.co_filename):
            return False
        frame = frame.f_back
    return False


def tell_program() -> None:
    """Report that a user's line starts a program by a way without an audit event."""
    _tell_unseen("subprocess.Popen")


class OwnReads:
    """While active, files that this thread opens count as the harness's, not the training's."""

    def __enter__(self) -> None:
        if _outside is not None:
            _outside.surveyor = get_ident()

    def __exit__(self, *_: object) -> None:
        if _outside is not None:
            _outside.surveyor = None


def tell_held() -> None:
    """Look at the files that are open now, whatever code opened them."""
    if _outside is not None:
        _outside.held()


def tell_saved() -> None:
    """Look for states that the script has saved so far."""
    if _outside is not None:
        _outside.saved()


def _mapped() -> Iterator[str]:
    """Yield mapped files, except those mapped both shared and writable."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:  # noqa: PTH123 - as above
        for line in maps:
            _, modes, *_, path = line.rstrip("\n").split(maxsplit=5)
            if path.startswith(os.sep) and (modes[3:] == "p" or modes.startswith("r--")):
                yield path


def _open() -> Iterator[str]:
    """Yield files that are open for reading only."""
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - as above
        try:
            path = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 - as above
            with open(f"/proc/self/fdinfo/{number}", encoding="ascii") as about:  # noqa: PTH123 - as above
                flags = int(about.read().partition("flags:")[2].split()[0], 8)
        except OSError:
            # the descriptor of the listing itself is closed by now
            continue
        if path.startswith(os.sep) and flags & os.O_ACCMODE == os.O_RDONLY:
            yield path


def _folders_of_the_run(environ: Mapping[str, str]) -> Iterable[str]:
    """Return path prefixes of files that only the run itself can have written."""
    given = [environ.get(name, "") for name in ("HOME", "TMPDIR", "REPRO_GATE_OUT")]
    return _below([*given, *map(os.path.realpath, filter(None, given))])


def _passed_over(tree: str, environ: Mapping[str, str], declared: list[str]) -> Iterable[str]:
    """Return path prefixes of files that are no data, or declared."""
    # installed packages and the harness; other search paths are no recorded environment
    imported = [
        entry
        for entry in sys.path
        if entry.endswith(INSTALLED) and not tree.startswith(_folder(entry))
    ]
    imported.append(os.path.dirname(__file__.rpartition(f"{os.sep}sources")[0]))  # noqa: PTH120 - as above
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    data = environ.get("REPRO_GATE_DATA", "")
    several = [*imported, data, *declared, *prefixes.difference(COMMON_PREFIXES)]
    roots = [*SYSTEM, *several, *map(os.path.realpath, filter(None, several))]
    for prefix in COMMON_PREFIXES:
        roots += [f"{prefix}/{name}" for name in OF_A_PREFIX]
        roots += [f"{prefix}/share/{name}" for name in SHARED]
    # also with a version as its suffix
    return (*_below(roots), "/usr/local/cuda-")


def _below(roots: Iterable[str]) -> Iterable[str]:
    absolute = (root for root in roots if root.startswith(os.sep) and root.strip(os.sep))
    return dict.fromkeys(_folder(os.path.normpath(root)) for root in absolute)


def _folder(path: str) -> str:
    return path.rstrip(os.sep) + os.sep


def _short(path: str) -> str:
    """Return the path, or its innermost folder whose path is short enough."""
    while len(path) > MAX_PATH:
        path = _folder(os.path.dirname(path.rstrip(os.sep)))  # noqa: PTH120 - as above
    return path
