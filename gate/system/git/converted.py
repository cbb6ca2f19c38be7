"""The files of a commit that a clone has in other bytes than the commit: what `.gitattributes` ask.

git itself converts them, in an empty repository that borrows the clone's objects. So line ends,
`ident` and `working-tree-encoding` are a fresh clone's; no filter, no file of attributes and no
setting of this clone or machine is known there.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from gate.errors import CommitError, RepositoryError
from gate.system.files import writing
from gate.system.files.storage_faults import storage_faults
from gate.system.git.command import GitCommand
from gate.system.git.objects import PERMISSIONS, TreeEntry
from gate.text.untrusted_text import safe_line

ATTRIBUTES: Final = ".gitattributes"
ASKED: Final = ("eol", "ident", "working-tree-encoding", "filter")
UNSPECIFIED: Final = "unspecified"
NO_DRIVER: Final = frozenset({UNSPECIFIED, "unset", "set"})
LFS: Final = "lfs"
LFS_POINTER: Final = b"version https://git-lfs.github.com/spec/"
# what a filter may be that gives back what it is given
PLAIN_PROGRAMS: Final = frozenset({"", "cat"})
FILTER_KEYS: Final = r"^filter\..*\.(smudge|process)$"
CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ConvertedFiles:
    """A folder with the converted files; a path of the commit that is not in it is as committed."""

    folder: Path
    paths: frozenset[str]

    def place(self, path: str) -> Path | None:
        """Where the converted file is, or None for one that a clone has as it was committed."""
        if path not in self.paths:
            return None
        place = self.folder / path
        with storage_faults("reading", place), place.open("rb") as file:
            # the pointer is fetched by its own text, whatever else its attributes ask
            return None if file.read(len(LFS_POINTER)) == LFS_POINTER else place


def filter_programs(git: GitCommand) -> frozenset[str]:
    """The filters for which the clone's own configuration names a program that a checkout runs."""
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
    """The converted files of a commit, while the body runs; `programs` are `filter_programs`.

    Raises `CommitError` for a file that a checkout here would run a program for, and for attributes
    that git refuses.
    """
    files = [entry.path for entry in entries if entry.mode in PERMISSIONS]
    # the usual case asks git nothing
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
        # every other end of lines is git's own, and what is not `crlf` changes no checkout
        elif value == "crlf" if name == "eol" else value != UNSPECIFIED:
            paths[path] = None
    return list(paths)


class _EmptyClone:
    """A new repository in `made` with the index of one commit and the objects of another clone."""

    def __init__(self, git: GitCommand, made: Path, commit: str) -> None:
        objects = git.output("rev-parse", "--git-path", "objects").removesuffix(b"\n")
        self.folder = made / "tree"
        self._git = GitCommand(self.folder, search_path=git.search_path)
        kind = "sha256" if len(commit) > len("0" * 40) else "sha1"
        with storage_faults("writing", made):
            writing.new_folder(self.folder)
            self._git.output("init", "-q", f"--object-format={kind}", "--template=")
            alternates = self.folder / ".git" / "objects" / "info" / "alternates"
            writing.make_folders(alternates.parent)
            there = os.fsencode(git.folder / os.fsdecode(objects))
            writing.write_whole(alternates, there + b"\n")
        self._git.output("read-tree", "--end-of-options", commit)

    def attributes(self, paths: list[str]) -> Iterator[tuple[str, str, str]]:
        """Each path with each attribute that was asked for and its value, by the commit alone."""
        with (
            _listed(paths) as wanted,
            self._git.stream(
                "check-attr", "--cached", "-z", "--stdin", *ASKED, stdin=wanted
            ) as answers,
        ):
            rows = _rows(answers)
            # three words an attribute (git-check-attr(1), OUTPUT)
            for path in rows:
                yield path, next(rows, ""), next(rows, "")

    def check_out(self, paths: list[str]) -> None:
        """Write the files as a clone has them.

        git asks files of attributes in the work tree first, so they come last, one at a time.
        """
        plain = [path for path in paths if path.rpartition("/")[2] != ATTRIBUTES]
        own = [path for path in paths if path.rpartition("/")[2] == ATTRIBUTES]
        self._write(plain)
        # the deepest first: what is above it would speak for it
        for path in sorted(own, key=lambda one: -one.count("/")):
            self._write([path])

    def _write(self, paths: list[str]) -> None:
        if not paths:
            return
        words = ("checkout-index", "--quiet", "-z", "--stdin")
        with _listed(paths) as wanted, self._git.stream(*words, stdin=wanted) as said:
            said.read()


@contextmanager
def _listed(paths: list[str]) -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as wanted:
        with storage_faults("writing", Path(tempfile.gettempdir())):
            wanted.write(b"".join(os.fsencode(path) + b"\0" for path in paths))
            wanted.seek(0)
        yield wanted


def _rows(answers: IO[bytes]) -> Iterator[str]:
    rest = b""
    while chunk := answers.read(CHUNK_BYTES):
        *rows, rest = (rest + chunk).split(b"\0")
        yield from map(os.fsdecode, rows)
