"""Reading that trusts nothing and writing that loses nothing.

The name is a link in a folder of everybody's, so three things keep it ours: only an account that
owns it, or root, may remove it there (the sticky bit); a link of another account is never used; and
the kernel lets another account follow it only where the owner of that folder made it
(fs.protected_symlinks in proc_sys_fs(5)).
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
    """The same for the same folder: a path that moved would be another input of the training."""
    digest = hashlib.sha256(os.fsencode(target)).hexdigest()[:DIGITS]
    return PLACE / f"rg-{digest}"


def make(target: Path, *, for_others: bool) -> Path | None:
    """Have the link, rebuilt where it leads elsewhere; None where it cannot be had safely."""
    link = name_for(target)
    if len(os.fsencode(link)) >= len(os.fsencode(target)):
        return None
    try:
        place = PLACE.lstat()
        if not stat.S_ISDIR(place.st_mode) or not place.st_mode & stat.S_ISVTX:
            return None
        if place.st_uid not in ({os.geteuid()} if for_others else {0, os.geteuid()}):
            return None
        if not _leads(link, target):
            _drop(link)
            writing.symbolic_link(link, str(target))
    except OSError:
        # the long path serves as well, but for sockets
        return None
    return link


def drop(target: Path) -> None:
    """Remove the link to a folder, if it is ours."""
    try:
        _drop(name_for(target))
    except OSError:
        return


def _leads(link: Path, target: Path) -> bool:
    if not link.is_symlink() or link.lstat().st_uid != os.geteuid():
        return False
    return link.readlink() == target


def _drop(link: Path) -> None:
    """Never what another account has made, and never anything but a link."""
    if link.is_symlink() and link.lstat().st_uid == os.geteuid():
        writing.remove(link)


# O_NONBLOCK: a FIFO that nobody reads must not hold up the end of a job
APPEND_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

# of a `.pyc` (PEP 552): it is known by the hash of its text, and Python need not look at the text
UNCHECKED_HASH = 0b01


class LocalFiles:
    """Every fault is a `StorageError` that names the path."""

    def read_bytes(self, path: Path, *, max_bytes: int) -> bytes:
        """A regular file's whole content, no link followed, `max_bytes` at most."""
        with open_regular(path, max_bytes) as file:
            return file.read()

    @contextmanager
    def open_binary(self, path: Path, *, max_bytes: int) -> Iterator[BinaryIO]:
        """Open a regular file; reading past `max_bytes` is refused even when it grows meanwhile."""
        with open_regular(path, max_bytes) as file:
            # a buffered reader does all that BinaryIO asks; typeshed gives them no common base
            yield cast("BinaryIO", file)

    def exists(self, path: Path) -> bool:
        """Whether something is there, a link included, wherever it leads."""
        with storage_faults("looking at", path):
            try:
                os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def is_folder(self, path: Path) -> bool:
        """Whether a real folder is there; a link to one is none."""
        with storage_faults("looking at", path):
            return self.exists(path) and stat.S_ISDIR(os.lstat(path).st_mode)

    def link_target(self, path: Path) -> str | None:
        """What a symbolic link says; None for anything else."""
        try:
            return os.readlink(path)  # noqa: PTH115 - as it is written, not as a path of this system
        except OSError:
            return None

    def list_names(self, folder: Path, *, max_names: int) -> tuple[str, ...]:
        """The names in a folder, sorted; empty when there is none, refused beyond `max_names`."""
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
        """Replace a file in one step, its folders made as needed.

        Whatever goes wrong, the old content is still there, and no temporary file is.
        """
        with self.replacing(path, mode=mode) as file:
            file.write(data)

    @contextmanager
    def replacing(self, path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
        """A new file that takes the place of `path` when the body ends well, and else is gone."""
        with storage_faults("writing", path), writing.replacing(path, mode) as file:
            yield file

    def write_new(self, path: Path, data: bytes) -> None:
        """Make a file, its folders as needed; what is there already is an error and stays."""
        with storage_faults("writing", path):
            writing.write_new(path, (data,), 0o644, make=True)

    def append_bytes(self, path: Path, data: bytes) -> None:
        """Add to the end of a regular file, made when it is not there; no link followed."""
        with (
            storage_faults("appending to", path),
            os.fdopen(writing.open_file(path, APPEND_FLAGS, 0o644), "ab") as file,
        ):
            require_regular(path, os.fstat(file.fileno()))
            file.write(data)

    def refuse_brought_link(self, path: Path) -> None:
        """Refuse a path that is a link below a checkout, or leads through one; see `writing.py`."""
        with storage_faults("looking at", path):
            writing.refuse_brought_link(path)

    def refuse_links(self, path: Path, *, below: Path) -> None:
        """Refuse a path that is a link or leads through one somewhere below a folder."""
        with storage_faults("looking at", path):
            refuse_links(path, below)

    def owner(self, path: Path) -> tuple[int, int]:
        """The user and group that own something, a link itself."""
        with storage_faults("looking at", path):
            facts = os.lstat(path)
            return facts.st_uid, facts.st_gid

    def copy_file(self, source: Path, target: Path, *, max_bytes: int) -> str:
        """Copy a regular file's bytes to a new file, its folders as needed.

        What is there already is an error.

        The SHA-256 is over the bytes of the copy, whatever happens to the source meanwhile; every
        byte is read once.
        """
        with open_regular(source, max_bytes) as file, storage_faults("writing", target):
            writing.make_folders(target.parent)
            require_room(target, os.fstat(file.fileno()).st_size)
            with writing.new_file(target, 0o644) as descriptor:
                if not share_bytes(file.fileno(), descriptor):
                    return _hashed(file, descriptor)
                with io.BufferedReader(CappedReader(os.dup(descriptor), source, max_bytes)) as copy:
                    return hashlib.file_digest(copy, "sha256").hexdigest()

    def link(self, path: Path, target: Path) -> None:
        """`os.symlink`, which never replaces what is there."""
        with storage_faults("making", path):
            writing.symbolic_link(path, str(target), make=True)

    def short_link(self, target: Path, *, for_others: bool) -> Path | None:
        """A short path that leads to a folder; see `short_links.py`."""
        return make(target, for_others=for_others)

    def drop_short_link(self, target: Path) -> None:
        """Remove it; what another account has made stays."""
        drop(target)

    def move_file(self, source: Path, target: Path) -> None:
        """Give a file another name on the same disk, in a folder made if need be.

        What was there is replaced.
        """
        with storage_faults("moving to", target):
            writing.rename(source, target, make=True)

    def byte_code(self, module: Path) -> bytes:
        """The byte-code of a module of this interpreter's kind, with the header of a `.pyc`.

        It is valid for the text that is there now, whatever the times of a copy say. What Python
        has compiled before is taken, and otherwise kept as an import would keep it.
        """
        with storage_faults("compiling", module):
            loader = SourceFileLoader(module.stem, str(module))
            # unchecked: byte-code is only shipped together with its source
            flags = UNCHECKED_HASH.to_bytes(4, "little")
            digest = source_hash(loader.get_data(str(module)))
            return MAGIC_NUMBER + flags + digest + marshal.dumps(loader.get_code(module.stem))

    def held_folder(self, path: Path) -> AbstractContextManager[None]:
        """A folder for this process alone, see `folder_lock.py`; another's is a `SettingsError`."""
        return held_folder(path)

    def one_writer(self, path: Path) -> AbstractContextManager[None]:
        """A folder whose files no other writer changes meanwhile, see `folder_lock.py`."""
        return one_writer(path)

    def fresh_folder(self, path: Path, *, mode: int = 0o755) -> None:
        """Make an empty folder of exactly `mode`, removing what was there."""
        self.remove_tree(path)
        with storage_faults("making", path):
            writing.make_folders(path.parent)
            writing.new_folder(path)
            writing.set_mode(path, mode)

    def copy_tree(self, source: Path, target: Path, *, max_bytes: int | None = None) -> None:
        """Copy a folder into a new or empty one: regular files, and links as links.

        Permissions and times of modification stay, so that every copy looks the same to a script.
        `StorageError` when the files hold more than `max_bytes` together.
        """
        trees.copy_tree(source, target, max_bytes=max_bytes)

    def keep_only(self, folder: Path, keep: Callable[[str], bool]) -> None:
        """Remove what is not to be kept of a copy, and folders that are empty then."""
        trees.keep_only(folder, keep)

    def let_read(self, path: Path, *, gid: int | None = None) -> None:
        """`chmod -R a+rX,a-w`, no link followed; folders stay writable for their owner.

        With `gid` only that group may read, and only what the folder's owner has in it; the owner's
        own permissions stay. Only where nobody lives who could change something meanwhile.
        """
        with storage_faults("opening", path):
            if gid is None:
                trees.let_read(path)
            else:
                trees.let_group_read(path, gid)

    def set_aside(self, path: Path, target: Path) -> None:
        """Give a folder another name until it is removed with others, without its large files.

        Making many files is slow where many have just been removed; see `trees.py`.
        """
        with storage_faults("moving to", target):
            trees.set_aside(path, target)

    def remove_tree(self, path: Path) -> None:
        """Remove what is there, whatever its permissions and depth; no link is followed."""
        with storage_faults("removing", path):
            trees.remove_tree(path)

    def tree_digest(self, folder: Path) -> str:
        """The digest of an exported tree as it lies on disk now, as its export gave it."""
        return digest_on_disk(folder)

    def give_to(self, path: Path, uid: int, gid: int) -> None:
        """Make another account the owner of a folder and of all in it, links themselves too."""
        with storage_faults("giving away", path):
            trees.give_to(path, uid, gid)


def _hashed(source: io.BufferedReader, target: int) -> str:
    """Write what is read, and hash it on its way."""
    hasher = hashlib.sha256()
    for chunk in trees.chunks_of(source):
        hasher.update(chunk)
        write_all(target, chunk)
    return hasher.hexdigest()
