"""An untrusted folder: listed safely, its files kept open while they are needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gate.checkpoint.untrusted_files import ReadableFiles, UntrustedFile, open_untrusted
from gate.errors import EvidenceError, StorageError
from gate.text.untrusted_text import plain_text, short_text

MAX_NAMES = 10_000
MAX_NAME = 200
# Below the 1,024 descriptors that a process has by default.
MAX_OPEN_FILES = 800
FOLDER_HINT = "Save into an empty folder, with regular files and folders only."


@dataclass(slots=True)
class _Opened:
    """The files of a state that are open, and what all of them may still have together."""

    bytes_left: int
    by_path: dict[Path, UntrustedFile] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class UntrustedFolder(ABC):
    """A folder, wherever it is; `shown` names it in every error."""

    shown: str

    def fault(self, problem: str, *, hint: str = FOLDER_HINT) -> EvidenceError:
        """The error that says what is wrong with this folder."""
        return EvidenceError(f"{self.shown}: {problem}", hint=hint)

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The names in it, sorted and checked."""

    @abstractmethod
    def is_folder(self, name: str) -> bool:
        """Whether a real folder has that name; a link to one is none."""

    @abstractmethod
    def folder(self, name: str) -> UntrustedFolder:
        """The folder of that name in it."""

    @abstractmethod
    def open(self, name: str, *, shown: str = "") -> UntrustedFile:
        """The file of that name, open until the state is done with, called `shown` in errors.

        Raises `EvidenceError` for what is no plain name in this folder, for links, pipes and
        missing files, and when all files together are too many or too large.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class _FolderOnDisk(UntrustedFolder):
    """A folder at `path`. Its files close with `stack`."""

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
            # the limit is one for the whole state, so each file gets what the others have left
            open_untrusted(self.files, path, shown, max_bytes=self.opened.bytes_left)
        )
        self.opened.bytes_left -= opened.size_bytes
        return opened


@contextmanager
def open_untrusted_folder(
    files: ReadableFiles, path: Path, shown: str, *, max_bytes: int
) -> Iterator[UntrustedFolder]:
    """A folder whose files may have `max_bytes` together; all are closed after the body."""
    with ExitStack() as stack:
        opened = _Opened(bytes_left=max_bytes)
        yield _FolderOnDisk(files=files, path=path, shown=shown, stack=stack, opened=opened)


def is_plain_name(name: str) -> bool:
    """Whether a text can only mean something directly in a folder."""
    return bool(name) and name not in {".", ".."} and "/" not in name
