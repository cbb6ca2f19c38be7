"""Two SHA-256 over the same bytes on their way: of a file, and of the archive that holds it.

Both read the same piece of memory at the same time, each in a thread of its own; the caller writes
or reads the next piece meanwhile. hashlib lets go of the interpreter for all but tiny pieces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Final

# for less, starting a thread takes longer than hashing
LEAST_BYTES: Final = 64 * 1024


class TwoDigests:
    """The digest of everything, and that of the file that is being read or written now."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._running: tuple[Future[None], ...] = ()
        self._whole = hashlib.sha256()
        self._file = hashlib.sha256()

    def begin_file(self) -> None:
        """From here on a new file is digested."""
        self._settle()
        self._file = hashlib.sha256()

    def around(self, data: bytes) -> None:
        """Bytes that belong to no file: headers, padding, the end."""
        self._settle()
        self._whole.update(data)

    def inside(self, data: bytes | memoryview) -> None:
        """Bytes of the file; `data` must not change before the next call."""
        self._settle()
        if len(data) < LEAST_BYTES:
            self._whole.update(data)
            self._file.update(data)
            return
        self._running = (
            self._pool.submit(self._whole.update, data),
            self._pool.submit(self._file.update, data),
        )

    def file_digest(self) -> str:
        """Of the file so far, in hexadecimal."""
        self._settle()
        return self._file.hexdigest()

    def whole_digest(self) -> str:
        """Of everything so far, in hexadecimal."""
        self._settle()
        return self._whole.hexdigest()

    def _settle(self) -> None:
        # one piece at a time: two threads in one digest would mix their order
        wait(self._running)
        self._running = ()


@contextmanager
def two_digests() -> Iterator[TwoDigests]:
    """Both digests, with their threads while the body runs."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield TwoDigests(pool)
