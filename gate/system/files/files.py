"""File access in which reading trusts nothing and writing loses nothing, and short links in /tmp.

A short link is in a folder that everybody can write to, so three things protect it. The sticky bit
lets only its owner or root remove it. A link of another account is never used. And the kernel lets
another account follow the link only if the folder's owner made it (fs.protected_symlinks in
proc_sys_fs(5)).
"""

from __future__ import annotations

import hashlib
import io
import marshal
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, source_hash
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

from gate.errors import StorageError
from gate.system.files import trees, writing
from gate.system.files.folder_lock import held_folder, one_writer
from gate.system.files.regular_files import (
    CappedReader,
    open_regular,
    refuse_foreign_links,
    refuse_links,
    require_regular,
    require_room,
    storage_faults,
)
from gate.system.files.writing import share_bytes, write_all
from gate.system.git.export import digest_on_disk
from gate.text.untrusted_text import safe_line

PLACE = Path("/tmp")  # noqa: S108 - guarded as above
DIGITS = 8


def name_for(target: Path) -> Path:
    """Return the short link's path, always the same for a folder.

    A path that varies would be a varying input of the training.
    """
    digest = hashlib.sha256(os.fsencode(target)).hexdigest()[:DIGITS]
    return PLACE / f"rg-{digest}"


def make(target: Path, *, for_others: bool) -> Path | None:
    """Make the short link, or replace one that leads elsewhere; None if that is not safe."""
    link = name_for(target)
    # A link that is not shorter than the folder's own path is of no use.
    if len(os.fsencode(link)) >= len(os.fsencode(target)):
        return None
    try:
        place = PLACE.lstat()
        if not stat.S_ISDIR(place.st_mode) or not place.st_mode & stat.S_ISVTX:
            return None
        # fs.protected_symlinks: another account follows the link only if the folder's owner made it
        if place.st_uid not in ({os.geteuid()} if for_others else {0, os.geteuid()}):
            return None
        if not _leads(link, target):
            _drop(link)
            writing.symbolic_link(link, str(target))
    except OSError:
        # Callers can use the long path too, except for sockets, whose paths must be short.
        return None
    return link


def drop(target: Path) -> None:
    """Remove the short link to a folder, if this account made it."""
    try:
        _drop(name_for(target))
    except OSError:
        return


def _leads(link: Path, target: Path) -> bool:
    if not link.is_symlink() or link.lstat().st_uid != os.geteuid():
        return False
    return link.readlink() == target


def _drop(link: Path) -> None:
    """Remove the path if it is a link that this account made, and nothing else."""
    if link.is_symlink() and link.lstat().st_uid == os.geteuid():
        writing.remove(link)


# O_NONBLOCK: opening a FIFO that nobody reads must not block the end of a job
APPEND_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

# Flag in a `.pyc` (PEP 552): it is identified by its source's hash, and Python does not check the
# source.
UNCHECKED_HASH = 0b01


