"""A file's bytes in another file: shared by both where the file system can, else copied by it.

Both files are as independent as two copies: a file system that shares bytes (btrfs, XFS, overlays
on them) gives whoever writes first bytes of its own.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from typing import Final

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


def share(source: int, target: int) -> bool:
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

    Raises `OSError` when the disk fails or is full.
    """
    if share(source, target):
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
