"""Write a package: `call.json`, the code, and a tar archive with reproducible bytes.

The code is copied before the first training, because git must not be run in a clone that a training
could have changed.

The archive is written in one pass: each file is read once, and the bytes that are hashed are the
bytes that are written. `SHA256SUMS` lists all other members, so it comes last. The others are
sorted byte-wise by name.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO, Final, Literal, cast

from pydantic import AfterValidator, Field

from gate.errors import AttestationError, StorageError
from gate.evidence.lock_files import MAX_LOCK_BYTES, LockFile, Locks
from gate.package.archive import Readable, TwoDigests, new_pieces, two_digests
from gate.package.seal_records import Package, PackageMember
from gate.package.ustar import (
    END_BYTES,
    MAX_MEMBER_BYTES,
    RECORD_BYTES,
    SUMS_NAME,
    check_names,
    header,
    padding,
    sums_text,
)
from gate.system.files.port import Files
from gate.system.git.repository import Git
from gate.text.digests import file_diff
from gate.text.document import Document, Timestamp, path_inside_project
from gate.text.package_names import name_problem
from gate.training.runs import Snapshot
from gate.verdict.request import GateRequest

CALL_SCHEMA: Final = "repro-gate.call/1"
CALL_NAME: Final = "call.json"
Text = Annotated[str, Field(max_length=2000)]


class CallDocument(Document):
    """The file `call.json`: which call of the gate made the package.

    `config` is the settings file's path in the repository. `repository` is owner/name on GitHub and
    `run_url` the job's address; both are empty outside a job. `settings_digest` covers every
    setting, defaults included. `source` is true if the package contains the commit's files.
    """

    schema_version: Literal["repro-gate.call/1"] = CALL_SCHEMA
    commit: str = Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")
    # relative to the repository: the training starts in the settings file's folder
    config: Annotated[Text, AfterValidator(path_inside_project)]
    settings_digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    snapshot_digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    created_at: Timestamp
    gate_version: Text
    repository: Text = ""
    run_url: Text = ""
    source: bool = False


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
    """Copy lock files, diff or source below the output folder, where `code_members` finds them."""
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
    """Yield the members that `keep_code` made; lock files with the digest that the evidence has."""
    for lock in locks:
        if _packed(lock):
            path = out / FOLDER / LOCKS / lock.path
            yield PackageMember(name=f"{LOCKS}/{lock.path}", path=path, sha256=lock.sha256)
    for name in (SOURCE_MEMBER, DIFF_MEMBER):
        if files.exists(out / FOLDER / name):
            yield PackageMember(name=name, path=out / FOLDER / name)


def _packed(lock: LockFile) -> bool:
    """Return whether the lock file was read, and has a name that a package can contain."""
    return bool(lock.sha256) and not name_problem(f"{LOCKS}/{lock.path}")


def _differences(git: Git, snapshot: Snapshot, files: Files) -> Iterator[str]:
    """Yield the diff of each changed file, until they exceed what a package takes."""
    left = MAX_DIFF_BYTES
    for path in snapshot.changed_files:
        before = git.read_file(snapshot.commit, path)
        text = file_diff(path, before, _now(snapshot, path, files))
        yield text
        left -= len(text)
        if left < 0:
            return


def _now(snapshot: Snapshot, path: str, files: Files) -> bytes | None:
    """Return the file as it was trained, or a NUL byte if it cannot be read as a text."""
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
    # The cut may be inside a character: `ignore` drops its incomplete bytes.
    return whole.decode("utf-8", "ignore").encode("utf-8") + mark


def pack(
    members: Sequence[PackageMember], *, path: Path, target: BinaryIO, files: Files
) -> Package:
    """Write all members to `target` and return the package's digests.

    `path` is where the caller puts these bytes. Raises `AttestationError` for a name that no
    package may contain, before anything is written. Raises `StorageError` when a file cannot be
    read or changes meanwhile, or when the disk is full.
    """
    # Sorted by code points, which for the allowed names (ASCII) is the order of their bytes.
    ordered = sorted(members, key=lambda member: member.name)
    if SUMS_NAME in {member.name for member in ordered}:
        raise AttestationError(
            f"{SUMS_NAME} is written by the packer itself",
            hint="Leave it out of the members.",
        )
    check_names([*(member.name for member in ordered), SUMS_NAME])
    with two_digests() as digests:
        writer = _ArchiveWriter(target, digests)
        written = [(member.name, _add(writer, member, files)) for member in ordered]
        sums = sums_text(written)
        written.append((SUMS_NAME, writer.add(SUMS_NAME, io.BytesIO(sums), len(sums))))
        writer.finish()
        return Package(
            path=path,
            sha256=digests.whole_digest(),
            size_bytes=writer.size_bytes,
            members=tuple(written),
        )


def _add(writer: _ArchiveWriter, member: PackageMember, files: Files) -> str:
    if member.path is None:
        content = member.content or b""
        return writer.add(member.name, io.BytesIO(content), len(content))
    with files.open_binary(member.path, max_bytes=MAX_MEMBER_BYTES) as stream:
        size_bytes = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        digest = writer.add(member.name, cast("Readable", stream), size_bytes)
    # The file is hashed while it is packed, so it cannot change between the check and the write
    # (CWE-367, T3).
    if member.sha256 not in {"", digest}:
        raise StorageError(
            f"{member.name} has changed on disk since it was compared",
            hint="Something else writes to the output folder; stop it, then run again.",
        )
    return digest


class _ArchiveWriter:
    """Writes archive bytes to the target, and counts and digests each of them."""

    def __init__(self, target: BinaryIO, digests: TwoDigests) -> None:
        self._target = target
        self._digests = digests
        self._pieces = new_pieces()
        self.size_bytes = 0

    def add(self, name: str, stream: Readable, size_bytes: int) -> str:
        """Write one member of exactly `size_bytes`; return its SHA-256.

        Raises `StorageError` if the stream has more or fewer bytes.
        """
        self._around(header(name, size_bytes))
        self._digests.begin_file()
        left = size_bytes
        # Reading, digesting and writing overlap: the digests hash earlier pieces while this loop
        # reads and writes the next one, so it uses another buffer each time.
        while left:
            view = next(self._pieces)
            chunk = view[: stream.readinto(view[:left])]
            if not chunk:
                break
            self._digests.inside(chunk)
            self._write(chunk)
            left -= len(chunk)
        # The header already states the size, so a file that grew or shrank since makes the archive
        # invalid.
        if left or stream.read(1):
            raise StorageError(
                f"{name} changed while it was packed", hint="Wait until nothing writes to it."
            )
        self._around(padding(size_bytes))
        return self._digests.file_digest()

    def finish(self) -> None:
        """Write the end mark, and zeros up to a whole record."""
        self._around(bytes(END_BYTES))
        self._around(bytes(-self.size_bytes % RECORD_BYTES))

    def _around(self, data: bytes) -> None:
        self._digests.around(data)
        self._write(data)

    def _write(self, data: bytes | memoryview) -> None:
        try:
            self._target.write(data)
        except OSError as error:
            raise StorageError(
                f"the package could not be written: {error.strerror}",
                hint="Free some space on the disk, then run again.",
            ) from error
        self.size_bytes += len(data)
