"""SHA-256 of the files of a data set: in big blocks, holes without reading them."""

from __future__ import annotations

import errno
import os
import stat
import threading
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gate.data.declared import ListedFile
from gate.data.hashing import changed, data_faults, refused, stamp_of
from gate.system.files.reading import READ_FLAGS

if TYPE_CHECKING:
    from hashlib import _Hash

BLOCK_BYTES: Final = 1024 * 1024
# unit of `st_blocks` (stat(2))
DISK_BLOCK_BYTES: Final = 512
ZEROS: Final = bytes(BLOCK_BYTES)


class Buffers(threading.local):
    """A block for each thread, used again and again, so that it stays in the processor's cache."""

    def __init__(self) -> None:
        self.block = memoryview(bytearray(BLOCK_BYTES))


def file_digest(
    folder: int | None, path: str, listed: ListedFile, source: Path, buffers: Buffers
) -> str:
    """The SHA-256 of a file's bytes as 64 digits; `path` is relative to the descriptor `folder`.

    `DataError` where it is not, before and after, the file that was listed: another inode, size or
    time of change.
    """
    with data_faults(source, listed.name):
        descriptor = os.open(path, READ_FLAGS, dir_fd=folder)
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise refused(source, listed.name, facts.st_mode)
            _require_same(facts, listed, source)
            hasher = sha256()
            if facts.st_blocks * DISK_BLOCK_BYTES < facts.st_size:
                count = _hash_sparse(descriptor, facts.st_size, hasher, buffers.block)
            else:
                count = _hash_bytes(descriptor, facts.st_size, hasher, buffers.block)
            if count != facts.st_size:
                raise changed(source, listed.name)
            _require_same(os.fstat(descriptor), listed, source)
        finally:
            os.close(descriptor)
    return hasher.hexdigest()


def _require_same(facts: os.stat_result, listed: ListedFile, source: Path) -> None:
    if facts.st_size != listed.size_bytes or stamp_of(facts) != listed.stamp:
        raise changed(source, listed.name)


def _hash_bytes(descriptor: int, most: int, hasher: _Hash, block: memoryview) -> int:
    """Read on from where the descriptor stands, `most` bytes at most; the number of bytes."""
    count = 0
    while count < most:
        size = os.readv(descriptor, [block[: most - count]])
        if not size:
            break
        hasher.update(block[:size])
        count += size
    return count


def _hash_sparse(descriptor: int, size_bytes: int, hasher: _Hash, block: memoryview) -> int:
    """As above for a file with holes, which are fed as zeros (SEEK_DATA in lseek(2))."""
    place = 0
    while place < size_bytes:
        start, end = _next_data(descriptor, place, size_bytes)
        for begin in range(place, start, BLOCK_BYTES):
            hasher.update(ZEROS[: min(BLOCK_BYTES, start - begin)])
        os.lseek(descriptor, start, os.SEEK_SET)
        count = _hash_bytes(descriptor, end - start, hasher, block)
        place = start + count
        # it became shorter meanwhile
        if place < end:
            break
    return place


def _next_data(descriptor: int, place: int, size_bytes: int) -> tuple[int, int]:
    """From where to where the next bytes lie that are on the disk."""
    try:
        start = os.lseek(descriptor, place, os.SEEK_DATA)
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
    except OSError as error:
        # nothing but a hole up to the end; a disk that fails is no hole
        if error.errno == errno.ENXIO:
            return size_bytes, size_bytes
        # a file system that cannot tell
        if error.errno in {errno.EINVAL, errno.EOPNOTSUPP}:
            return place, size_bytes
        raise
    return min(start, size_bytes), min(end, size_bytes)
