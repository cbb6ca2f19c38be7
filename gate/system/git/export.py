"""Export a tree of files from a repository, compute its digest, and pack a commit.

The exported bytes are those of a fresh clone. No checkout and no `git archive` runs in the
repository itself, because both run filters that its configuration names. Instead git converts the
files in an empty repository that borrows the clone's objects. There git applies line ends, `ident`
and `working-tree-encoding`, but knows no filter, no attributes file and no setting of this clone or
machine.

A source pack contains a commit that is named by its own hash, and git's index-pack checks every
object. So a pack that opens can only be the commit that was packed.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Final

from gate.errors import CommitError, RepositoryError
from gate.system.files import writing
from gate.system.files.regular_files import (
    READ_FLAGS,
    open_regular,
    require_regular,
    storage_faults,
)
from gate.system.files.trees import chunks_of, open_folder
from gate.system.git.command import GitCommand
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
from gate.text.digests import sha256_hex, tree_digest
from gate.text.untrusted_text import safe_line

ATTRIBUTES: Final = ".gitattributes"
ASKED: Final = ("eol", "ident", "working-tree-encoding", "filter")
UNSPECIFIED: Final = "unspecified"
NO_DRIVER: Final = frozenset({UNSPECIFIED, "unset", "set"})
LFS: Final = "lfs"
LFS_POINTER: Final = b"version https://git-lfs.github.com/spec/"
# A filter with one of these programs returns its input unchanged.
PLAIN_PROGRAMS: Final = frozenset({"", "cat"})
FILTER_KEYS: Final = r"^filter\..*\.(smudge|process)$"
CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ConvertedFiles:
    """A folder with the files that git had to convert; all other files are as committed."""

    folder: Path
    paths: frozenset[str]

    def place(self, path: str) -> Path | None:
        """Return the converted file, or None if a clone has this file as it was committed."""
        if path not in self.paths:
            return None
        place = self.folder / path
        with storage_faults("reading", place), place.open("rb") as file:
            # A Git LFS pointer stays as committed: `data/lfs.py` fetches the file by the pointer's
            # text.
            return None if file.read(len(LFS_POINTER)) == LFS_POINTER else place


def filter_programs(git: GitCommand) -> frozenset[str]:
    """Return the filters for which the clone's configuration names a program to run at checkout."""
    rows = git.run("config", "-z", "--get-regexp", FILTER_KEYS).stdout.split(b"\0")
    pairs = (os.fsdecode(row).partition("\n") for row in rows if row)
    return frozenset(
        key.removeprefix("filter.").rpartition(".")[0]
        for key, _, program in pairs
        if program.strip() not in PLAIN_PROGRAMS
    )


@contextmanager
def converted_files(
    git: GitCommand, entries: tuple[TreeEntry, ...], commit: str, programs: frozenset[str]
) -> Iterator[ConvertedFiles]:
    """Convert a commit's files while the body runs; `programs` comes from `filter_programs`.

    Raises `CommitError` for a file for which a checkout here would run a program, and for
    attributes that git refuses.
    """
    files = [entry.path for entry in entries if entry.mode in PERMISSIONS]
    # Usually a commit has no attributes, and then git need not be asked.
    if not any(path.rpartition("/")[2] == ATTRIBUTES for path in files):
        yield ConvertedFiles(Path(), frozenset())
        return
    with tempfile.TemporaryDirectory() as made:
        clone = _EmptyClone(git, Path(made), commit)
        paths = _to_convert(clone, files, programs)
        try:
            clone.check_out(paths)
        except RepositoryError as error:
            raise CommitError(
                "git cannot check out this commit as its .gitattributes ask",
                hint="Correct the attributes: `git clone` fails on them in the same way.",
                details=error.details,
            ) from error
        yield ConvertedFiles(clone.folder, frozenset(paths))


