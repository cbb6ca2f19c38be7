"""The only way in which the gate changes the file system: inside a checkout no link is followed.

A commit may contain a link of any name, so a path inside a checkout could lead anywhere. Therefore
each folder of a path is opened separately, from the root, and changes are made relative to the last
descriptor. That is the folder which was checked, even if another one takes its name meanwhile.
Links above every checkout are followed: they are the machine's own, such as `/var` on some machines
or a home on another disk.
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

# from linux/fs.h; the same number on x86_64 and aarch64
FICLONE: Final = 0x40049409
CHUNK_BYTES: Final = 64 * 1024 * 1024
READ_BYTES: Final = 1024 * 1024
# Errors of a kernel, or of a pair of file systems, that cannot share bytes. All other errors are
# faults of the disk.
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
    """Make an empty file share another file's bytes; return False if they must be copied.

    Both arguments are descriptors. Raises `OSError` if the disk fails or is full.
    """
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError as error:
        if error.errno in CANNOT:
            return False
        raise
    return True


def shared_or_copied(source: int, target: int) -> Iterator[int]:
    """Fill an empty file with the rest of another; yield the size of each piece after writing it.

    The files stay independent: a file system that shares bytes (btrfs, XFS, overlays on them)
    copies a block when one of the files is written. Raises `OSError` if the disk fails or is full.
    """
    if share_bytes(source, target):
        yield os.fstat(target).st_size
        return
    yield from _copied_by_the_kernel(source, target)
    # The kernel may stop early, or copy nothing, without an error on some file systems; copy the
    # rest here.
    while data := os.read(source, READ_BYTES):
        write_all(target, data)
        yield len(data)


def write_all(target: int, data: bytes) -> None:
    """Write all the data, in several calls if needed: os.write may write less."""
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


# O_PATH suffices to name entries of a folder, and needs no permission but to enter it (open(2)).
ENTERED: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
REPLACED_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
NEVER_FOLLOWED: Final = os.O_NOFOLLOW | os.O_CLOEXEC
# the number of links that the kernel follows in one path (path_resolution(7))
MAX_LINKS: Final = 40
# PATH_MAX in linux/limits.h, which counts the zero byte at the end
MAX_PATH_BYTES: Final = 4096
MAX_PREFIX: Final = 50
CHECKOUT: Final = ".git"


class _Way:
    """A walk from the root; `top` is the depth of the outermost checkout, or None outside one."""

    def __init__(self) -> None:
        self.folder = os.open("/", ENTERED)
        self.names: list[str] = []
        self.top: int | None = None
        self._links = 0

    def enter(self, name: str) -> None:
        """Enter a folder below the current one; raises `OSError` for anything else, a link too."""
        self._move(os.open(name, ENTERED, dir_fd=self.folder))
        self.names.append(name)
        # The outermost checkout counts, so that every link inside it is refused.
        if self.top is None and _is_there(CHECKOUT, self.folder):
            self.top = len(self.names)

    def leave(self) -> None:
        """Go to the folder above; above the root is the root."""
        self._move(os.open("..", ENTERED, dir_fd=self.folder))
        del self.names[-1:]
        if self.top is not None and len(self.names) < self.top:
            self.top = None

    def destination(self, name: str) -> str | None:
        """Return the text of a link in the current folder, or None for anything but a link.

        Raises `StorageError` if the link is inside a checkout.
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
        """Go back to the root."""
        self._move(os.open("/", ENTERED))
        self.names.clear()
        self.top = None

    def _move(self, folder: int) -> None:
        os.close(self.folder)
        self.folder = folder


@contextmanager
def entered(path: Path, *, make: bool = False) -> Iterator[int]:
    """Provide a descriptor of a folder, relative to which entries can be named.

    With `make`, missing folders on the way are made. Raises `OSError`, and `StorageError` for a
    link inside a checkout.
    """
    way = _Way()
    try:
        _go(way, path, make=make)
        yield way.folder
    finally:
        os.close(way.folder)


