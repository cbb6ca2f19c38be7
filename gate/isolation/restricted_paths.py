"""Limits what other accounts can read and write while untrusted code runs.

A separate account does not keep a training from files that everybody may read (rule T1). Such files
are the runner's temporary folder (newer checkouts keep the token there), its command files, the
event, the clone's `.git`, and the evidence of an earlier run. The gate uses permissions and not
Landlock for this, because every kernel and file system has them. If the gate is killed before it
restores the access, the owner of a file still has access.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gate.errors import RunError, StorageError
from gate.isolation.accounts import FILE_FOLDERS, SHARED_FOLDERS
from gate.isolation.stop_signals import StopSignals
from gate.system.files.trees import open_folder
from gate.text.untrusted_text import safe_line

MAX_ENTRIES = 50_000
# the kernel's own files; devices are not places to leave data in
NOT_ENTERED = frozenset(map(Path, ("/proc", "/sys", "/dev")))
KINDS = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISFIFO)
GONE = suppress(FileNotFoundError)
EVERYWHERE = (*SHARED_FOLDERS, Path("/"))


@dataclass(frozen=True, kw_only=True, slots=True)
class WritablePaths:
    """What other accounts can write; `complete` is False if the search stopped at its limit."""

    paths: tuple[Path, ...]
    complete: bool = True

    def below(self, folder: Path) -> bool:
        """Return whether there is, or may be, such a path below a folder."""
        return not self.complete or any(path.is_relative_to(folder) for path in self.paths)


def find_writable_paths(
    tops: Iterable[Path], groups: Collection[int] = (), *, max_entries: int = MAX_ENTRIES
) -> WritablePaths:
    """Return what other accounts can reach and write below these folders; follow no link.

    `groups` are the account's groups; what one of them can write counts too. Left out are folders
    that `accounts.py` empties after every run, and what is in them. Folders near the top come
    first, so that a limit cuts off the deepest.
    """
    look = _Look(max_entries, groups)
    # breadth first: files near the top are those that most programs would find
    pending = deque(dict.fromkeys(tops))
    while pending and look.seen <= max_entries:
        pending += look.inside(pending.popleft())
    return WritablePaths(paths=tuple(sorted(look.restricted)), complete=look.complete)


class _Look:
    """The state of one search."""

    def __init__(self, max_entries: int, groups: Collection[int]) -> None:
        self._groups = groups
        self.restricted: list[Path] = []
        self.seen = 0
        self.complete = True
        self._max_entries = max_entries
        self._emptied = {*FILE_FOLDERS, *SHARED_FOLDERS}

    def inside(self, folder: Path) -> list[Path]:
        """Check the entries of a folder; return the folders in it that are to be searched."""
        further: list[Path] = []
        try:
            with open_folder(folder) as descriptor, os.scandir(descriptor) as entries:
                for entry in entries:
                    self.seen += 1
                    if self.seen > self._max_entries:
                        self.complete = False
                        break
                    with GONE:
                        facts = entry.stat(follow_symlinks=False)
                        if self._judge(folder / entry.name, facts, descriptor):
                            further.append(folder / entry.name)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            # gone meanwhile, or on a file system that denies even root
            pass
        except OSError:
            self.complete = False
        return further

    def _judge(self, path: Path, facts: os.stat_result, parent: int) -> bool:
        """Record a path that others can write; return whether it is a folder to be searched."""
        if path in NOT_ENTERED or path in self._emptied:
            return False
        by_group = facts.st_gid in self._groups
        if _can_write(facts):
            if path.parent in self._emptied and _is_roots_folder(facts):
                self._emptied.add(path)
                return True
        elif not (by_group and _can_write(facts, by_group=True)):
            entered = stat.S_IXOTH | (stat.S_IXGRP if by_group else 0)
            return stat.S_ISDIR(facts.st_mode) and bool(facts.st_mode & entered)
        # on a read-only file system the permissions allow no write
        if os.fstatvfs(parent).f_flag & os.ST_RDONLY:
            return stat.S_ISDIR(facts.st_mode)
        self.restricted.append(path)
        return False


def _can_write(facts: os.stat_result, *, by_group: bool = False) -> bool:
    """Return whether every account can write it, or with `by_group` every member of its group."""
    needed = stat.S_IWOTH | (stat.S_IXOTH if stat.S_ISDIR(facts.st_mode) else 0)
    mode = facts.st_mode >> 3 if by_group else facts.st_mode
    return any(kind(facts.st_mode) for kind in KINDS) and mode & needed == needed


def _is_roots_folder(facts: os.stat_result) -> bool:
    return facts.st_uid == 0 and stat.S_ISDIR(facts.st_mode)


# O_NONBLOCK: opening a FIFO must not wait for a writer.
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
ALL_ACCESS = stat.S_IRWXO
ALL_BUT_PASSING = stat.S_IROTH | stat.S_IWOTH
# variables that name the runner's folders and command files, also in a container of GitHub's
RUNNERS_FOLDERS = ("RUNNER_TEMP", "HOME")
RUNNERS_FILES = (
    "GITHUB_ENV",
    "GITHUB_EVENT_PATH",
    "GITHUB_OUTPUT",
    "GITHUB_PATH",
    "GITHUB_STATE",
    "GITHUB_STEP_SUMMARY",
)
# variables that name a file with the login of a package index, wherever it is
LOGIN_FILES = ("NETRC", "PIP_CONFIG_FILE", "PIP_CLIENT_CERT")
# where programs keep logins, below the home folder of the gate's account
LOGINS = (
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/gh",
    ".docker",
    ".git-credentials",
    ".kube",
    ".netrc",
    ".pypirc",
    ".ssh",
)
# no file there is data, and some show the memory of other processes
KERNELS = (Path("/proc"), Path("/sys"))
# google-github-actions/auth leaves such a file in the workspace
CREDENTIAL_FILES = "gha-creds-*.json"


def secret_paths(top: Path, variables: Mapping[str, str]) -> tuple[Path, ...]:
    """Return what a training in a clone at `top` must not read, including the runner's places."""
    places = [top / ".git", *sorted(top.glob(CREDENTIAL_FILES))]
    if variables.get("GITHUB_ACTIONS") == "true":
        named = {name: Path(variables[name]) for name in variables if variables[name]}
        # a folder that every account uses stays open: other programs and other gates use it
        folders = [named[name] for name in RUNNERS_FOLDERS if name in named]
        places += [folder for folder in folders if folder not in SHARED_FOLDERS]
        files = {named[name] for name in RUNNERS_FILES if name in named}
        places += sorted({file if file.parent in SHARED_FOLDERS else file.parent for file in files})
        places += [named[name] for name in LOGIN_FILES if name in named]
    # closing a home folder that contains the clone, `/` at worst, would close the whole system
    apart = [place for place in places if not top.is_relative_to(place)]
    return tuple(place for place in apart if not place.is_symlink())


