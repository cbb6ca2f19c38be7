"""Copy, give away and remove whole folders, without recursion and without following a link.

A training may leave folders of any depth and with any permissions. Nothing here recurses, so depth
costs neither stack nor open descriptors.
"""

from __future__ import annotations

import errno
import os
import secrets
import shlex
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Final

from gate.errors import StorageError
from gate.system.files import writing
from gate.system.files.regular_files import storage_faults
from gate.system.files.writing import shared_or_copied
from gate.text.untrusted_text import safe_line

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CHUNK_BYTES = 1024 * 1024
LARGE_BYTES = 1024 * 1024
# `set_aside` removes larger folders at once
MAX_ASIDE_BYTES = 1024**3
MAX_ASIDE_ENTRIES = 100_000
# hier(7): folders that only the system's own programs write to
SYSTEM_FOLDERS = tuple(
    Path("/", name)
    for name in (
        "bin",
        "boot",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "proc",
        "run",
        "sbin",
        "sys",
        "usr",
    )
)
FOUND_ON_DISKS = frozenset({"lost+found"})
MAX_NAMES_SEEN = 10_000


@contextmanager
def open_folder(path: str | Path, *, within: int | None = None) -> Iterator[int]:
    """Provide a descriptor of a folder that is not a link.

    `within` is the descriptor of its parent, or None for a path.
    """
    descriptor = os.open(path, FOLDER_FLAGS, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _entered(path: Path) -> Iterator[int]:
    """Provide a descriptor of a folder to change things in, following no link of a checkout."""
    with writing.holder(path) as (above, name), open_folder(name, within=above) as descriptor:
        yield descriptor


@contextmanager
def open_descriptor(name: str | Path, within: int | None) -> Iterator[int]:
    """Provide a descriptor of a file that is not a link; does not wait for a FIFO's writer."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def chunks_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the rest of a file in pieces."""
    return iter(lambda: file.read(CHUNK_BYTES), b"")


class _Room:
    """Counts how many bytes a copy may still take; None is unlimited."""

    def __init__(self, max_bytes: int | None) -> None:
        self._left = max_bytes
        self._most = max_bytes

    def count(self, size_bytes: int, name: str) -> None:
        """Count bytes that were copied; raises `StorageError` above the limit."""
        if self._left is not None:
            self._left -= size_bytes
            if self._left < 0:
                raise StorageError(
                    f"{safe_line(name)}: with it there are more than {self._most:,} bytes",
                    hint="Write less, or raise the limit (preprocess.max_bytes).",
                )


def copy_tree(source: Path, target: Path, *, max_bytes: int | None = None) -> None:
    """Copy regular files and links; raises `StorageError` for sockets, FIFOs and devices."""
    room = _Room(max_bytes)
    with storage_faults("making", target):
        writing.make_folders(target)
    pending = [Path()]
    copied = []
    while pending:
        relative = pending.pop()
        copied.append(relative)
        with storage_faults("copying", source / relative):
            pending += _copy_entries(source / relative, target / relative, relative, room)
    # Innermost first: nothing touches a finished folder again, so its modification time stays.
    for relative in reversed(copied):
        with storage_faults("copying", source / relative):
            _copy_facts(os.lstat(source / relative), target / relative)


def keep_only(folder: Path, keep: Callable[[str], bool]) -> None:
    """Remove every file and link that `keep` rejects, and each folder that is then empty.

    `keep` gets the path relative to `folder`, with slashes. Use this only on a copy that nobody
    else can write to.
    """
    seen, pending = list[Path](), [Path()]
    while pending:
        relative = pending.pop()
        seen.append(relative)
        with storage_faults("removing from", folder / relative):
            pending += _keep_entries(folder / relative, relative, keep)
    # innermost first, and never the folder itself
    for relative in reversed(seen[1:]):
        path = folder / relative
        holder = writing.holder(path)
        # rmdir fails for a folder that is not empty, which is meant to stay
        with storage_faults("removing", path), holder as (above, name), suppress(OSError):
            os.rmdir(name, dir_fd=above)


def _keep_entries(folder: Path, relative: Path, keep: Callable[[str], bool]) -> list[Path]:
    """Remove one folder's rejected files and links; return its sub-folders."""
    folders = []
    with _entered(folder) as there:
        with os.scandir(there) as entries:
            listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, is_folder in listed:
            path = relative / name
            if is_folder:
                folders.append(path)
            elif not keep(path.as_posix()):
                os.unlink(name, dir_fd=there)
    return folders


def _copy_entries(source: Path, target: Path, relative: Path, room: _Room) -> list[Path]:
    """Copy one folder's files and links; return its sub-folders, which are made already."""
    folders = []
    with (
        open_folder(source) as descriptor,
        os.scandir(descriptor) as entries,
        writing.entered(target) as there,
    ):
        for entry in entries:
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode):
                # Writable until it is complete; then `_copy_facts` gives it the source's
                # permissions.
                os.mkdir(entry.name, 0o700, dir_fd=there)
                folders.append(relative / entry.name)
            elif stat.S_ISLNK(facts.st_mode):
                destination = os.readlink(entry.name, dir_fd=descriptor)
                os.symlink(destination, entry.name, dir_fd=there)
            elif stat.S_ISREG(facts.st_mode):
                with open_descriptor(entry.name, descriptor) as file:
                    _copy_file(file, facts, entry.name, there, room)
            else:
                raise StorageError(
                    f"{safe_line(str(source / entry.name))} is neither file, folder nor link",
                    hint="Remove it: sockets, FIFOs and devices cannot be copied.",
                )
    return folders


