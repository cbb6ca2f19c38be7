"""What other accounts may read and write while untrusted code runs.

A separate account does not keep a training from files that everybody may read: the runner's
temporary folder (newer checkouts keep the token there), its command files, the event, the clone's
`.git`, the evidence of an earlier run. Permissions are used, not Landlock: every kernel and every
file system has them, and should the gate be killed before it gives the access back, whoever owns
the place still has it.
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
# the kernel's own files; devices are no places
NOT_ENTERED = frozenset(map(Path, ("/proc", "/sys", "/dev")))
KINDS = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISFIFO)
GONE = suppress(FileNotFoundError)
EVERYWHERE = (*SHARED_FOLDERS, Path("/"))


@dataclass(frozen=True, kw_only=True, slots=True)
class WritablePaths:
    """What was found; `complete` is False when there were more entries than are looked at."""

    paths: tuple[Path, ...]
    complete: bool = True

    def below(self, folder: Path) -> bool:
        """Whether there may be one below a folder."""
        return not self.complete or any(path.is_relative_to(folder) for path in self.paths)


def find_writable_paths(
    tops: Iterable[Path], groups: Collection[int] = (), *, max_entries: int = MAX_ENTRIES
) -> WritablePaths:
    """Look below folders for what other accounts can reach and write; no link is followed.

    `groups` are those that the account has: what one of them can write is open to it as well.

    Left out are folders that `residue.py` empties after every run, and what it finds in them.
    Nearer ones are looked at first, so that a limit cuts off what lies deep.
    """
    look = _Look(max_entries, groups)
    # breadth first: what lies near the top is found by most programs
    pending = deque(dict.fromkeys(tops))
    while pending and look.seen <= max_entries:
        pending += look.inside(pending.popleft())
    return WritablePaths(paths=tuple(sorted(look.restricted)), complete=look.complete)


class _Look:
    """What was found so far."""

    def __init__(self, max_entries: int, groups: Collection[int]) -> None:
        self._groups = groups
        self.restricted: list[Path] = []
        self.seen = 0
        self.complete = True
        self._max_entries = max_entries
        self._emptied = {*FILE_FOLDERS, *SHARED_FOLDERS}

    def inside(self, folder: Path) -> list[Path]:
        """Judge what is in a folder; the folders in it that are to be looked into."""
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
            # gone meanwhile, or of a file system that keeps even root out
            pass
        except OSError:
            self.complete = False
        return further

    def _judge(self, path: Path, facts: os.stat_result, parent: int) -> bool:
        """Note a place that is open to all; whether it is a folder that is to be looked into."""
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
        # permissions of a read-only file system open nothing
        if os.fstatvfs(parent).f_flag & os.ST_RDONLY:
            return stat.S_ISDIR(facts.st_mode)
        self.restricted.append(path)
        return False


def _can_write(facts: os.stat_result, *, by_group: bool = False) -> bool:
    """Whether every account can, or each of the file's group."""
    needed = stat.S_IWOTH | (stat.S_IXOTH if stat.S_ISDIR(facts.st_mode) else 0)
    mode = facts.st_mode >> 3 if by_group else facts.st_mode
    return any(kind(facts.st_mode) for kind in KINDS) and mode & needed == needed


def _is_roots_folder(facts: os.stat_result) -> bool:
    return facts.st_uid == 0 and stat.S_ISDIR(facts.st_mode)


# O_NONBLOCK: opening a FIFO must not wait for a writer.
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
ALL_ACCESS = stat.S_IRWXO
ALL_BUT_PASSING = stat.S_IROTH | stat.S_IWOTH
# where a container of GitHub's runner has its command files, its event, its temporary files
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
# what programs keep logins in, below the home of the gate's account
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
# no file there is data, and some hold what other processes have in memory
KERNELS = (Path("/proc"), Path("/sys"))
# google-github-actions/auth leaves such a file in the workspace
CREDENTIAL_FILES = "gha-creds-*.json"