def _go(way: _Way, path: Path, *, make: bool) -> None:
    # The same limit as a system call has. Without it a very long path would take very long to walk.
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
                # Enter it in the next round with all checks: somebody may have put a link there
                # meanwhile.
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
    """Provide a descriptor of the folder that contains a path, and the path's name in it."""
    if path.name in {"", ".."}:
        raise OSError(errno.EINVAL, "no name of a file")
    with entered(path.parent, make=make) as folder:
        yield folder, path.name


def refuse_brought_link(path: Path) -> None:
    """Raise `StorageError` if a path is, or leads through, a link inside a checkout."""
    way = _Way()
    try:
        with suppress(OSError):
            _go(way, path, make=False)
    finally:
        os.close(way.folder)


def make_folders(path: Path) -> None:
    """Make a folder and the ones above it as needed; existing folders stay unchanged."""
    with entered(path, make=True):
        pass


def new_folder(path: Path, *, mode: int = 0o777) -> None:
    """Make a folder that does not exist yet in one that does; the umask applies to `mode`."""
    with holder(path) as (folder, name):
        os.mkdir(name, mode, dir_fd=folder)


@contextmanager
def new_file(path: Path | str, mode: int, *, within: int | None = None) -> Iterator[int]:
    """Provide a descriptor of a file that must not exist yet; it is removed if the body fails.

    `within` is the descriptor of a folder, and `path` then a name in it.
    """
    if within is None:
        with holder(Path(path)) as (folder, name), new_file(name, mode, within=folder) as opened:
            yield opened
        return
    # O_EXCL follows no link (open(2)). Mode 0600 hides the file from others until it is complete.
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
    """Write a file that must not exist yet, with exactly these permissions."""
    with (
        holder(path, make=make) as (folder, name),
        new_file(name, mode, within=folder) as descriptor,
    ):
        for chunk in chunks:
            write_all(descriptor, chunk)


def write_whole(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a small file, new or existing; use `replacing` if it must never be incomplete."""
    descriptor = open_file(path, REPLACED_FILE, mode)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def open_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """Call open(2) relative to the checked folder, without following a link; the caller closes."""
    with holder(path) as (folder, name):
        return os.open(name, flags | NEVER_FOLLOWED, mode, dir_fd=folder)


@contextmanager
def replacing(path: Path, mode: int) -> Iterator[BinaryIO]:
    """Provide a new file that replaces `path` if the body succeeds, else is removed."""
    with holder(path, make=True) as (folder, name):
        temporary = f".{name[:MAX_PREFIX]}.{secrets.token_hex(8)}"
        descriptor = os.open(temporary, NEW_FILE, 0o600, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fchmod(descriptor, mode)
                # Before the rename, or a crash may leave the new name without the new content.
                os.fsync(descriptor)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            # after a successful rename the temporary name no longer exists
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
        _reach_the_disk(folder)


def _reach_the_disk(folder: int) -> None:
    """Flush the folder to disk: the rename is an entry of the folder (fsync(2))."""
    opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def remove(path: Path) -> None:
    """Remove a file or a link itself; a missing path, or folder above it, is no error."""
    with suppress(FileNotFoundError), holder(path) as (folder, name):
        os.unlink(name, dir_fd=folder)


def rename(source: Path, target: Path, *, make: bool = False) -> None:
    """Rename a path on the same disk; a file at the target is replaced."""
    with holder(target, make=make) as (there, new), holder(source) as (here, old):
        os.rename(old, new, src_dir_fd=here, dst_dir_fd=there)


def symbolic_link(path: Path, destination: str, *, make: bool = False) -> None:
    """Make a symbolic link that must not exist yet; its destination is not checked."""
    with holder(path, make=make) as (folder, name):
        os.symlink(destination, name, dir_fd=folder)


def second_name(source: Path, target: Path) -> None:
    """Make a hard link; for a symbolic link, to the link itself."""
    with holder(source) as (here, old), holder(target) as (there, new):
        os.link(old, new, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)


def set_mode(path: Path, mode: int) -> None:
    """Set the permissions of a file or a folder; raises `OSError` for a link."""
    with holder(path) as (folder, name):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        os.chmod(name, mode, dir_fd=folder)


def set_time_to_now(path: Path) -> None:
    """Set the modification time of a file, or of a link itself, to now."""
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