def _copy_file(source: int, facts: os.stat_result, name: str, folder: int, room: _Room) -> None:
    """Make a new file with the same bytes, permissions and modification time."""
    with writing.new_file(name, facts.st_mode & 0o777, within=folder) as descriptor:
        # counted while copying: the file may grow after its size was read
        for copied in shared_or_copied(source, descriptor):
            room.count(copied, name)
        os.utime(descriptor, ns=(facts.st_mtime_ns, facts.st_mtime_ns))


def _copy_facts(facts: os.stat_result, target: Path) -> None:
    """Set a folder's permissions and modification time, but not setuid and the like."""
    with writing.holder(target) as (above, name):
        # A copy made by root must not carry setuid or setgid.
        os.chmod(name, facts.st_mode & 0o777, dir_fd=above)
        os.utime(name, ns=(facts.st_mtime_ns, facts.st_mtime_ns), dir_fd=above)


def let_read(path: Path) -> None:
    """Make a file or folder readable for every account, and its files read-only; skip links."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        _let_read_file(path, None)
        return
    pending = [path]
    while pending:
        folder = pending.pop()
        with _entered(folder) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(folder / entry.name)
                elif entry.is_file(follow_symlinks=False):
                    _let_read_file(entry.name, descriptor)
            os.fchmod(descriptor, 0o755)


def _let_read_file(name: str | Path, within: int | None) -> None:
    # Through a descriptor, because chmod(2) on a name would follow a link that has replaced the
    # file.
    with open_descriptor(name, within) as descriptor:
        os.fchmod(descriptor, 0o444)


def let_group_read(path: Path, gid: int) -> None:
    """Make the folder's own files and folders readable for a group.

    Left unchanged are:

    - files that everybody can read already;
    - entries of another account than the folder's: a hard link can lead to a file of somebody else;
    - permissions that the owner lacks too;
    - folders too deep for a path.
    """
    owner = os.lstat(path).st_uid
    pending = [path]
    while pending:
        folder = pending.pop()
        if len(os.fsencode(folder)) >= writing.MAX_PATH_BYTES:
            continue
        with _entered(folder) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                facts = entry.stat(follow_symlinks=False)
                if facts.st_uid != owner:
                    continue
                if stat.S_ISDIR(facts.st_mode):
                    pending.append(folder / entry.name)
                elif stat.S_ISREG(facts.st_mode) and not facts.st_mode & stat.S_IROTH:
                    with open_descriptor(entry.name, descriptor) as file:
                        _give_to_group(file, gid)
            _give_to_group(descriptor, gid)


def _give_to_group(descriptor: int, gid: int) -> None:
    """Give the group the owner's read and execute permissions, and remove setuid and the like."""
    mode = os.fstat(descriptor).st_mode
    os.fchown(descriptor, -1, gid)
    of_owner = (mode & stat.S_IRWXU) >> 3
    os.fchmod(descriptor, (mode & 0o707) | (of_owner & (stat.S_IRGRP | stat.S_IXGRP)))


def give_to(path: Path, uid: int, gid: int) -> None:
    """Change the owner of everything in a folder, and of the folder itself last."""
    pending = [path]
    while pending:
        folder = pending.pop()
        with _entered(folder) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(folder / entry.name)
                os.chown(entry.name, uid, gid, dir_fd=descriptor, follow_symlinks=False)
    with writing.holder(path) as (above, name):
        os.chown(name, uid, gid, dir_fd=above, follow_symlinks=False)


def set_aside(path: Path, target: Path) -> None:
    """Rename a folder on the same disk, without its large files, for removal later.

    The removal is put off for the speed of what follows. Where many files were just removed, ext4
    without a journal makes new ones far more slowly. It does not reuse an inode within a minute
    (`recently_deleted` in fs/ext4/ialloc.c).

    The folder above the new name is made if needed, closed to other accounts. A missing `path` is
    no error.
    """
    try:
        bounded = _without_large_files(path)
    except OSError:
        # Too deep, or closed by its owner, so its size is unknown: remove it now.
        bounded = False
    if not bounded:
        remove_tree(path)
        return
    writing.make_folders(target.parent.parent)
    with suppress(FileExistsError):
        writing.new_folder(target.parent, mode=0o700)
    writing.rename(path, target)