def _to_convert(clone: _EmptyClone, files: list[str], programs: frozenset[str]) -> list[str]:
    paths: dict[str, None] = {}
    for path, name, value in clone.attributes(files):
        if name == "filter":
            if value in programs and value != LFS and value not in NO_DRIVER:
                raise CommitError(
                    f"{safe_line(path)} goes through the filter {safe_line(value)}, and the gate "
                    "runs no filter of a repository",
                    hint="Take the files that the training reads out of the filter, or declare "
                    "them under `data`.",
                )
        # Of the `eol` values only `crlf` changes a checkout. Of the other attributes, any value
        # may.
        elif value == "crlf" if name == "eol" else value != UNSPECIFIED:
            paths[path] = None
    return list(paths)


class _EmptyClone:
    """A new repository in `made` with one commit's index, which reads another clone's objects."""

    def __init__(self, git: GitCommand, made: Path, commit: str) -> None:
        objects = git.output("rev-parse", "--git-path", "objects").removesuffix(b"\n")
        self.folder = made / "tree"
        self._git = GitCommand(self.folder, search_path=git.search_path)
        kind = "sha256" if len(commit) > len("0" * 40) else "sha1"
        with storage_faults("writing", made):
            writing.new_folder(self.folder)
            self._git.output("init", "-q", f"--object-format={kind}", "--template=")
            # git reads missing objects from the folders listed here (gitrepository-layout(5))
            alternates = self.folder / ".git" / "objects" / "info" / "alternates"
            writing.make_folders(alternates.parent)
            there = os.fsencode(git.folder / os.fsdecode(objects))
            writing.write_whole(alternates, there + b"\n")
        self._git.output("read-tree", "--end-of-options", commit)

    def attributes(self, paths: list[str]) -> Iterator[tuple[str, str, str]]:
        """Yield (path, attribute, value) for each attribute in `ASKED`, from the commit alone."""
        with (
            _listed(paths) as listing,
            self._git.stream(
                "check-attr", "--cached", "-z", "--stdin", *ASKED, stdin=listing
            ) as answers,
        ):
            rows = _rows(answers)
            # git-check-attr(1), OUTPUT: three fields for each attribute
            for path in rows:
                yield path, next(rows, ""), next(rows, "")

    def check_out(self, paths: list[str]) -> None:
        """Write the files as a clone has them.

        git prefers a .gitattributes in the work tree to the one in the index. So these files are
        written last, one at a time.
        """
        plain = [path for path in paths if path.rpartition("/")[2] != ATTRIBUTES]
        own = [path for path in paths if path.rpartition("/")[2] == ATTRIBUTES]
        self._write(plain)
        # The deepest first: an attributes file above would apply to it.
        for path in sorted(own, key=lambda name: -name.count("/")):
            self._write([path])

    def _write(self, paths: list[str]) -> None:
        if not paths:
            return
        words = ("checkout-index", "--quiet", "-z", "--stdin")
        with _listed(paths) as listing, self._git.stream(*words, stdin=listing) as said:
            said.read()


@contextmanager
def _listed(paths: list[str]) -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as listing:
        with storage_faults("writing", Path(tempfile.gettempdir())):
            listing.write(b"".join(os.fsencode(path) + b"\0" for path in paths))
            listing.seek(0)
        yield listing


def _rows(answers: IO[bytes]) -> Iterator[str]:
    rest = b""
    while chunk := answers.read(CHUNK_BYTES):
        *rows, rest = (rest + chunk).split(b"\0")
        yield from map(os.fsdecode, rows)


MAX_LINK_BYTES = 4096
MAX_FILE_BYTES = 64 * 1024**3