class LocalFiles:
    """The `Files` of this machine; every fault is a `StorageError` that names the path."""

    def read_bytes(self, path: Path, *, max_bytes: int) -> bytes:
        """Read a regular file of at most `max_bytes`, following no link."""
        with open_regular(path, max_bytes) as file:
            return file.read()

    @contextmanager
    def open_binary(self, path: Path, *, max_bytes: int) -> Iterator[BinaryIO]:
        """Open a regular file; reading above `max_bytes` fails even if it grows meanwhile."""
        with open_regular(path, max_bytes) as file:
            # A BufferedReader has everything in BinaryIO, but typeshed gives them no common base.
            yield cast("BinaryIO", file)

    def exists(self, path: Path) -> bool:
        """Return whether anything is at a path, even a dangling link."""
        with storage_faults("looking at", path):
            try:
                os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def is_folder(self, path: Path) -> bool:
        """Return whether a real folder is at a path; a link to a folder does not count."""
        with storage_faults("looking at", path):
            return self.exists(path) and stat.S_ISDIR(os.lstat(path).st_mode)

    def link_target(self, path: Path) -> str | None:
        """Return the text of a symbolic link, or None for anything else."""
        try:
            return os.readlink(path)  # noqa: PTH115 - as it is written, not as a path of this system
        except OSError:
            return None

    def list_names(self, folder: Path, *, max_names: int) -> tuple[str, ...]:
        """Return the sorted names in a folder; empty if there is none.

        Raises `StorageError` above `max_names`.
        """
        if not self.exists(folder):
            return ()
        with storage_faults("listing", folder):
            refuse_foreign_links(folder)
            with trees.open_folder(folder) as descriptor, os.scandir(descriptor) as entries:
                names = [entry.name for entry in islice(entries, max_names + 1)]
        if len(names) > max_names:
            raise StorageError(
                f"{safe_line(str(folder))} has more than {max_names:,} entries",
                hint="Let the training write fewer files there.",
            )
        return tuple(sorted(names))

    def write_bytes(self, path: Path, data: bytes, *, mode: int = 0o644) -> None:
        """Replace a file in one step, making its folders as needed.

        Whatever fails, the old content stays and no temporary file is left.
        """
        with self.replacing(path, mode=mode) as file:
            file.write(data)

    @contextmanager
    def replacing(self, path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
        """Provide a new file that replaces `path` if the body succeeds, else is removed."""
        with storage_faults("writing", path), writing.replacing(path, mode) as file:
            yield file

    def write_new(self, path: Path, data: bytes) -> None:
        """Make a file and its folders; something that exists already is an error and stays."""
        with storage_faults("writing", path):
            writing.write_new(path, (data,), 0o644, make=True)

    def append_bytes(self, path: Path, data: bytes) -> None:
        """Append to a regular file, or make it; follows no link."""
        with (
            storage_faults("appending to", path),
            os.fdopen(writing.open_file(path, APPEND_FLAGS, 0o644), "ab") as file,
        ):
            require_regular(path, os.fstat(file.fileno()))
            file.write(data)

    def refuse_brought_link(self, path: Path) -> None:
        """Refuse a path that is, or leads through, a link in a checkout; see `writing.py`."""
        with storage_faults("looking at", path):
            writing.refuse_brought_link(path)

    def refuse_links(self, path: Path, *, below: Path) -> None:
        """Refuse a path that is a link, or leads through one, below a folder."""
        with storage_faults("looking at", path):
            refuse_links(path, below)

    def owner(self, path: Path) -> tuple[int, int]:
        """Return the user and group that own the path, or a link itself."""
        with storage_faults("looking at", path):
            facts = os.lstat(path)
            return facts.st_uid, facts.st_gid

    def copy_file(self, source: Path, target: Path, *, max_bytes: int) -> str:
        """Copy a regular file's bytes to a new file, with new folders; return the copy's SHA-256.

        Raises `StorageError` if something exists at the target. The digest covers the copy's bytes,
        whatever happens to the source meanwhile, and every byte is read once.
        """
        with open_regular(source, max_bytes) as file, storage_faults("writing", target):
            writing.make_folders(target.parent)
            require_room(target, os.fstat(file.fileno()).st_size)
            with writing.new_file(target, 0o644) as descriptor:
                # shared by the file system (reflink): then the copy itself is read for the digest
                if not share_bytes(file.fileno(), descriptor):
                    return _hashed(file, descriptor)
                with io.BufferedReader(CappedReader(os.dup(descriptor), source, max_bytes)) as copy:
                    return hashlib.file_digest(copy, "sha256").hexdigest()

    def link(self, path: Path, target: Path) -> None:
        """Make a symbolic link, which never replaces anything."""
        with storage_faults("making", path):
            writing.symbolic_link(path, str(target), make=True)

    def short_link(self, target: Path, *, for_others: bool) -> Path | None:
        """Return a short path that links to a folder; see `make`."""
        return make(target, for_others=for_others)

    def drop_short_link(self, target: Path) -> None:
        """Remove the short link, unless another account made it."""
        drop(target)

    def move_file(self, source: Path, target: Path) -> None:
        """Rename a file on the same disk, making the target's folder as needed.

        A file at the target is replaced.
        """
        with storage_faults("moving to", target):
            writing.rename(source, target, make=True)

    def byte_code(self, module: Path) -> bytes:
        """Return a module's byte code for this interpreter, with the header of a `.pyc`.

        It is valid for the current source, whatever the modification times of a copy are. Existing
        byte code is used. Otherwise Python compiles the module and caches the result, as an import
        does.
        """
        with storage_faults("compiling", module):
            loader = SourceFileLoader(module.stem, str(module))
            # Unchecked, which is safe because byte code is only shipped together with its source.
            flags = UNCHECKED_HASH.to_bytes(4, "little")
            digest = source_hash(loader.get_data(str(module)))
            return MAGIC_NUMBER + flags + digest + marshal.dumps(loader.get_code(module.stem))

    def held_folder(self, path: Path) -> AbstractContextManager[None]:
        """Lock a folder for this process, or raise `SettingsError`; see `folder_lock.py`."""
        return held_folder(path)

    def one_writer(self, path: Path) -> AbstractContextManager[None]:
        """Keep other writers out of a folder while the body runs; see `folder_lock.py`."""
        return one_writer(path)

    def fresh_folder(self, path: Path, *, mode: int = 0o755) -> None:
        """Make an empty folder with exactly `mode`, removing anything that was there."""
        self.remove_tree(path)
        with storage_faults("making", path):
            writing.make_folders(path.parent)
            writing.new_folder(path)
            writing.set_mode(path, mode)

    def copy_tree(self, source: Path, target: Path, *, max_bytes: int | None = None) -> None:
        """Copy a folder of regular files and links into a new or empty one, keeping links as links.

        Permissions and modification times are kept, so that every copy looks the same to a script.
        Raises `StorageError` if the files have more than `max_bytes` in total.
        """
        trees.copy_tree(source, target, max_bytes=max_bytes)

    def keep_only(self, folder: Path, keep: Callable[[str], bool]) -> None:
        """Remove the files of a copy that `keep` rejects, and then empty folders."""
        trees.keep_only(folder, keep)

    def let_read(self, path: Path, *, gid: int | None = None) -> None:
        """Do `chmod -R a+rX,a-w` without following links; folders stay writable for their owner.

        With `gid` only that group may read, only the entries that belong to the folder's owner, and
        the owner's own permissions stay. Call it only when no process is left that could change
        something meanwhile.
        """
        with storage_faults("opening", path):
            if gid is None:
                trees.let_read(path)
            else:
                trees.let_group_read(path, gid)

    def set_aside(self, path: Path, target: Path) -> None:
        """Rename a folder for later removal, without its large files; `trees.py` says why."""
        with storage_faults("moving to", target):
            trees.set_aside(path, target)

    def remove_tree(self, path: Path) -> None:
        """Remove a path, whatever its permissions and depth; follows no link."""
        with storage_faults("removing", path):
            trees.remove_tree(path)

    def tree_digest(self, folder: Path) -> str:
        """Return the digest of an exported tree as it is on disk now, computed as at its export."""
        return digest_on_disk(folder)

    def give_to(self, path: Path, uid: int, gid: int) -> None:
        """Make another account the owner of a folder and everything in it, including links."""
        with storage_faults("giving away", path):
            trees.give_to(path, uid, gid)


def _hashed(source: io.BufferedReader, target: int) -> str:
    """Copy the rest of a file and return the SHA-256 of what was written."""
    hasher = hashlib.sha256()
    for chunk in trees.chunks_of(source):
        hasher.update(chunk)
        write_all(target, chunk)
    return hasher.hexdigest()
