"""Open untrusted files and folders safely, and read only within checked ranges.

Small pieces are read; large ranges are mapped one after the other. So neither memory nor address
space grows with the file.

If a file becomes shorter while a range is mapped, the kernel ends the reader with SIGBUS. The
programs that map files are therefore child processes, and their parent explains how they ended:
`gate.isolation.confined_look` for the command line, `gate.pipelines.fresh_process` for the gate.
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from gate.errors import DocumentError, EvidenceError, StorageError
from gate.text.untrusted_text import plain_text, short_text

CHUNK_BYTES = 1024 * 1024
SHORTER = "became shorter while it was read"
HINT = "The training process wrote to or damaged this file; check its output, then run again."
SAVE_HINT = "Save it with torch.save(state, path) or as safetensors, and let the script finish."


class ReadableFiles(Protocol):
    """The file system operations for reading a saved state; none of them follows a link."""

    def open_binary(self, path: Path, *, max_bytes: int) -> AbstractContextManager[BinaryIO]:
        """Open a regular file of at most `max_bytes`; raises `StorageError` for anything else."""
        ...

    def is_folder(self, path: Path) -> bool:
        """Return whether the path is a folder, and not a link to one."""
        ...

    def list_names(self, folder: Path, *, max_names: int) -> tuple[str, ...]:
        """Return the names in a folder, sorted; raises `StorageError` above `max_names`."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class UntrustedFile:
    """An open regular file; `shown` is its name in every error."""

    shown: str
    stream: BinaryIO
    size_bytes: int

    def fault(self, problem: str, *, hint: str = HINT) -> EvidenceError:
        """Return an error that says what is wrong with this file."""
        return EvidenceError(f"{self.shown}: {problem}", hint=hint)

    def read_at(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`.

        Raises `EvidenceError` if the file ends earlier.
        """
        self.check_range(offset, length)
        # pread(2) does not move the file's position, so several threads can read at once
        data = os.pread(self.stream.fileno(), length, offset)
        if len(data) == length:
            return data
        # one read(2) returns at most 2 GiB, so read the rest in a loop
        buffer = bytearray(length)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view`, a view of bytes, from `offset`; several threads may do so at once."""
        self.check_range(offset, len(view))
        descriptor = self.stream.fileno()
        while view:
            count = os.preadv(descriptor, [view], offset)
            if not count:
                raise self.fault(SHORTER)
            offset += count
            view = view[count:]

    @contextmanager
    def mapped(self, offset: int, length: int) -> Iterator[memoryview]:
        """Yield the bytes of a range, without a copy if the file can be mapped; valid in the body.

        The view is writable because foreign functions ask for that. Writing to it does not change
        the file.
        """
        self.check_range(offset, length)
        if not length:
            # a length of 0 would map the whole file
            yield memoryview(bytearray())
            return
        # mmap(2) accepts only offsets that are multiples of the page size
        skipped = offset % mmap.ALLOCATIONGRANULARITY
        descriptor = self.stream.fileno()
        try:
            mapping = mmap.mmap(
                descriptor, skipped + length, access=mmap.ACCESS_COPY, offset=offset - skipped
            )
        # mmap compares with the current size of the file, which another process may have changed
        except ValueError as error:
            raise self.fault(SHORTER) from error
        except OSError:
            # some file systems do not support mmap
            held = memoryview(bytearray(length))
            self.read_into(offset, held)
            yield held
            return
        whole = memoryview(mapping)
        view = whole[skipped:]
        try:
            yield view
        finally:
            # An exception that leaves the body may still hold a part of the view, so `release` can
            # fail. The map is then freed with the exception.
            with suppress(BufferError):
                view.release()
                whole.release()
                mapping.close()

    def check_range(self, offset: int, length: int) -> None:
        """Raise `EvidenceError` for a range that is not completely inside the file."""
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise self.fault("is truncated or points past its own end")

    def pieces(self, offset: int, length: int) -> Iterator[bytes]:
        """Yield the bytes of a range in chunks of 1 MiB, so memory does not grow with the file."""
        end = offset + length
        for start in range(offset, end, CHUNK_BYTES):
            yield self.read_at(start, min(CHUNK_BYTES, end - start))


@contextmanager
def open_untrusted(
    files: ReadableFiles, path: Path, shown: str, *, max_bytes: int
) -> Iterator[UntrustedFile]:
    """Open a file of the run, and turn every error of reading or parsing it into `EvidenceError`.

    This includes links, pipes, folders, files above `max_bytes`, and errors of the strict parsers
    in the body.
    """
    try:
        with files.open_binary(path, max_bytes=max_bytes) as stream:
            size_bytes = stream.seek(0, os.SEEK_END)
            stream.seek(0)
            yield UntrustedFile(shown=shown, stream=stream, size_bytes=size_bytes)
    except StorageError as error:
        raise EvidenceError(
            f"{shown}: cannot be read: {plain_text(error.message)}",
            hint=plain_text(error.hint),
        ) from error
    except DocumentError as error:
        details = tuple(map(plain_text, error.details))
        raise EvidenceError(plain_text(error.message), hint=HINT, details=details) from error


MAX_NAMES = 10_000
MAX_NAME = 200
# below the default limit of 1,024 descriptors for a process
MAX_OPEN_FILES = 800
FOLDER_HINT = "Save into an empty folder, with regular files and folders only."


@dataclass(slots=True)
class _Opened:
    """The open files of a state, and the number of bytes that further files may have together."""

    bytes_left: int
    by_path: dict[Path, UntrustedFile] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class UntrustedFolder(ABC):
    """A folder on disk or in an archive; `shown` is its name in every error."""

    shown: str

    def fault(self, problem: str, *, hint: str = FOLDER_HINT) -> EvidenceError:
        """Return an error that says what is wrong with this folder."""
        return EvidenceError(f"{self.shown}: {problem}", hint=hint)

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Return the names in the folder, sorted and checked."""

    @abstractmethod
    def is_folder(self, name: str) -> bool:
        """Return whether the name is a folder, and not a link to one."""

    @abstractmethod
    def folder(self, name: str) -> UntrustedFolder:
        """Return the folder of that name."""

    @abstractmethod
    def open(self, name: str, *, shown: str = "") -> UntrustedFile:
        """Return the file of that name, which stays open until the whole state is read.

        `shown` is its name in errors. Raises `EvidenceError` for a name that is not plain, for
        links, pipes and missing files, and if all files together are too many or too large.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class _FolderOnDisk(UntrustedFolder):
    """A folder at `path`; its files are closed with `stack`."""

    files: ReadableFiles
    path: Path
    stack: ExitStack
    opened: _Opened

    def names(self) -> tuple[str, ...]:
        """As in `UntrustedFolder`."""
        try:
            names = self.files.list_names(self.path, max_names=MAX_NAMES)
        except StorageError as error:
            raise self.fault(f"cannot be read: {plain_text(error.message)}") from error
        for name in names:
            if not name.isprintable() or len(name) > MAX_NAME:
                raise self.fault(f"the name {short_text(name)} is too long or not printable")
        return names

    def is_folder(self, name: str) -> bool:
        """As in `UntrustedFolder`."""
        return self.files.is_folder(self.path / name)

    def folder(self, name: str) -> UntrustedFolder:
        """As in `UntrustedFolder`."""
        return replace(self, path=self.path / name, shown=f"{self.shown}/{name}")

    def open(self, name: str, *, shown: str = "") -> UntrustedFile:
        """As in `UntrustedFolder`."""
        if not is_plain_name(name):
            raise self.fault(f"{short_text(name)} is named, which is outside the folder")
        path = self.path / name
        if path not in self.opened.by_path:
            self.opened.by_path[path] = self._newly_opened(path, shown or f"{self.shown}/{name}")
        return self.opened.by_path[path]

    def _newly_opened(self, path: Path, shown: str) -> UntrustedFile:
        if len(self.opened.by_path) >= MAX_OPEN_FILES:
            raise self.fault(f"has more than {MAX_OPEN_FILES:,} files")
        opened = self.stack.enter_context(
            # the limit applies to the whole state, so each file gets what the others have left
            open_untrusted(self.files, path, shown, max_bytes=self.opened.bytes_left)
        )
        self.opened.bytes_left -= opened.size_bytes
        return opened


@contextmanager
def open_untrusted_folder(
    files: ReadableFiles, path: Path, shown: str, *, max_bytes: int
) -> Iterator[UntrustedFolder]:
    """Open a folder whose files may have `max_bytes` together; all are closed after the body."""
    with ExitStack() as stack:
        opened = _Opened(bytes_left=max_bytes)
        yield _FolderOnDisk(files=files, path=path, shown=shown, stack=stack, opened=opened)


def is_plain_name(name: str) -> bool:
    """Return whether a text can only name something directly inside a folder."""
    return bool(name) and name not in {".", ".."} and "/" not in name


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePart(UntrustedFile):
    """The bytes `start` to `start + size_bytes` of `whole`; offsets count from `start`."""

    whole: UntrustedFile
    start: int

    def read_at(self, offset: int, length: int) -> bytes:
        """As in `UntrustedFile`."""
        # check against this range: the check of the whole file would allow reads of the neighbours
        self.check_range(offset, length)
        return self.whole.read_at(self.start + offset, length)

    def read_into(self, offset: int, view: memoryview) -> None:
        """As in `UntrustedFile`."""
        self.check_range(offset, len(view))
        self.whole.read_into(self.start + offset, view)

    @contextmanager
    def mapped(self, offset: int, length: int) -> Iterator[memoryview]:
        """As in `UntrustedFile`."""
        self.check_range(offset, length)
        with self.whole.mapped(self.start + offset, length) as view:
            yield view


def file_part(whole: UntrustedFile, start: int, size_bytes: int, shown: str) -> FilePart:
    """Return a range as a file called `shown`; raises `EvidenceError` if it is not inside."""
    whole.check_range(start, size_bytes)
    return FilePart(
        shown=shown, stream=whole.stream, size_bytes=size_bytes, whole=whole, start=start
    )


Item = TypeVar("Item")


def grouped(
    items: Iterable[Item], joins: Callable[[Item, Item, Item], bool]
) -> Iterator[list[Item]]:
    """Yield neighbouring items in groups.

    `joins` gets the first and the last item of the current group and the next item, and decides
    whether the next one is added.
    """
    group: list[Item] = []
    for item in items:
        if group and not joins(group[0], group[-1], item):
            yield group
            group = []
        group.append(item)
    if group:
        yield group
