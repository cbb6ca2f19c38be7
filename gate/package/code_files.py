"""What the package holds of the code: lock files, on request the commit, of a dirty tree the diff.

Taken before the first training: git does not look at a clone that was trained beside.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gate.errors import StorageError
from gate.evidence.lock_files import MAX_LOCK_BYTES, LockFile, Locks
from gate.package.seal_records import PackageMember
from gate.system.files.port import Files
from gate.system.git.port import Git
from gate.text.digests import file_diff
from gate.text.package_names import name_problem
from gate.training.runs import Snapshot
from gate.verdict.request import GateRequest

FOLDER: Final = "code"
LOCKS: Final = "locks"
SOURCE_MEMBER: Final = "source.pack"
DIFF_MEMBER: Final = "uncommitted.diff"
MAX_DIFF_BYTES: Final = 1024 * 1024
MAX_FILE_BYTES: Final = 1024 * 1024
CUT: Final = "\n[cut here: a package holds 1 MiB of a diff]\n"


def keep_code(
    request: GateRequest, git: Git, snapshot: Snapshot, locks: Locks, files: Files
) -> None:
    """Put it below the output folder, where `code_members` finds it."""
    folder = request.out / FOLDER
    files.fresh_folder(folder)
    for lock in locks:
        if _packed(lock):
            target = folder / LOCKS / lock.path
            files.copy_file(snapshot.tree / lock.path, target, max_bytes=MAX_LOCK_BYTES)
    if snapshot.changed_files:
        text = "".join(_differences(git, snapshot, files))
        files.write_bytes(folder / DIFF_MEMBER, _cut(text.encode("utf-8", "replace")))
    elif request.settings.package.source:
        with files.replacing(folder / SOURCE_MEMBER) as pack:
            git.write_source(snapshot.commit, pack)


def code_members(out: Path, locks: Locks, files: Files) -> Iterator[PackageMember]:
    """The members that `keep_code` made; a lock file has to be what the evidence says of it."""
    for lock in locks:
        if _packed(lock):
            path = out / FOLDER / LOCKS / lock.path
            yield PackageMember(name=f"{LOCKS}/{lock.path}", path=path, sha256=lock.sha256)
    for name in (SOURCE_MEMBER, DIFF_MEMBER):
        if files.exists(out / FOLDER / name):
            yield PackageMember(name=name, path=out / FOLDER / name)


def _packed(lock: LockFile) -> bool:
    """Whether it was read, and lies under a name that a package can hold."""
    return bool(lock.sha256) and not name_problem(f"{LOCKS}/{lock.path}")


def _differences(git: Git, snapshot: Snapshot, files: Files) -> Iterator[str]:
    """Each changed file, until there is more than a package takes."""
    left = MAX_DIFF_BYTES
    for path in snapshot.changed_files:
        before = git.read_file(snapshot.commit, path)
        text = file_diff(path, before, _now(snapshot, path, files))
        yield text
        left -= len(text)
        if left < 0:
            return


def _now(snapshot: Snapshot, path: str, files: Files) -> bytes | None:
    """The file as it was trained; no text where it is too large or no file."""
    if not files.exists(snapshot.tree / path):
        return None
    try:
        return files.read_bytes(snapshot.tree / path, max_bytes=MAX_FILE_BYTES)
    except StorageError:
        return b"\0"


def _cut(data: bytes) -> bytes:
    if len(data) <= MAX_DIFF_BYTES:
        return data
    mark = CUT.encode("ascii")
    whole = data[: MAX_DIFF_BYTES - len(mark)]
    # no half a character before the mark
    return whole.decode("utf-8", "ignore").encode("utf-8") + mark
