"""Whether content is what its digest says: SHA-256, and MD5 as DVC takes it."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 2**20
# dvc_data/hashfile/istextfile.py: what DVC before version 3 took for text
TEXT_BLOCK_BYTES: Final = 512
TEXT_SIGNS: Final = bytes(range(32, 127)) + b"\n\r\t\f\b"
MOST_OTHER_SIGNS: Final = 0.3
MAX_THREADS: Final = 16
BATCH_FILES: Final = 64
FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def sha256_of(path: Path) -> str:
    """Of a regular file; raises `OSError`."""
    with _opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def md5_of(path: Path, *, dos2unix: bool) -> str:
    """Of a regular file as DVC takes it; raises `OSError`.

    With `dos2unix`, each stretch of 1 MiB that looks like text counts without the carriage return
    of its line ends: so DVC did before version 3.
    """
    hasher = hashlib.md5(usedforsecurity=False)
    with _opened(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            text = dos2unix and _looks_like_text(chunk[:TEXT_BLOCK_BYTES])
            hasher.update(chunk.replace(b"\r\n", b"\n") if text else chunk)
    return hasher.hexdigest()


def wrong_md5(files: Iterable[tuple[Path, str]], *, dos2unix: bool) -> Iterator[Path]:
    """Those of the files that are missing or have another MD5, in order; read side by side."""

    def wrong(rows: tuple[tuple[Path, str], ...]) -> list[Path]:
        return [path for path, digest in rows if _differs(path, digest, dos2unix=dos2unix)]

    pending = iter(files)
    # batches: a future for each of a million files would take more memory than their bytes
    batches = iter(lambda: tuple(islice(pending, BATCH_FILES)), ())
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as threads:
        for found in threads.map(wrong, batches):
            yield from found


def _differs(path: Path, digest: str, *, dos2unix: bool) -> bool:
    try:
        return md5_of(path, dos2unix=dos2unix) != digest
    except OSError:
        return True


def _looks_like_text(block: bytes) -> bool:
    if b"\0" in block:
        return False
    return len(block.translate(None, TEXT_SIGNS)) / len(block) <= MOST_OTHER_SIGNS


def _opened(path: Path) -> io.BufferedReader:
    descriptor = os.open(path, FLAGS)
    file: io.BufferedReader = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        message = "not a regular file"
        raise OSError(0, message)
    return file
