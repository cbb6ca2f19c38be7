"""The one way to change the file system: below the top of a checkout no link is followed.

A commit may hold a link of any name, so a path below a checkout may lead anywhere. Each folder on
the way is opened by itself, from the root, and what is changed is named relative to the last one:
so it is the folder that was looked at, whatever takes its name meanwhile. A link above every
checkout is the machine's own, such as `/var` on some machines or a home on another disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from gate.errors import StorageError
from gate.text.untrusted_text import safe_line

# linux/fs.h; the same number on x86_64 and aarch64
FICLONE: Final = 0x40049409
CHUNK_BYTES: Final = 64 * 1024 * 1024
READ_BYTES: Final = 1024 * 1024
# of a system, or of two file systems, that cannot; anything else is a fault of the disk
CANNOT: Final = {
    errno.EBADF,
    errno.EINVAL,
    errno.ENOSYS,
    errno.ENOTTY,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.ETXTBSY,
    errno.EXDEV,
}


def share_bytes(source: int, target: int) -> bool:
    """Let an empty file have all bytes of another, by descriptors; False where they must be copied.

    Raises `OSError` when the disk fails or is full.
    """
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError as error:
        if error.errno in CANNOT:
            return False
        raise
    return True


def shared_or_copied(source: int, target: int) -> Iterator[int]:
    """Fill an empty file with the rest of another; the bytes of each piece, after it was written.

    Both are as independent as two copies: a file system that shares bytes (btrfs, XFS, overlays on
    them) gives the first writer bytes of its own. Raises `OSError` when the disk fails or is
    full.
    """
    if share_bytes(source, target):
        yield os.fstat(target).st_size
        return
    yield from _copied_by_the_kernel(source, target)
    # what it left: on some file systems it stops early, or does nothing, without an error
    while data := os.read(source, READ_BYTES):
        write_all(target, data)
        yield len(data)


def write_all(target: int, data: bytes) -> None:
    """All of it: a single call may write less."""
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


def _copied_by_the_kernel(source: int, target: int) -> Iterator[int]:
    try:
        while copied := os.copy_file_range(source, target, CHUNK_BYTES):
            yield copied
    except OSError as error:
        if error.errno not in CANNOT:
            raise


# enough to name what is in a folder, and asks for no more permission than to enter it (open(2))
ENTERED: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
REPLACED_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
NEVER_FOLLOWED: Final = os.O_NOFOLLOW | os.O_CLOEXEC
# as many as the kernel follows (path_resolution(7))
MAX_LINKS: Final = 40
# PATH_MAX in linux/limits.h, the zero at its end included
MAX_PATH_BYTES: Final = 4096
MAX_PREFIX: Final = 50
CHECKOUT: Final = ".git"


class _Way:
    """The folders entered so far; `top` is how many lead to the outermost checkout, if one does."""

    def __init__(self) -> None:
        self.folder = os.open("/", ENTERED)
        self.names: list[str] = []
        self.top: int | None = None
        self._links = 0

    def enter(self, name: str) -> None:
        """One folder further; raises `OSError`, for a link too."""
        self._move(os.open(name, ENTERED, dir_fd=self.folder))
        self.names.append(name)
        if self.top is None and _is_there(CHECKOUT, self.folder):
            self.top = len(self.names)

    def leave(self) -> None:
        """To the folder above; that of the root is the root."""
        self._move(os.open("..", ENTERED, dir_fd=self.folder))
        del self.names[-1:]
        if self.top is not None and len(self.names) < self.top:
            self.top = None

    def destination(self, name: str) -> str | None:
        """Where a link of that name leads; None for what is no link.

        Raises `StorageError` for one below a checkout.
        """
        try:
            text = os.readlink(name, dir_fd=self.folder)
        except OSError:
            return None
        if self.top is not None:
            raise _through_a_link([*self.names, name], self.top)
        self._links += 1
        if self._links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return text

    def restart(self) -> None:
        """Back to the root."""
        self._move(os.open("/", ENTERED))
        self.names.clear()
        self.top = None

    def _move(self, folder: int) -> None:
        os.close(self.folder)
        self.folder = folder


@contextmanager
def entered(path: Path, *, make: bool = False) -> Iterator[int]:
    """A descriptor of a folder to name things in; with `make` what is missing on the way is made.

    Raises `OSError`, and `StorageError` for a link below a checkout.
    """
    way = _Way()
    try:
        _go(way, path, make=make)
        yield way.folder
    finally:
        os.close(way.folder)


def _go(way: _Way, path: Path, *, make: bool) -> None:
    # as for any call of the system: a walk down a path takes time for each of its folders
    if len(os.fsencode(path)) >= MAX_PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    waiting = list(reversed(path.absolute().parts[1:]))
    while waiting:
        name = waiting.pop()
        if name == "..":
            way.leave()
            continue
        try:
            way.enter(name)
        except OSError as error:
            if error.errno == errno.ENOENT and make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=way.folder)
                # entered in the next round: another may have put something else there
                waiting.append(name)
                continue
            link = way.destination(name) if error.errno in {errno.ENOTDIR, errno.ELOOP} else None
            if link is None:
                raise
            if link.startswith("/"):
                way.restart()
            parts = PurePosixPath(link).parts
            waiting += reversed(parts[1:] if link.startswith("/") else parts)


@contextmanager
def holder(path: Path, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """The folder that holds a path, as a descriptor, and the path's name in it."""
    if path.name in {"", ".."}:
        raise OSError(errno.EINVAL, "no name of a file")
    with entered(path.parent, make=make) as folder:
        yield folder, path.name