class TreeWriter:
    """Writes files below `target` and records their digests.

    `digest` makes the links last. Until then there is no link through which a file could be written
    elsewhere.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._entries: list[tuple[str, str, str]] = []
        self._links: dict[str, bytes] = {}
        with storage_faults("making", target):
            writing.make_folders(target)

    def file(self, path: str, mode: str, chunks: Iterable[bytes]) -> None:
        """Write one regular file; `mode` is git's, such as `100644`."""
        # git refuses bad names in a checkout. This is not a checkout, and the path is the commit's
        # own text.
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
        """Record a link, to be made at the end."""
        if not 0 < len(destination) <= MAX_LINK_BYTES or b"\0" in destination:
            raise CommitError(
                f"{safe_line(path)} is a link that no file system can store",
                hint="Remove it from the commit.",
            )
        self._links[check_path(path)] = destination
        self._entries.append((path, LINK, sha256_hex(destination)))

    def digest(self) -> str:
        """Make the links, refuse any that leads outside, and return the whole tree's digest."""
        for path, destination in self._links.items():
            self._make_link(path, destination)
        root = self._target.resolve()
        for path, destination in self._links.items():
            # Resolved on disk, because a link may go through other links.
            real = Path(os.path.realpath(self._target / path))
            if destination.startswith(b"/") or not real.is_relative_to(root):
                raise CommitError(
                    f"the link {safe_line(path)} points out of the repository: "
                    f"{safe_line(destination)}",
                    hint="Replace it with a relative link inside the repository, or with the file.",
                )
        return tree_digest(self._entries)

    def _make_link(self, path: str, destination: bytes) -> None:
        """Make a link, but never through another one, which a forged tree may list above it."""
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
    """Write the entries of a commit as a fresh clone has them; return the tree's digest.

    The digest covers paths, modes and bytes. `programs` are the filters that the clone would run.
    Raises `CommitError` for entries that cannot be written. Unsafe paths and submodules are found
    before anything is written.
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
    """Provide the output of `git cat-file --batch` for these entries, in their order."""
    with tempfile.TemporaryFile() as content:
        with storage_faults("writing", Path(tempfile.gettempdir())):
            content.write(b"".join(entry.object_id.encode("ascii") + b"\n" for entry in entries))
            content.seek(0)
        # One process for all files. Objects are named by id, so no attribute or filter applies.
        with git.stream("cat-file", "--batch", "--buffer", stdin=content) as answers:
            yield answers


def _no_file(git: GitCommand, entry: TreeEntry, commit: str) -> CommitError:
    """Return the error for a submodule, or for a mode that git shows as a submodule."""
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
        # One byte above the limit is enough for `link` to refuse it.
        writer.link(entry.path, b"".join(exactly(answers, min(size, MAX_LINK_BYTES + 1))))
    elif there is not None:
        for _ in exactly(answers, size):
            pass
        with open_regular(there, MAX_FILE_BYTES) as file:
            writer.file(entry.path, entry.mode, chunks_of(file))
    else:
        writer.file(entry.path, entry.mode, exactly(answers, size))
    # cat-file writes a line feed after each object (git-cat-file(1), BATCH OUTPUT)
    answers.read(1)


def size_of_next(answers: IO[bytes], path: str) -> int:
    """Return the size of the next object; raises `RepositoryError` if this clone lacks it."""
    header = answers.readline().split()
    if len(header) != 3 or header[1] != b"blob":  # noqa: PLR2004 - name, type, size
        raise RepositoryError(
            f"the clone lacks the content of {safe_line(path)}",
            hint="Clone without --filter (actions/checkout: no `filter` input), so that every "
            "file of the commit is there.",
        )
    return int(header[2])


def exactly(stream: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield the next `size` bytes in pieces; raises `RepositoryError` if there are fewer."""
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
    """Write files as they are on disk now, without those that are gone; return the digest."""
    writer = TreeWriter(target)

    @cache
    def is_real(folder: Path) -> bool:
        """Whether the folder and all above it, up to the top, are no links: git looks into none."""
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
        # Path.readlink would normalise the text, but the text itself is hashed.
        writer.link(path, os.readlink(os.fsencode(source)))  # noqa: PTH115
        return
    with open_regular(source, MAX_FILE_BYTES) as file:
        writer.file(path, plain_mode(facts.st_mode), chunks_of(file))


