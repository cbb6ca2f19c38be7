"""Writing a tree of files out of a repository, and its digest.

No checkout and no archive in the repository itself: those run filters that it chooses.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO

from gate.errors import CommitError, RepositoryError
from gate.system.files import writing
from gate.system.files.reading import open_regular
from gate.system.files.storage_faults import storage_faults
from gate.system.files.trees import chunks_of
from gate.system.git.command import GitCommand
from gate.system.git.converted import ConvertedFiles, converted_files
from gate.system.git.objects import (
    LINK,
    PERMISSIONS,
    SUBMODULE,
    TreeEntry,
    check_path,
    odd_mode,
    plain_mode,
    submodule,
    true_mode,
    unsafe_path,
)
from gate.text.codec_digests import sha256_hex, tree_digest
from gate.text.untrusted_text import safe_line

CHUNK_BYTES = 1024 * 1024
MAX_LINK_BYTES = 4096
MAX_FILE_BYTES = 64 * 1024**3


class TreeWriter:
    """Writes files below `target` and notes what they were.

    Links come last, in `digest`: while files are written there is none that could lead one astray.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._entries: list[tuple[str, str, str]] = []
        self._links: dict[str, bytes] = {}
        with storage_faults("making", target):
            writing.make_folders(target)

    def file(self, path: str, mode: str, chunks: Iterable[bytes]) -> None:
        """Write one regular file; `mode` is git's."""
        # git refuses bad names in a checkout, and this is none: the path is the commit's own word
        there = self._target / check_path(path)
        permissions = PERMISSIONS.get(mode, 0o644)
        hasher = hashlib.sha256()

        def hashed() -> Iterator[bytes]:
            for chunk in chunks:
                hasher.update(chunk)
                yield chunk

        with storage_faults("writing", there):
            writing.write_new(there, hashed(), permissions, make=True)
        self._entries.append((path, plain_mode(permissions), hasher.hexdigest()))

    def link(self, path: str, destination: bytes) -> None:
        """Note a link for the end."""
        if not 0 < len(destination) <= MAX_LINK_BYTES or b"\0" in destination:
            raise CommitError(
                f"{safe_line(path)} is a link that no file system can store",
                hint="Remove it from the commit.",
            )
        self._links[check_path(path)] = destination
        self._entries.append((path, LINK, sha256_hex(destination)))

    def digest(self) -> str:
        """Make the links, refuse one that leads outside, and give the digest of the whole tree."""
        for path, destination in self._links.items():
            self._make_link(path, destination)
        root = self._target.resolve()
        for path, destination in self._links.items():
            # resolved on disk: links that go through links cannot be judged by their text
            real = Path(os.path.realpath(self._target / path))
            if destination.startswith(b"/") or not real.is_relative_to(root):
                raise CommitError(
                    f"the link {safe_line(path)} points out of the repository: "
                    f"{safe_line(destination)}",
                    hint="Replace it with a relative link inside the repository, or with the file.",
                )
        return tree_digest(self._entries)

    def _make_link(self, path: str, destination: bytes) -> None:
        """A forged tree can hold a link and a folder of the same name: never write through it."""
        if any(str(folder) in self._links for folder in PurePosixPath(path).parents):
            raise unsafe_path(path)
        there = self._target / path
        with storage_faults("writing", there):
            writing.symbolic_link(there, os.fsdecode(destination), make=True)


def write_commit(
    git: GitCommand,
    entries: tuple[TreeEntry, ...],
    target: Path,
    commit: str,
    *,
    programs: frozenset[str] = frozenset(),
) -> str:
    """Write the entries of a commit; the digest covers paths, modes and bytes.

    Bytes are those that a fresh clone has; `programs` are the filters that the clone would run.

    Raises `CommitError` for what cannot be written, before anything is where the list tells.
    """
    for entry in entries:
        check_path(entry.path)
        if entry.mode == SUBMODULE:
            raise _no_file(git, entry, commit)
    writer = TreeWriter(target)
    with (
        converted_files(git, entries, commit, programs) as converted,
        stored_content(git, entries) as answers,
    ):
        for entry in entries:
            _write_entry(writer, entry, answers, converted)
    return writer.digest()


