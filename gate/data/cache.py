"""A cache of fetched data, addressed by digest, in one folder that an account's gates share.

- `objects/` has complete and checked objects, read-only.
- `fetching/` has downloads that are not complete yet.
- `locks/` has a lock for each fetch, so that one gate fetches and the others wait.
- `using/` has a file for each running gate, with the names of the objects that it uses.
- `sizes/` has a file for each object: its content is the size, its time the last use.

The locks are `flock`s, so the kernel releases them when a process ends, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Final

from gate.data.hashing import FILE_NAME as DIGESTS_NAME
from gate.errors import DataError, StorageError
from gate.system.console import Progress
from gate.system.files import trees, writing
from gate.text.untrusted_text import safe_line

CHUNK_BYTES: Final = 2**20
# From DVC's dvc_data/hashfile/istextfile.py: what DVC before version 3 treated as text.
TEXT_BLOCK_BYTES: Final = 512
TEXT_SIGNS: Final = bytes(range(32, 127)) + b"\n\r\t\f\b"
MOST_OTHER_SIGNS: Final = 0.3
MAX_THREADS: Final = 16
BATCH_FILES: Final = 64
FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a regular file; raises `OSError`."""
    with _opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def md5_of(path: Path, *, dos2unix: bool) -> str:
    """Return the MD5 of a regular file as DVC computes it; raises `OSError`.

    With `dos2unix`, each chunk of 1 MiB that looks like text is hashed with its CRLF line ends
    changed to LF, as DVC did before version 3.
    """
    # DVC's choice: MD5 detects accidents, not attacks. The baseline has the data set's SHA-256 too.
    hasher = hashlib.md5(usedforsecurity=False)
    with _opened(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            text = dos2unix and _looks_like_text(chunk[:TEXT_BLOCK_BYTES])
            hasher.update(chunk.replace(b"\r\n", b"\n") if text else chunk)
    return hasher.hexdigest()


def wrong_md5(files: Iterable[tuple[Path, str]], *, dos2unix: bool) -> Iterator[Path]:
    """Yield the files that are missing or have another MD5, in order; several are read at once."""

    def wrong(rows: tuple[tuple[Path, str], ...]) -> list[Path]:
        return [path for path, digest in rows if _differs(path, digest, dos2unix=dos2unix)]

    pending = iter(files)
    # In batches: a future for each of a million files would take more memory than their bytes.
    batches = iter(lambda: tuple(islice(pending, BATCH_FILES)), ())
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as threads:
        for wrong_names in threads.map(wrong, batches):
            yield from wrong_names


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


LOCKED_FILE: Final = os.O_RDWR | os.O_CREAT
POLL_SECONDS: Final = 0.2
STALE_SECONDS: Final = 7 * 24 * 3600.0
FOLDERS: Final = ("objects", "fetching", "locks", "using", "sizes")
MARK: Final = ".repro-gate-cache"
WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
LIMIT_HINT: Final = "Raise fetch.max_bytes in repro-gate.yml, or declare less data."


class SharedCache:
    """The cache; objects are named `ALGORITHM/DIGEST`, and every fault is a `DataError`.

    `max_bytes` limits the size of all objects together. The least recently used objects are removed
    first, but none that a running gate uses. Call `close` after the last use.
    """

    def __init__(
        self, root: Path, max_bytes: int, progress: Progress, *, named: bool = True
    ) -> None:
        """`named` is true if the settings name the folder, false for the gate's default folder."""
        self._named = named
        self.max_bytes = max_bytes
        self.root = root
        self._progress = progress
        self._held = ExitStack()
        self._using: int | None = None

    def close(self) -> None:
        """Allow other gates to remove the objects that this one used."""
        self._held.close()
        self._using = None

    def path(self, name: str) -> Path:
        """Return the path of an object, whether it exists or not."""
        algorithm, _, digest = name.partition("/")
        return self.root / "objects" / algorithm / digest[:2] / digest

    def claim(self, names: Iterable[str]) -> tuple[str, ...]:
        """Protect these objects from removal by other gates; return the ones that do not exist."""
        claimed = tuple(dict.fromkeys(names))
        with self._faults():
            self._open()
            # Under the lock: an eviction at the same time would not see the claim.
            with self._locked(self.root / "lock", exclusive=False):
                if self._using is None:
                    self._using = self._register()
                os.write(self._using, "".join(f"{name}\n" for name in claimed).encode())
                missing = tuple(name for name in claimed if not os.path.lexists(self.path(name)))
            for name in set(claimed) - set(missing):
                with suppress(FileNotFoundError):
                    writing.set_time_to_now(self._size_file(name))
        return missing

    @contextmanager
    def being_fetched(self, key: str, wait_seconds: float) -> Iterator[Path]:
        """Provide a folder for a download, for one process at a time.

        Files of an earlier, interrupted download are still in it. Raises `DataError` if another
        process has the folder for longer than `wait_seconds`.
        """
        with self._faults():
            self._open()
            lock = self.root / "locks" / key
            with self._locked(lock, wait_seconds=wait_seconds):
                staging = self.root / "fetching" / key
                with suppress(FileExistsError):
                    writing.new_folder(staging, mode=0o700)
                yield staging

    def done(self, staging: Path) -> None:
        """Remove a folder that `being_fetched` provided."""
        with self._faults():
            trees.remove_tree(staging)

    def store(self, name: str, staged: Path, size_bytes: int) -> Path:
        """Move a complete and checked file or folder to its name, read-only for everybody."""
        there = self.path(name)
        with self._faults():
            _make_readable(staged)
            for folder in (there.parents[1], there.parent, self._size_file(name).parent):
                _make_folder(folder)
            # The size comes before the object, because an eviction does not see an object without
            # it.
            writing.write_whole(self._size_file(name), f"{size_bytes}\n".encode("ascii"))
            # Another gate may have stored the object in the meantime.
            if os.path.lexists(there):
                trees.remove_tree(staged)
            else:
                writing.rename(staged, there)
        return there

    def size_of(self, name: str) -> int:
        """Return the stored size of an object in bytes, or 0 if there is none."""
        with self._faults(), suppress(FileNotFoundError):
            text = self._size_file(name).read_text("ascii").strip()
            return int(text) if text.isdigit() else 0
        return 0

    def drop(self, name: str) -> None:
        """Remove an object whose content does not match its name."""
        with self._faults():
            with self._locked(self.root / "lock"):
                gone = self._remove(name)
            for path in gone:
                with suppress(OSError):
                    trees.remove_tree(path)

    def make_room(self, size_bytes: int, what: str) -> int:
        """Remove old objects until `size_bytes` more fit; return how many bytes may come at most.

        Raises `DataError` if the limit or the disk does not allow it. `what` names the data in
        messages.
        """
        if size_bytes > self.max_bytes:
            raise DataError(
                f"{what} has {size_bytes:,} bytes; the cache may hold {self.max_bytes:,}",
                hint=LIMIT_HINT,
            )
        with self._faults():
            self._open()
            left = self.max_bytes - self._evict(size_bytes)
        if size_bytes > left:
            raise DataError(
                f"{what} has {size_bytes:,} bytes; beside what gates use now, the cache may hold "
                f"{max(left, 0):,} more",
                hint=LIMIT_HINT,
            )
        free = self.free_bytes()
        if size_bytes > free:
            raise disk_full(self.root, f"{what} has {size_bytes:,} bytes, {free:,} are free")
        return min(left, free)

    def free_bytes(self) -> int:
        """Return the free bytes of the disk, or the limit of the cache if the disk reports none."""
        disk = os.statvfs(self.root)
        return disk.f_bavail * disk.f_frsize if disk.f_blocks else self.max_bytes

    def _evict(self, coming_bytes: int) -> int:
        """Remove the least recently used objects until the new bytes fit; return the bytes kept."""
        gone: list[Path] = []
        with self._locked(self.root / "lock"):
            used = self._names_in_use()
            sizes = sorted(self._sizes())
            total = sum(size for _, _, size in sizes)
            for _, name, size in sizes:
                if total + coming_bytes <= self.max_bytes:
                    break
                if name not in used:
                    gone += self._remove(name)
                    total -= size
        for path in chain(gone, self._abandoned()):
            # another gate may be removing the same path
            with suppress(OSError):
                trees.remove_tree(path)
        return total

    def _remove(self, name: str) -> list[Path]:
        """Rename an object away, and return the paths that are still to be deleted.

        Renaming is quick, so the lock is not held while gigabytes are deleted.
        """
        trash = self.root / "fetching" / f"gone-{secrets.token_hex(8)}"
        writing.remove(self._size_file(name))
        try:
            writing.rename(self.path(name), trash)
        except FileNotFoundError:
            return []
        return [trash]

    def _abandoned(self) -> Iterator[Path]:
        """Yield downloads that nobody resumed for a week, and removed objects of a killed gate."""
        for entry in list(os.scandir(self.root / "fetching")):
            old = time.time() - entry.stat(follow_symlinks=False).st_mtime > STALE_SECONDS
            if entry.name.startswith("gone-"):
                yield Path(entry.path)
            elif old:
                # A lock that is taken belongs to a running download.
                with suppress(DataError), self._locked(self.root / "locks" / entry.name, 0.0):
                    yield Path(entry.path)

    def _sizes(self) -> Iterator[tuple[float, str, int]]:
        """Yield (time of last use, name, size) of each object."""
        for algorithm in os.scandir(self.root / "sizes"):
            for entry in os.scandir(algorithm.path):
                name = f"{algorithm.name}/{entry.name}"
                yield entry.stat().st_mtime, name, self.size_of(name)

    def _size_file(self, name: str) -> Path:
        return self.root / "sizes" / name

    def _register(self) -> int:
        """Make a file for the names of the objects in use, locked as long as this process lives."""
        path = self.root / "using" / secrets.token_hex(16)
        descriptor = writing.open_file(path, LOCKED_FILE | os.O_EXCL | os.O_APPEND)
        self._held.callback(writing.remove, path)
        self._held.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor

    def _names_in_use(self) -> set[str]:
        """Return the names that running gates use, and remove the files of ended gates."""
        names: set[str] = set()
        for entry in list(os.scandir(self.root / "using")):
            descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "r", encoding="ascii") as file:
                # a lock that can be taken belongs to a process that has ended
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    names.update(file.read().split("\n"))
                else:
                    writing.remove(Path(entry.path))
        return names

    @contextmanager
    def _locked(
        self, path: Path, wait_seconds: float = 60.0, *, exclusive: bool = True
    ) -> Iterator[None]:
        descriptor = writing.open_file(path, LOCKED_FILE)
        try:
            self._lock(descriptor, path, wait_seconds, exclusive=exclusive)
            yield
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int, path: Path, wait_seconds: float, *, exclusive: bool) -> None:
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        end = time.monotonic() + wait_seconds
        waiting_announced = False
        while True:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise DataError(
                        f"another process has held {safe_line(str(path))} for {wait_seconds:g} s",
                        hint="Wait for the other gate, or raise fetch.timeout_seconds.",
                    ) from None
                # The lock of the whole cache is held for moments only, so waiting for it is not
                # worth a message.
                if not waiting_announced and path.parent != self.root:
                    self._progress.step("waiting for another gate that fetches the same data")
                waiting_announced = True
                time.sleep(POLL_SECONDS)
            else:
                return

    def prepare(self) -> None:
        """Make the cache's folder; raises `DataError` if it must not be made or used."""
        with self._faults():
            if not self._named:
                # below the home folder of the gate's account
                writing.make_folders(self.root.parent)
            try:
                trees.make_named_folder(self.root, 0o755, is_ours=_is_cache)
            except StorageError as error:
                raise DataError(f"fetch.cache: {error.message}", hint=error.hint) from error
            # The mark comes first. A gate that looks at a half-made cache, or one whose maker was
            # killed, then finds either nothing or the mark. Another account's folder is refused
            # later.
            with suppress(FileExistsError, PermissionError):
                writing.write_new(self.root / MARK, (), 0o644)

    def _open(self) -> None:
        """Make the sub-folders; refuse a cache to which others could write data for trainings."""
        if self._using is not None:
            return
        self.prepare()
        facts = self.root.stat()
        if facts.st_uid != os.geteuid() or facts.st_mode & WRITABLE_BY_OTHERS:
            raise DataError(
                f"the cache {safe_line(str(self.root))} belongs to, or can be written by, "
                "another account",
                hint="Name a folder of the gate's own account as fetch.cache (chmod 755).",
            )
        for name in FOLDERS:
            _make_folder(self.root / name)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        with cache_faults(self.root):
            yield