def refuse_brought_link(path: Path) -> None:
    """`StorageError` where a path is a link below a checkout, or leads through one."""
    way = _Way()
    try:
        with suppress(OSError):
            _go(way, path, make=False)
    finally:
        os.close(way.folder)


def make_folders(path: Path) -> None:
    """A folder and those above it, as needed; one that is there stays as it is."""
    with entered(path, make=True):
        pass


def new_folder(path: Path, *, mode: int = 0o777) -> None:
    """A folder that must not be there yet, in one that is; `mode` under the account's mask."""
    with holder(path) as (folder, name):
        os.mkdir(name, mode, dir_fd=folder)


@contextmanager
def new_file(path: Path | str, mode: int, *, within: int | None = None) -> Iterator[int]:
    """A descriptor of a file that must not be there yet; gone again when the body fails.

    With `within`, the descriptor of a folder, `path` is a name in that.
    """
    if within is None:
        with holder(Path(path)) as (folder, name), new_file(name, mode, within=folder) as opened:
            yield opened
        return
    # O_EXCL follows no link either (open(2)); closed to others until it is whole
    descriptor = os.open(path, NEW_FILE, 0o600, dir_fd=within)
    try:
        yield descriptor
        os.fchmod(descriptor, mode)
    except BaseException:
        os.unlink(path, dir_fd=within)
        raise
    finally:
        os.close(descriptor)


def write_new(path: Path, chunks: Iterable[bytes], mode: int, *, make: bool = False) -> None:
    """Write a file that must not be there yet, with exactly these permissions."""
    with (
        holder(path, make=make) as (folder, name),
        new_file(name, mode, within=folder) as descriptor,
    ):
        for chunk in chunks:
            write_all(descriptor, chunk)


def write_whole(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Make a small file or overwrite one; `replacing` is for what must never be half there."""
    descriptor = open_file(path, REPLACED_FILE, mode)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def open_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """`open(2)` in the entered folder, without following a link; the caller closes it."""
    with holder(path) as (folder, name):
        return os.open(name, flags | NEVER_FOLLOWED, mode, dir_fd=folder)


@contextmanager
def replacing(path: Path, mode: int) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the body ends well, and else is gone."""
    with holder(path, make=True) as (folder, name):
        temporary = f".{name[:MAX_PREFIX]}.{secrets.token_hex(8)}"
        descriptor = os.open(temporary, NEW_FILE, 0o600, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fchmod(descriptor, mode)
                # before the rename: else a crash may leave the new name without the new content
                os.fsync(descriptor)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            # gone when it became the file
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
        _reach_the_disk(folder)


def _reach_the_disk(folder: int) -> None:
    """The rename itself is an entry of the folder, which has to reach the disk too (fsync(2))."""
    opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def remove(path: Path) -> None:
    """Remove a file or a link itself; nothing there is fine, and so is not a folder above it."""
    with suppress(FileNotFoundError), holder(path) as (folder, name):
        os.unlink(name, dir_fd=folder)


def rename(source: Path, target: Path, *, make: bool = False) -> None:
    """Give something another name on the same disk; a file that is there is replaced."""
    with holder(target, make=make) as (there, new), holder(source) as (here, old):
        os.rename(old, new, src_dir_fd=here, dst_dir_fd=there)


def symbolic_link(path: Path, destination: str, *, make: bool = False) -> None:
    """A link that must not be there yet; where it leads is not looked at."""
    with holder(path, make=make) as (folder, name):
        os.symlink(destination, name, dir_fd=folder)


def second_name(source: Path, target: Path) -> None:
    """A hard link; of a link, the link itself."""
    with holder(source) as (here, old), holder(target) as (there, new):
        os.link(old, new, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)


def set_mode(path: Path, mode: int) -> None:
    """The permissions of a file or a folder; `OSError` for a link."""
    with holder(path) as (folder, name):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        os.chmod(name, mode, dir_fd=folder)


def set_time_to_now(path: Path) -> None:
    """The time of modification of a file; of a link, its own."""
    with holder(path) as (folder, name):
        os.utime(name, dir_fd=folder, follow_symlinks=False)


def _is_there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


def _through_a_link(names: list[str], top: int) -> StorageError:
    link = Path("/", *names)
    checkout = Path("/", *names[:top])
    return StorageError(
        f"{safe_line(str(link.relative_to(checkout)))} is a link in the checkout "
        f"{safe_line(str(checkout))}: nothing is written or removed through it",
        hint="Remove the link from the commit, or name the folder that it leads to.",
    )