@contextmanager
def stored_content(git: GitCommand, entries: tuple[TreeEntry, ...]) -> Iterator[IO[bytes]]:
    """What `git cat-file --batch` prints of these objects, one after the other."""
    with tempfile.TemporaryFile() as wanted:
        with storage_faults("writing", Path(tempfile.gettempdir())):
            wanted.write(b"".join(entry.object_id.encode("ascii") + b"\n" for entry in entries))
            wanted.seek(0)
        # one process for all files: by object id, so no attribute and no filter is asked
        with git.stream("cat-file", "--batch", "--buffer", stdin=wanted) as answers:
            yield answers


def _no_file(git: GitCommand, entry: TreeEntry, commit: str) -> CommitError:
    """A submodule, or a mode that git takes for one."""
    folder, _, name = entry.path.rpartition("/")
    tree = git.output("cat-file", "tree", f"{commit}:{folder}")
    mode = true_mode(tree, os.fsencode(name), len(entry.object_id) // 2)
    return submodule(entry.path) if mode in {SUBMODULE, ""} else odd_mode(entry.path, mode)


def _write_entry(
    writer: TreeWriter, entry: TreeEntry, answers: IO[bytes], converted: ConvertedFiles
) -> None:
    size = size_of_next(answers, entry.path)
    there = converted.place(entry.path)
    if entry.mode == LINK:
        # one byte more than a link may have tells as well as all of them
        writer.link(entry.path, b"".join(exactly(answers, min(size, MAX_LINK_BYTES + 1))))
    elif there is not None:
        for _ in exactly(answers, size):
            pass
        with open_regular(there, MAX_FILE_BYTES) as file:
            writer.file(entry.path, entry.mode, chunks_of(file))
    else:
        writer.file(entry.path, entry.mode, exactly(answers, size))
    # a line feed follows each object (git-cat-file(1), BATCH OUTPUT)
    answers.read(1)


def size_of_next(answers: IO[bytes], path: str) -> int:
    """The bytes of the object that comes next; `RepositoryError` where this clone lacks it."""
    header = answers.readline().split()
    if len(header) != 3 or header[1] != b"blob":  # noqa: PLR2004 - name, type, size
        raise RepositoryError(
            f"the clone lacks the content of {safe_line(path)}",
            hint="Clone without --filter (actions/checkout: no `filter` input), so that every "
            "file of the commit is there.",
        )
    return int(header[2])


def exactly(stream: IO[bytes], size: int) -> Iterator[bytes]:
    """The next `size` bytes, piece by piece; `RepositoryError` when there are fewer."""
    while size > 0:
        chunk = stream.read(min(size, CHUNK_BYTES))
        if not chunk:
            raise RepositoryError(
                "git stopped in the middle of a file",
                hint="Check the clone with `git fsck`, or clone again.",
            )
        size -= len(chunk)
        yield chunk


def write_work_tree(top: Path, paths: Iterable[str], target: Path) -> str:
    """Write files as they are on disk; one that is not there any more is left out."""
    writer = TreeWriter(target)

    @cache
    def is_real(folder: Path) -> bool:
        """Whether no folder on the way down from the top is a link: git sees nothing behind one."""
        return folder == top or (stat.S_ISDIR(os.lstat(folder).st_mode) and is_real(folder.parent))

    for path in paths:
        source = top / check_path(path.removesuffix("/"))
        with storage_faults("reading", source):
            try:
                here = is_real(source.parent) and bool(os.lstat(source))
            except (FileNotFoundError, NotADirectoryError):
                here = False
        if here:
            _write_from_disk(writer, path, source)
    return writer.digest()


def _write_from_disk(writer: TreeWriter, path: str, source: Path) -> None:
    facts = os.lstat(source)
    if stat.S_ISDIR(facts.st_mode):
        raise submodule(path)
    if stat.S_ISLNK(facts.st_mode):
        # Path.readlink would tidy the text, and the text is what is hashed
        writer.link(path, os.readlink(os.fsencode(source)))  # noqa: PTH115
        return
    with open_regular(source, MAX_FILE_BYTES) as file:
        writer.file(path, plain_mode(facts.st_mode), chunks_of(file))
