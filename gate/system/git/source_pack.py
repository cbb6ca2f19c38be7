"""A commit as one file: its own object, its trees and its blobs, in git's pack format.

What comes out of such a file is named by its own hash, so it can be nothing but the commit that was
packed; git's index-pack checks every object of it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import BinaryIO

from gate.errors import RepositoryError
from gate.system.files import writing
from gate.system.files.storage_faults import storage_faults
from gate.system.git.command import GitCommand

CHUNK_BYTES = 1024 * 1024
# one spelling of each pack: nothing reused, nothing compressed, no thread that is faster
ONE_SPELLING = ("pack.compression=0", "core.compression=0", "pack.threads=1", "pack.window=0")
BROKEN_HINT = "The package was damaged, or is no package of the gate; fetch it again."


def write_source_pack(folder: Path, commit: str, target: BinaryIO) -> None:
    """Write a commit of the repository in `folder`; the same bytes every time.

    Raises `RepositoryError` where an object is missing, as in a partial clone.
    """
    git = GitCommand(folder, overrides=ONE_SPELLING)
    with tempfile.TemporaryFile() as wanted:
        with git.stream("rev-list", "--objects", "--no-walk", "--end-of-options", commit) as listed:
            while row := listed.readline():
                # the hash alone: a path behind it would be a hint for the order
                wanted.write(row.split(b" ", 1)[0].rstrip(b"\n") + b"\n")
        wanted.seek(0)
        words = ("--stdout", "--no-reuse-delta", "--no-reuse-object", "--quiet")
        with git.stream("pack-objects", *words, stdin=wanted) as packed:
            while chunk := packed.read(CHUNK_BYTES):
                target.write(chunk)


def open_source_pack(pack: BinaryIO, commit: str, folder: Path) -> None:
    """Make a repository of one commit in the new folder `folder`.

    Raises `RepositoryError` where the file is no pack, is damaged, or lacks a part of the commit.
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
            # its parents are elsewhere, and nobody will ask for them
            writing.write_whole(folder / ".git" / "shallow", f"{commit}\n".encode("ascii"))
        git.output("update-ref", "--no-deref", "HEAD", commit)
        git.output("rev-list", "--objects", "--no-walk", "--quiet", "--end-of-options", commit)
    except RepositoryError as error:
        raise RepositoryError(
            f"the packed source does not hold commit {commit[:12]}",
            hint=BROKEN_HINT,
            details=(error.message,),
        ) from error
