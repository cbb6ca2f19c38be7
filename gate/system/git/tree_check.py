"""The digest of a tree of files as it lies on disk, to be held against that of its export."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gate.system.files.reading import READ_FLAGS, require_regular
from gate.system.files.storage_faults import storage_faults
from gate.system.files.trees import open_folder
from gate.system.git.objects import LINK, plain_mode
from gate.text.codec_digests import sha256_hex, tree_digest


def digest_on_disk(tree: Path) -> str:
    """Covers paths, modes and bytes, as the digest of an export does; no link is followed.

    Raises `StorageError` for what an export never writes: a FIFO, a socket, a device.
    """
    return tree_digest(_entries(tree))


def _entries(tree: Path) -> Iterator[tuple[str, str, str]]:
    pending = [Path()]
    while pending:
        relative = pending.pop()
        with storage_faults("reading", tree / relative), open_folder(tree / relative) as folder:
            found, folders = _read(folder, tree / relative)
        pending += [relative / name for name in folders]
        prefix = f"{relative}/" if relative.parts else ""
        yield from ((f"{prefix}{name}", mode, digest) for name, mode, digest in found)


def _read(folder: int, path: Path) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Name, mode and digest of a folder's files and links; then the names of its folders."""
    found, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode):
                folders.append(entry.name)
            elif stat.S_ISLNK(facts.st_mode):
                # as bytes, and not followed: the text of a link is its content
                destination = os.readlink(os.fsencode(entry.name), dir_fd=folder)
                found.append((entry.name, LINK, sha256_hex(destination)))
            else:
                require_regular(path / entry.name, facts)
                with os.fdopen(os.open(entry.name, READ_FLAGS, dir_fd=folder), "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                found.append((entry.name, plain_mode(facts.st_mode), digest))
    return found, folders
