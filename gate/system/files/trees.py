"""Whole folders: copied, given away and removed, without recursion and without following a link.

A training may leave folders of any depth and any permission. Nothing here recurses, so depth costs
neither stack nor descriptors.
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
# beyond these a folder is removed at once
MAX_ASIDE_BYTES = 1024**3
MAX_ASIDE_ENTRIES = 100_000
# hier(7): what only the system's own programs put files in
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
    """A descriptor of a folder that is no link; `within` is the descriptor of its parent."""
    descriptor = os.open(path, FOLDER_FLAGS, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _entered(path: Path) -> Iterator[int]:
    """The same for a folder in which something is changed: no link of a checkout is on the way."""
    with writing.holder(path) as (above, name), open_folder(name, within=above) as descriptor:
        yield descriptor


@contextmanager
def open_descriptor(name: str | Path, within: int | None) -> Iterator[int]:
    """A descriptor of a file that is no link; a FIFO that nobody writes is not waited for."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def chunks_of(file: IO[bytes]) -> Iterator[bytes]:
    """The rest of a file in pieces."""
    return iter(lambda: file.read(CHUNK_BYTES), b"")


class _Room:
    """How many bytes a copy may still take."""

    def __init__(self, max_bytes: int | None) -> None:
        self._left = max_bytes
        self._most = max_bytes

    def count(self, size_bytes: int, name: str) -> None:
        """`StorageError` at the piece that is too much."""
        if self._left is not None:
            self._left -= size_bytes
            if self._left < 0:
                raise StorageError(
                    f"{safe_line(name)}: with it there are more than {self._most:,} bytes",
                    hint="Write less, or raise the limit (preprocess.max_bytes).",
                )


def copy_tree(source: Path, target: Path, *, max_bytes: int | None = None) -> None:
    """Copy regular files and links; anything else (socket, FIFO, device) is refused."""
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
    # innermost first: a finished folder is not touched again, so its time stays
    for relative in reversed(copied):
        with storage_faults("copying", source / relative):
            _copy_facts(os.lstat(source / relative), target / relative)


def keep_only(folder: Path, keep: Callable[[str], bool]) -> None:
    """Remove every file and link that is not to be kept, and each folder that is empty then.

    `keep` is asked with the path from `folder`, slashes between the names. Only for a copy that
    nobody else can write.
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
        # one that is not empty stays
        with storage_faults("removing", path), holder as (above, name), suppress(OSError):
            os.rmdir(name, dir_fd=above)


def _keep_entries(folder: Path, relative: Path, keep: Callable[[str], bool]) -> list[Path]:
    """Remove one folder's files and links that are not kept; answer its sub-folders."""
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
    """Copy one folder's files and links; answer its sub-folders, already made."""
    folders = []
    with (
        open_folder(source) as descriptor,
        os.scandir(descriptor) as entries,
        writing.entered(target) as there,
    ):
        for entry in entries:
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode):
                # writable until all is in it: then `_copy_facts` gives it those of its source
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
    """A new file with the same bytes, permissions and time of modification."""
    with writing.new_file(name, facts.st_mode & 0o777, within=folder) as descriptor:
        for copied in shared_or_copied(source, descriptor):
            room.count(copied, name)
        os.utime(descriptor, ns=(facts.st_mtime_ns, facts.st_mtime_ns))


def _copy_facts(facts: os.stat_result, target: Path) -> None:
    """Permissions and time of modification of a folder; setuid and its like stay behind."""
    with writing.holder(target) as (above, name):
        # a copy that root makes must not carry setuid or setgid
        os.chmod(name, facts.st_mode & 0o777, dir_fd=above)
        os.utime(name, ns=(facts.st_mtime_ns, facts.st_mtime_ns), dir_fd=above)


def let_read(path: Path) -> None:
    """Let every account read, and nobody write files; what is a link stays as it is."""
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
    # through a descriptor: chmod(2) of a name follows a link that came to be there
    with open_descriptor(name, within) as descriptor:
        os.fchmod(descriptor, 0o444)