def places_without_data(top: Path, variables: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the places that declared data must not be, contain or be in, such as secrets.

    These are closed places, folders with logins, and the kernel's files. The check is needed
    because a training sees its data at another path, where the permissions of the folders above it
    do not apply.
    """
    home = Path(variables.get("HOME") or "/")
    logins = tuple(home / name for name in LOGINS) if home != Path("/") else ()
    return (*secret_paths(top, variables), *logins, *KERNELS)


@contextmanager
def restrict_access(
    places: Iterable[Path], way: Path, interrupts: StopSignals, groups: Collection[int] = ()
) -> Iterator[None]:
    """Keep paths closed to other accounts while the body runs, and restore them on every way out.

    Members of `groups` are shut out too, because the training is in these groups. Raises `RunError`
    as `RestrictedPaths.close` does, with nothing left closed, and `StorageError` if access cannot
    be restored.
    """
    closed = RestrictedPaths(groups)
    with interrupts.last_resort(closed.give_back):
        try:
            closed.close(places, way)
            yield
        finally:
            # a stop between two paths would leave the rest closed for good
            with interrupts.deferred():
                still_closed = closed.give_back()
        if still_closed:
            raise StorageError(
                f"{safe_line(str(still_closed[0]))} was closed to other accounts and its "
                f"permissions cannot be restored",
                hint="Restore them by hand (chmod o+rX).",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """The access that was removed from a file or folder.

    `identity` is its device and inode number.
    """

    path: Path
    identity: tuple[int, int]
    access: int


class RestrictedPaths:
    """Closes paths to other accounts, and remembers what to restore."""

    def __init__(self, groups: Collection[int] = ()) -> None:
        """Members of `groups` are shut out like others."""
        self._groups = groups
        self._taken: list[Taken] = []

    def close(self, places: Iterable[Path], way: Path) -> None:
        """Remove other accounts' access to each place, but keep the path to `way` passable.

        In a place that contains `way`, everything is closed except the next step towards `way`.
        Missing paths are skipped, and so is what is neither file nor folder, such as a link. Raises
        `RunError` if access cannot be removed, because a secret would stay readable.
        """
        goal = Path(os.path.realpath(way))
        pending = [Path(os.path.realpath(place)) for place in places]
        while pending:
            path = pending.pop()
            try:
                # nothing of the training is below, so remove all access of others
                if not goal.is_relative_to(path):
                    self._take(path, ALL_ACCESS)
                elif path != goal:
                    # a parent of the work tree: others may pass through (x) but neither list (r)
                    # nor add (w)
                    self._take(path, ALL_BUT_PASSING)
                    pending += [path / name for name in _names(path)]
            except OSError as error:
                raise _cannot_close(path, error) from error

    def _take(self, path: Path, unwanted: int) -> None:
        with _opened(path) as descriptor:
            facts = None if descriptor is None else os.fstat(descriptor)
            if facts is not None and facts.st_gid in self._groups:
                # the group's bits are the same three, shifted by three
                unwanted |= unwanted << 3
            if descriptor is None or facts is None or not facts.st_mode & unwanted:
                return
            # recorded before the change, because a signal may come at any time
            self._taken.append(
                Taken(path=path, identity=_identity(facts), access=facts.st_mode & unwanted)
            )
            # by descriptor: since the check the path could have become a link to another file
            os.fchmod(descriptor, stat.S_IMODE(facts.st_mode) & ~unwanted)

    def give_back(self) -> list[Path]:
        """Restore the access of each file or folder that is still the same; return failed paths.

        It raises nothing and may run twice: a second signal calls it in the middle of other work.
        """
        failed = []
        for taken in reversed(self._taken):
            try:
                _put_back(taken)
            except OSError:
                failed.append(taken.path)
        return failed


def _put_back(taken: Taken) -> None:
    with _opened(taken.path) as descriptor:
        if descriptor is None:
            return
        facts = os.fstat(descriptor)
        # compare device and inode: a file that has since replaced the path gets no access
        if _identity(facts) == taken.identity and taken.access & ~facts.st_mode:
            os.fchmod(descriptor, stat.S_IMODE(facts.st_mode) | taken.access)


def _names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """Yield a descriptor of a regular file or folder, or None; a device is never opened."""
    try:
        mode = os.lstat(path).st_mode
        known = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        descriptor = os.open(path, OPEN_FLAGS) if known else None
    except FileNotFoundError:
        descriptor = None
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino


def _cannot_close(path: Path, error: OSError) -> RunError:
    return RunError(
        f"cannot close {safe_line(str(path))} to the training: {error.strerror}",
        hint="The gate must own it or hold CAP_FOWNER, and its disk must be writable; otherwise "
        "the training could read it.",
    )