# With these settings git always writes the same pack: no reused deltas, no compression, one thread.
ONE_SPELLING = ("pack.compression=0", "core.compression=0", "pack.threads=1", "pack.window=0")
BROKEN_HINT = "The package was damaged, or is not a package of the gate; fetch it again."


def write_source_pack(folder: Path, commit: str, target: BinaryIO) -> None:
    """Write a commit of the repository in `folder` as a pack; the bytes are the same every time.

    Raises `RepositoryError` if an object is missing, as in a partial clone.
    """
    git = GitCommand(folder, overrides=ONE_SPELLING)
    with tempfile.TemporaryFile() as listing:
        with git.stream("rev-list", "--objects", "--no-walk", "--end-of-options", commit) as listed:
            while row := listed.readline():
                # Only the hash: git would use the path after it as a hint for the pack's order.
                listing.write(row.split(b" ", 1)[0].rstrip(b"\n") + b"\n")
        listing.seek(0)
        words = ("--stdout", "--no-reuse-delta", "--no-reuse-object", "--quiet")
        with git.stream("pack-objects", *words, stdin=listing) as packed:
            while chunk := packed.read(CHUNK_BYTES):
                target.write(chunk)


def open_source_pack(pack: BinaryIO, commit: str, folder: Path) -> None:
    """Make a repository with one commit from a pack, in the new folder `folder`.

    Raises `RepositoryError` if the file is not a pack, is damaged, or lacks a part of the commit.
    """
    with storage_faults("making", folder):
        writing.make_folders(folder.parent)
        writing.new_folder(folder)
    kind = "sha256" if len(commit) > len("0" * 40) else "sha1"
    git = GitCommand(folder)
    git.output("init", "-q", f"--object-format={kind}", "--template=")
    try:
        with git.stream("index-pack", "--stdin", stdin=pack) as said:
            said.read()
        with storage_faults("writing", folder):
            # Marks the commit as shallow: git would otherwise miss its parents, which are not
            # packed.
            writing.write_whole(folder / ".git" / "shallow", f"{commit}\n".encode("ascii"))
        git.output("update-ref", "--no-deref", "HEAD", commit)
        git.output("rev-list", "--objects", "--no-walk", "--quiet", "--end-of-options", commit)
    except RepositoryError as error:
        raise RepositoryError(
            f"the packed source does not hold commit {commit[:12]}",
            hint=BROKEN_HINT,
            details=(error.message,),
        ) from error


def digest_on_disk(tree: Path) -> str:
    """Return the digest of a folder's paths, modes and bytes, as an export computes it.

    No link is followed. Raises `StorageError` for a FIFO, a socket or a device, which an export
    never writes.
    """
    return tree_digest(_entries(tree))


def _entries(tree: Path) -> Iterator[tuple[str, str, str]]:
    pending = [Path()]
    while pending:
        relative = pending.pop()
        with storage_faults("reading", tree / relative), open_folder(tree / relative) as folder:
            files, folders = _read(folder, tree / relative)
        pending += [relative / name for name in folders]
        prefix = f"{relative}/" if relative.parts else ""
        yield from ((f"{prefix}{name}", mode, digest) for name, mode, digest in files)


def _read(folder: int, path: Path) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Return (name, mode, digest) of a folder's files and links, and the names of its folders."""
    files, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode):
                folders.append(entry.name)
            elif stat.S_ISLNK(facts.st_mode):
                # A link's text is its content, so it is not followed. Bytes, because it may not be
                # UTF-8.
                destination = os.readlink(os.fsencode(entry.name), dir_fd=folder)
                files.append((entry.name, LINK, sha256_hex(destination)))
            else:
                require_regular(path / entry.name, facts)
                with os.fdopen(os.open(entry.name, READ_FLAGS, dir_fd=folder), "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                files.append((entry.name, plain_mode(facts.st_mode), digest))
    return files, folders