def let_group_read(path: Path, gid: int) -> None:
    """Let a group read the folder's own files and folders, where not everybody may already.

    What belongs to another account than the folder itself stays as it is: a hard link can lead to
    a file that was never a run's. So does what the owner itself may not read, and what lies so deep
    that no path leads there.
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
    """The group may what the owner may, but for writing; setuid and its like go."""
    mode = os.fstat(descriptor).st_mode
    os.fchown(descriptor, -1, gid)
    of_owner = (mode & stat.S_IRWXU) >> 3
    os.fchmod(descriptor, (mode & 0o707) | (of_owner & (stat.S_IRGRP | stat.S_IXGRP)))


def give_to(path: Path, uid: int, gid: int) -> None:
    """Change the owner of everything in a folder, the folder itself last."""
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
    """Give a folder another name on the same disk, without the large files in it.

    For folders that will be removed later anyway: where many files have just been removed, an ext4
    without a journal makes new ones far more slowly: it gives no inode again within a minute
    (`recently_deleted` in fs/ext4/ialloc.c). No other account can enter the folder above the new
    name where that is made here. Nothing there is fine.
    """
    try:
        bounded = _without_large_files(path)
    except OSError:
        # too deep, or closed by its owner: there may be anything in it
        bounded = False
    if not bounded:
        remove_tree(path)
        return
    writing.make_folders(target.parent.parent)
    with suppress(FileExistsError):
        writing.new_folder(target.parent, mode=0o700)
    writing.rename(path, target)


def _without_large_files(path: Path) -> bool:
    """Remove them; False where what is left is still too much to keep."""
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


# what somebody who still writes into a folder makes of its removal
WRITTEN_INTO: Final = frozenset((errno.ENOTEMPTY, errno.ENOENT))
REMOVE_TRIES: Final = 20
REMOVE_PAUSE_SECONDS: Final = 0.1


def remove_tree(path: Path) -> None:
    """Remove a file, a link or a folder; nothing there is fine.

    A node of a cluster may still write how its run ended, and is given two seconds for that.
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
    """Unlink what is not a folder; bring folders into `top` under new names, and answer them.

    Every folder is moved up before it is opened, so no path ever gets long.
    """
    moved = []
    for name in os.listdir(folder):
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)
            continue
        os.chmod(name, 0o700, dir_fd=folder)
        # a name that the training cannot have guessed, so it is free in `top`
        unused = name if folder == top else secrets.token_hex(16)
        os.rename(name, unused, src_dir_fd=folder, dst_dir_fd=top)
        moved.append(unused)
    return moved


def make_named_folder(path: Path, mode: int, *, is_ours: Callable[[frozenset[str]], bool]) -> None:
    """Have a folder that settings name; what is there already must be empty or ours.

    Settings may name any path, and the gate may be root: so only the last folder is made, never
    among the system's own files, and a folder that holds something else is left alone. `is_ours`
    is asked with the names in a folder that is not empty. Raises `StorageError` and `OSError`.
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
            # another gate was faster
            return
        # whatever the account's umask says
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
    """Whether a folder is this account's, and no other may write in it or give it another name."""
    own, own_facts = os.geteuid(), os.lstat(path)
    if own_facts.st_uid != own or not _closed(own_facts, sticky=False):
        return False
    above = [os.lstat(folder) for folder in path.absolute().parents]
    return all(facts.st_uid in (own, 0) and _closed(facts, sticky=True) for facts in above)


def _closed(facts: os.stat_result, *, sticky: bool) -> bool:
    """A real folder that others may not write in; a `sticky` one holds what they may not rename."""
    mode = facts.st_mode
    kept = sticky and bool(mode & stat.S_ISVTX)
    return stat.S_ISDIR(mode) and (kept or not mode & (stat.S_IWGRP | stat.S_IWOTH))
