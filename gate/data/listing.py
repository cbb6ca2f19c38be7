"""List a data set with the digest of each file, and find files that changed since."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

from gate.checkpoint.tensor_hashing import available_threads, gc_paused, run_all
from gate.data.data_digests import sampled
from gate.data.declared import ListedFile, Listing
from gate.data.hashing import (
    Buffers,
    DigestCache,
    Seen,
    data_faults,
    file_digest,
    opened_folder,
    place,
    seen,
    unusual_file_fault,
    walk,
)
from gate.errors import DataError
from gate.settings.data import Verify
from gate.system.files.trees import FOLDER_FLAGS
from gate.text.untrusted_text import name_bytes, shown_name

MAX_UNREADABLE: Final = 5
BATCH_FILES: Final = 64
BATCH_BYTES: Final = 16 * 1024 * 1024
READ_BY_OTHERS: Final = stat.S_IROTH
ENTERED_BY_OTHERS: Final = stat.S_IROTH | stat.S_IXOTH


def take_listing(source: Path, verify: Verify, digests: DigestCache | None) -> Listing:
    """Return every file of the file or folder `source` with its digest, hashed on all cores.

    `digests` is used with `Verify.CACHED` only. Raises `DataError` for data that is missing, empty
    or unreadable, that changes meanwhile, or that is neither a file nor a folder. No link is
    followed.
    """
    if verify is not Verify.CACHED:
        digests = None
    # Taken before the first look: a file that changes from now on is not remembered.
    began_ns = digests.now_ns() if digests else 0
    # A million new records would make the garbage collector run again and again.
    with gc_paused():
        files, unreadable = _seen_files(source)
        numbers = [number for number, _ in enumerate(files)]
        if digests:
            for number, digest in digests.known(files).items():
                files[number] = files[number]._replace(sha256=digest)
            numbers = [number for number, file in enumerate(files) if not file.sha256]
        elif verify is Verify.SAMPLE:
            chosen = sampled([file.name for file in files])
            numbers = [number for number, file in enumerate(files) if file.name in chosen]
        _digest_files(source, files, numbers)
        if digests:
            digests.remember((files[number] for number in numbers), began_ns)
    return Listing(files=tuple(files), verify=verify, unreadable=unreadable)


def first_change(source: Path, listing: Listing) -> str:
    """Return the shown name of the first file that changed, is new or is gone, or empty text.

    Stamps are compared first. If a stamp differs, the file is read again: a file that was only
    touched has not changed. A touched file whose content was never read counts as changed, because
    nobody can tell. Raises `DataError` if the data cannot be read any more.
    """
    if not os.path.lexists(source):
        return shown_name(source.name)
    moved: list[str] = []
    again: list[ListedFile] = []
    listed = {file.name: file for file in listing.files}
    for seen_file in _seen_all(source):
        if stat.S_ISDIR(seen_file.mode):
            continue
        file = listed.pop(seen_file.name, None)
        if (
            file is None
            or not stat.S_ISREG(seen_file.mode)
            or seen_file.size_bytes != file.size_bytes
        ):
            moved.append(seen_file.name)
        elif seen_file.stamp != file.stamp:
            again.append(file._replace(stamp=seen_file.stamp))
    moved += listed
    moved += [file.name for file in again if not file.sha256]
    before = [file for file in again if file.sha256]
    read = list(before)
    _digest_files(source, read, range(len(read)))
    moved += [file.name for file, now in zip(before, read, strict=True) if file != now]
    if not moved:
        return ""
    return shown_name(min(moved, key=name_bytes) or source.name)


def _seen_files(source: Path) -> tuple[list[ListedFile], tuple[str, ...]]:
    """Return all files, not read yet, sorted by name, and names that others may not read."""
    files: list[ListedFile] = []
    unreadable: list[str] = []
    for listed in _seen_all(source):
        folder = stat.S_ISDIR(listed.mode)
        if not folder and not stat.S_ISREG(listed.mode):
            raise unusual_file_fault(source, listed.name, listed.mode)
        needed = ENTERED_BY_OTHERS if folder else READ_BY_OTHERS
        if listed.mode & needed != needed:
            names = [*unreadable, shown_name(listed.name or source.name)]
            unreadable = sorted(names)[:MAX_UNREADABLE]
        if not folder:
            files.append(ListedFile(listed.name, listed.size_bytes, "", listed.stamp))
    if not files:
        raise DataError(
            f"{place(source, '')} holds no file",
            hint="Check the path: a data set has at least one file.",
        )
    files.sort(key=lambda file: name_bytes(file.name))
    return files, tuple(unreadable)


def _seen_all(source: Path) -> Iterator[Seen]:
    with data_faults(source, ""):
        try:
            facts = os.lstat(source)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DataError(
                f"{place(source, '')} does not exist",
                hint="Check the path, and that its disk is mounted on this machine.",
            ) from error
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise DataError(
                f"{place(source, '')} leads through a loop of links",
                hint="Name the real path.",
            ) from error
    if not stat.S_ISDIR(facts.st_mode):
        yield seen("", facts)
        return
    with _root(source) as root:
        yield from walk(root, source)


@contextmanager
def _root(source: Path) -> Iterator[int]:
    with data_faults(source, ""):
        descriptor = os.open(source, FOLDER_FLAGS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _digest_files(source: Path, files: list[ListedFile], chosen: Sequence[int]) -> None:
    """Fill in the digests of the files at the chosen indexes, several files at a time."""
    if not chosen:
        return
    buffers = Buffers()
    if not files[chosen[0]].name:
        files[0] = files[0]._replace(
            sha256=file_digest(None, str(source), files[0], source, buffers)
        )
        return
    with _root(source) as root:
        batches = sorted(_batches(files, chosen), key=lambda batch: -_bytes_of(files, batch))
        # The largest first, so that no core is busy alone with a large file at the end.
        tasks: list[Callable[[], object]] = [
            partial(_digest_batch, root, source, files, batch, buffers) for batch in batches
        ]
        run_all(tasks, available_threads())


def _digest_batch(
    root: int, source: Path, files: list[ListedFile], batch: Sequence[int], buffers: Buffers
) -> None:
    folder, _ = _split(files[batch[0]].name)
    with data_faults(source, folder), opened_folder(root, folder) as descriptor:
        for number in batch:
            file = files[number]
            digest = file_digest(descriptor, _split(file.name)[1], file, source, buffers)
            # without a lock, because no two threads write to the same index
            files[number] = file._replace(sha256=digest)


def _batches(files: Sequence[ListedFile], chosen: Sequence[int]) -> Iterator[list[int]]:
    """Yield groups of files in one folder, so that a thread opens the folder once for them."""
    for _, neighbours in groupby(chosen, key=lambda number: _split(files[number].name)[0]):
        batch: list[int] = []
        size_bytes = 0
        for number in neighbours:
            batch.append(number)
            size_bytes += files[number].size_bytes
            if len(batch) == BATCH_FILES or size_bytes >= BATCH_BYTES:
                yield batch
                batch, size_bytes = [], 0
        if batch:
            yield batch


def _bytes_of(files: Sequence[ListedFile], batch: Sequence[int]) -> int:
    return sum(files[number].size_bytes for number in batch)


def _split(name: str) -> tuple[str, str]:
    folder, slash, last = name.rpartition("/")
    return folder + slash, last