def _without_large_files(path: Path) -> bool:
    """Remove the large files; return False if the rest is still too much to keep."""
    pending, size_bytes, count = [path], 0, 0
    while pending:
        folder = pending.pop()
        with _entered(folder) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                count += 1
                size = entry.stat(follow_symlinks=False).st_size
                if entry.is_dir(follow_symlinks=False):
                    pending.append(folder / entry.name)
                elif size > LARGE_BYTES:
                    os.unlink(entry.name, dir_fd=descriptor)
                else:
                    size_bytes += size
                if size_bytes > MAX_ASIDE_BYTES or count > MAX_ASIDE_ENTRIES:
                    return False
    return True


# errors of a removal while somebody still writes into the folder
WRITTEN_INTO: Final = frozenset((errno.ENOTEMPTY, errno.ENOENT))
REMOVE_TRIES: Final = 20
REMOVE_PAUSE_SECONDS: Final = 0.1


def remove_tree(path: Path) -> None:
    """Remove a file, a link or a folder; a missing path is no error.

    A cluster's node may still be writing how its run ended, so removal is retried for two seconds.
    """
    for tries_left in reversed(range(REMOVE_TRIES)):
        try:
            _remove_once(path)
        except OSError as error:
            if error.errno not in WRITTEN_INTO or not tries_left:
                raise
            time.sleep(REMOVE_PAUSE_SECONDS)
        else:
            return


def _remove_once(path: Path) -> None:
    with ExitStack() as ends:
        try:
            above, name = ends.enter_context(writing.holder(path))
            facts = os.stat(name, dir_fd=above, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(facts.st_mode):
            os.unlink(name, dir_fd=above)
            return
        os.chmod(name, 0o700, dir_fd=above)
        _empty(name, above)
        os.rmdir(name, dir_fd=above)


def _empty(name: str, above: int) -> None:
    with open_folder(name, within=above) as top:
        while folders := _remove_files(top, top):
            for moved in folders:
                with open_folder(moved, within=top) as descriptor:
                    _remove_files(descriptor, top)
                os.rmdir(moved, dir_fd=top)


def _remove_files(folder: int, top: int) -> list[str]:
    """Unlink everything but folders; move the folders into `top` and return their new names.

    Every folder is moved up before it is opened, so no path becomes long.
    """
    moved = []
    for name in os.listdir(folder):
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)
            continue
        # removing entries needs write permission, which the training may have taken away
        os.chmod(name, 0o700, dir_fd=folder)
        # A random name, so that the training cannot have made a folder of this name in `top`.
        unused = name if folder == top else secrets.token_hex(16)
        os.rename(name, unused, src_dir_fd=folder, dst_dir_fd=top)
        moved.append(unused)
    return moved


def make_named_folder(path: Path, mode: int, *, is_ours: Callable[[frozenset[str]], bool]) -> None:
    """Make a folder that the settings name; an existing one must be empty or the gate's own.

    The settings may name any path, and the gate may be root. So only the last folder is made, never
    inside the system's folders, and a folder with other files is left alone. `is_ours` gets the
    names in a folder that is not empty. Raises `StorageError` and `OSError`.
    """
    shown = safe_line(str(path))
    real = Path(os.path.realpath(path))
    system = next((folder for folder in SYSTEM_FOLDERS if real.is_relative_to(folder)), None)
    if system is not None:
        raise StorageError(
            f"{shown} is inside {system}, which belongs to the system",
            hint="Name a folder of its own elsewhere, such as /var/cache/repro-gate.",
        )
    if not os.path.lexists(path):
        try:
            writing.new_folder(path, mode=mode)
        except FileNotFoundError as error:
            raise StorageError(
                f"{shown} cannot be made: there is no {safe_line(str(path.parent))}",
                hint=f"Make the folder as the gate's account: mkdir -p {shlex.quote(shown)}",
            ) from error
        except FileExistsError:
            # another gate has made it in the meantime
            return
        # mkdir's mode is reduced by the account's umask
        writing.set_mode(path, mode)
        return
    with os.scandir(path) as entries:
        names = frozenset(entry.name for entry in islice(entries, MAX_NAMES_SEEN)) - FOUND_ON_DISKS
    if names and not is_ours(names):
        raise StorageError(
            f"{shown} contains other files, such as {safe_line(min(names))}",
            hint="Name an empty folder: the gate removes old entries of its own there.",
        )


def is_private(path: Path) -> bool:
    """Return whether a folder is this account's, and no other account can write to or rename it."""
    own, own_facts = os.geteuid(), os.lstat(path)
    if own_facts.st_uid != own or not _closed(own_facts, sticky=False):
        return False
    above = [os.lstat(folder) for folder in path.absolute().parents]
    return all(facts.st_uid in (own, 0) and _closed(facts, sticky=True) for facts in above)


def _closed(facts: os.stat_result, *, sticky: bool) -> bool:
    """Return whether this is a real folder in which others cannot replace an entry.

    `sticky` also accepts a folder where others may write but not rename (the sticky bit).
    """
    mode = facts.st_mode
    kept = sticky and bool(mode & stat.S_ISVTX)
    return stat.S_ISDIR(mode) and (kept or not mode & (stat.S_IWGRP | stat.S_IWOTH))