@contextmanager
def cache_faults(root: Path) -> Iterator[None]:
    """Turn an `OSError` in the body into a `DataError` about the cache."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise disk_full(root, error.strerror or "no space") from error
        raise DataError(
            f"the cache {safe_line(str(root))} cannot be used: {error.strerror or error}",
            hint="Name a folder that the gate's account can write to as fetch.cache.",
        ) from error


def disk_full(root: Path, why: str) -> DataError:
    """Return the error for a full disk, the same wherever it is noticed."""
    return DataError(
        f"the disk of the cache {safe_line(str(root))} is full: {why}",
        hint="Free some space there, or name a folder of another disk as fetch.cache.",
    )


def _is_cache(names: frozenset[str]) -> bool:
    """Return whether a folder is a cache, complete or half-made, or has only known digests."""
    if MARK in names or names.issuperset(FOLDERS):
        return True
    return all(name.startswith(DIGESTS_NAME) for name in names)


def _make_folder(path: Path) -> None:
    """Make a folder that everybody may enter, whatever the umask; keep an existing one."""
    try:
        writing.new_folder(path)
    except FileExistsError:
        return
    writing.set_mode(path, 0o755)


def _make_readable(path: Path) -> None:
    """Make files read-only for everybody, and folders enterable."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        writing.set_mode(path, 0o444)
        return
    for folder, _, names in os.walk(path):
        for name in names:
            writing.set_mode(Path(folder, name), 0o444)
        writing.set_mode(Path(folder), 0o755)