def secret_paths(top: Path, variables: Mapping[str, str]) -> tuple[Path, ...]:
    """What a training in a clone at `top` must not read; on a runner, the runner's places too."""
    places = [top / ".git", *sorted(top.glob(CREDENTIAL_FILES))]
    if variables.get("GITHUB_ACTIONS") == "true":
        named = {name: Path(variables[name]) for name in variables if variables[name]}
        # one that every account uses stays open: other programs, and other gates, are in it
        folders = [named[name] for name in RUNNERS_FOLDERS if name in named]
        places += [folder for folder in folders if folder not in SHARED_FOLDERS]
        files = {named[name] for name in RUNNERS_FILES if name in named}
        places += sorted({file if file.parent in SHARED_FOLDERS else file.parent for file in files})
        places += [named[name] for name in LOGIN_FILES if name in named]
    # a home that holds the clone too, `/` at worst, would take the whole system along
    apart = [place for place in places if not top.is_relative_to(place)]
    return tuple(place for place in apart if not place.is_symlink())


def places_without_data(top: Path, variables: Mapping[str, str]) -> tuple[Path, ...]:
    """What no declared data may be, contain or be inside of: closed places, logins, the kernel's.

    Data is shown to the training at a path of its own, whatever the folders above it let pass.
    """
    home = Path(variables.get("HOME") or "/")
    logins = tuple(home / name for name in LOGINS) if home != Path("/") else ()
    return (*secret_paths(top, variables), *logins, *KERNELS)


@contextmanager
def restrict_access(
    places: Iterable[Path], way: Path, interrupts: StopSignals, groups: Collection[int] = ()
) -> Iterator[None]:
    """Keep the paths closed while the body runs; restored on every way out.

    They are closed to the accounts of `groups` too: the training has these. See
    `RestrictedPaths.close`; raises `RunError` as that does, with nothing left closed.
    """
    closed = RestrictedPaths(groups)
    with interrupts.last_resort(closed.give_back):
        try:
            closed.close(places, way)
            yield
        finally:
            # a stop between two of them would leave the rest closed for good
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
    """The access that was taken off a file or folder, which its two numbers identify."""

    path: Path
    identity: tuple[int, int]
    access: int


class RestrictedPaths:
    """Closes paths, and remembers what to restore."""

    def __init__(self, groups: Collection[int] = ()) -> None:
        """`groups` are others as well: whoever is in one of them is kept out."""
        self._groups = groups
        self._taken: list[Taken] = []

    def close(self, places: Iterable[Path], way: Path) -> None:
        """Take other accounts' access off each place; what `way` is in stays passable.

        In such a folder all is closed but the next step of the way, down to `way` itself. What is
        not there is left alone, and so is what is neither file nor folder, such as a link. Raises
        `RunError` when access cannot be taken: a secret would stay readable.
        """
        goal = Path(os.path.realpath(way))
        pending = [Path(os.path.realpath(place)) for place in places]
        while pending:
            path = pending.pop()
            try:
                # nothing of the training's is below: all access of others goes
                if not goal.is_relative_to(path):
                    self._take(path, ALL_ACCESS)
                elif path != goal:
                    # it is a parent of the work tree: others may pass (x) but neither list it (r)
                    # nor add to it (w)
                    self._take(path, ALL_BUT_PASSING)
                    pending += [path / name for name in _names(path)]
            except OSError as error:
                raise _cannot_close(path, error) from error

    def _take(self, path: Path, unwanted: int) -> None:
        with _opened(path) as descriptor:
            facts = None if descriptor is None else os.fstat(descriptor)
            if facts is not None and facts.st_gid in self._groups:
                # the same bits of the group, three places up
                unwanted |= unwanted << 3
            if descriptor is None or facts is None or not facts.st_mode & unwanted:
                return
            # noted before it is done: a signal may come at any time
            self._taken.append(
                Taken(path=path, identity=_identity(facts), access=facts.st_mode & unwanted)
            )
            # by descriptor: a path could have become a link to another file since the look
            os.fchmod(descriptor, stat.S_IMODE(facts.st_mode) & ~unwanted)

    def give_back(self) -> list[Path]:
        """Put the access back wherever the same file or folder still lies; where it cannot.

        It raises nothing and may be called twice: a second signal calls it in the midst of things.
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
        # device and inode: a file that has since taken the path is given no access
        if _identity(facts) == taken.identity and taken.access & ~facts.st_mode:
            os.fchmod(descriptor, stat.S_IMODE(facts.st_mode) | taken.access)


def _names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """A descriptor of a regular file or a folder, or None: a device is not even opened."""
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
