"""The digest of a tree of files as it lies on disk, to be held against that of its export."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gate.codec.digests import sha256_hex, tree_digest
from gate.edges.git_objects import LINK, plain_mode
from gate.edges.reading import open_regular
from gate.edges.storage_faults import storage_faults
from gate.edges.trees import chunks_of, open_folder

MAX_FILE_BYTES = 64 * 1024**3


def digest_on_disk(tree: Path) -> str:
    """Covers paths, modes and bytes, as the digest of an export does; no link is followed.

    Raises `StorageError` for what an export never writes: a FIFO, a socket, a device.
    """
    return tree_digest(_entries(tree))


def _entries(tree: Path) -> Iterator[tuple[str, str, str]]:
    pending = [Path()]
    while pending:
        folder = pending.pop()
        with storage_faults("reading", tree / folder):
            names = _names(tree / folder)
        for name in names:
            relative = folder / name
            with storage_faults("reading", tree / relative):
                facts = os.lstat(tree / relative)
                if stat.S_ISDIR(facts.st_mode):
                    pending.append(relative)
                else:
                    yield (str(relative), *_mode_and_digest(tree / relative, facts))


def _names(folder: Path) -> list[str]:
    with open_folder(folder) as descriptor, os.scandir(descriptor) as entries:
        return [entry.name for entry in entries]


def _mode_and_digest(path: Path, facts: os.stat_result) -> tuple[str, str]:
    if stat.S_ISLNK(facts.st_mode):
        # Path.readlink would tidy the text, and the text is what is hashed
        return LINK, sha256_hex(os.readlink(os.fsencode(path)))  # noqa: PTH115
    hasher = hashlib.sha256()
    with open_regular(path, MAX_FILE_BYTES) as file:
        for chunk in chunks_of(file):
            hasher.update(chunk)
    return plain_mode(facts.st_mode), hasher.hexdigest()
