"""Data that DVC keeps, fetched by the machine's own `dvc` in a folder of the gate's.

DVC sees neither the commit under test nor its pointers: a configuration and a `.dvc` file are
written for it. Its own check of a folder is not relied on, nor is any file of it where DVC put it.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.data.cache import SharedCache
from gate.data.checks import md5_of, wrong_md5
from gate.data.data_sets import DataPointer
from gate.data.dvc_config import own_config
from gate.data.dvc_folder import CONTENT, FolderFile, is_whole, put_together, read_listing
from gate.data.tools import ToolCall, Tools, said
from gate.errors import DataError
from gate.isolation.process_request import ProcessResult
from gate.system.files import trees, writing

INSTALL_HINT: Final = (
    "Install it for the gate: `pip install 'dvc[s3]'`, or dvc[gs], dvc[azure], dvc[ssh] and so on, "
    "by the kind of the remote."
)
PUSH_HINT: Final = (
    "Push what the commit names (`dvc push`), and check that the gate's account may read the "
    "remote: `dvc pull` by hand, in its environment."
)
FILE_END: Final = ".dir"


def object_name(pointer: DataPointer) -> str:
    """What the cache calls it; folders beside files, and old digests beside new ones."""
    algorithm = "dos2unix" if pointer.dos2unix else "md5"
    return f"{algorithm}/{pointer.digest}{FILE_END if pointer.is_folder else ''}"


def content_of(cache: SharedCache, pointer: DataPointer) -> Path:
    """Where a pointer's file or folder lies in the cache."""
    there = cache.path(object_name(pointer))
    return there / CONTENT if pointer.is_folder else there


def is_sound(pointer: DataPointer, there: Path) -> bool:
    """Whether an object of the cache is still what the pointer says; reads all of it."""
    if pointer.is_folder:
        return is_whole(there, pointer.digest, dos2unix=pointer.dos2unix)
    return not any(True for _ in wrong_md5([(there, pointer.digest)], dos2unix=pointer.dos2unix))


@dataclass(frozen=True, kw_only=True, slots=True)
class DvcFetch:
    """One call: for which entry, by which trusted configurations, and within which bounds."""

    entry: str
    tools: Tools
    cache: SharedCache
    trusted: tuple[tuple[bytes, bool], ...]
    top: Path
    seconds: float

    def fetch(self, pointers: Iterable[DataPointer], staging: Path) -> None:
        """Have the content of all pointers in the cache; raises `DataError`."""
        wanted = tuple(pointers)
        room = self.cache.make_room(
            sum(pointer.size_bytes or 0 for pointer in wanted), f"data: {self.entry}"
        )
        program = self.tools.find("dvc", INSTALL_HINT)
        text, remote = own_config(self.trusted, self.top, staging / "objects")
        _lay_out(staging, text, wanted)
        try:
            call = _Call(
                fetch=self,
                program=program,
                staging=staging,
                room=room,
                ends_at=time.monotonic() + self.seconds,
            )
            listings = {
                pointer.digest: call.listing(pointer, remote)
                for pointer in wanted
                if pointer.is_folder
            }
            done = call.dvc("fetch", "wanted.dvc")
            for pointer in wanted:
                self._keep(pointer, staging, listings.get(pointer.digest), done)
        finally:
            # it may hold a login of the clone's config.local
            trees.remove_tree(staging / ".dvc")

    def _keep(
        self,
        pointer: DataPointer,
        staging: Path,
        files: tuple[FolderFile, ...] | None,
        done: ProcessResult,
    ) -> None:
        """Check what came, and give it its name in the cache."""
        digests = [pointer.digest] if files is None else [file.md5 for file in files]
        objects = {digest: _object(staging, digest, pointer) for digest in digests}
        rows = [(path, digest) for digest, path in objects.items()]
        wrong = sorted(wrong_md5(rows, dos2unix=pointer.dos2unix))
        if wrong:
            raise self._incomplete(pointer, wrong, len(objects), done)
        if files is None:
            staged = staging / "file"
            writing.remove(staged)
            # linked and not moved: a folder of the same entry may hold the same file
            writing.second_name(objects[pointer.digest], staged)
            self.cache.store(object_name(pointer), staged, staged.lstat().st_size)
            return
        target = staging / "folder"
        trees.remove_tree(target)
        listing = _object(staging, f"{pointer.digest}{FILE_END}", pointer)
        size = put_together(files, listing, objects, target)
        self.cache.store(object_name(pointer), target, size)

    def _incomplete(
        self, pointer: DataPointer, wrong: list[Path], total: int, done: ProcessResult
    ) -> DataError:
        """What is wrong is removed: DVC would take it for whole at the next call."""
        came = [path for path in wrong if path.exists()]
        for path in came:
            writing.remove(path)
        if came:
            problem = f"{len(came):,} of {total:,} files have another MD5 than the commit names"
        else:
            problem = f"{len(wrong):,} of {total:,} files did not come from the remote"
        return DataError(
            f"data: {self.entry}: {pointer.path}: {problem}", hint=PUSH_HINT, details=said(done)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """DVC in its folder."""

    fetch: DvcFetch
    program: str
    staging: Path
    room: int
    ends_at: float

    def dvc(self, *arguments: str) -> ProcessResult:
        """Run it to its end; what it says is looked at where something is missing."""
        return self.fetch.tools.run(
            ToolCall(
                entry=self.fetch.entry,
                argv=(self.program, *arguments),
                objects=self.staging / "objects",
                workdir=self.staging,
                seconds=self.fetch.seconds,
                ends_at=self.ends_at,
                max_bytes=self.room,
                more_environment={
                    "DVC_NO_ANALYTICS": "1",
                    "DVC_SITE_CACHE_DIR": str(self.staging / "site"),
                    "DVC_STUDIO_OFFLINE": "1",
                },
            )
        )

    def listing(self, pointer: DataPointer, remote: str) -> tuple[FolderFile, ...]:
        """A folder's listing, fetched as a file and checked before DVC may obey it."""
        name = f"{pointer.digest}{FILE_END}"
        path = _object(self.staging, name, pointer)
        entry = f"{self.fetch.entry}: {pointer.path}"
        if not _has_md5(path, pointer):
            writing.make_folders(path.parent)
            trees.remove_tree(path)
            address = posixpath.join(f"remote://{remote}", _key(name, pointer))
            done = self.dvc("get-url", address, str(path))
            if not path.exists():
                raise DataError(
                    f"data: {entry}: its listing did not come from the remote",
                    hint=PUSH_HINT,
                    details=said(done),
                )
            if not _has_md5(path, pointer):
                writing.remove(path)
                raise DataError(
                    f"data: {entry}: the remote's listing of it has another MD5 than the commit "
                    "names",
                    hint=PUSH_HINT,
                )
            # DVC looks again at what can be written to
            writing.set_mode(path, 0o444)
        return read_listing(path, entry)


def _has_md5(path: Path, pointer: DataPointer) -> bool:
    try:
        return md5_of(path, dos2unix=pointer.dos2unix) == pointer.digest
    except OSError:
        return False


def _key(digest: str, pointer: DataPointer) -> str:
    """The place below a remote or a cache; before version 3 there was no folder for the kind."""
    key = f"{digest[:2]}/{digest[2:]}"
    return key if pointer.dos2unix else f"files/md5/{key}"


def _object(staging: Path, digest: str, pointer: DataPointer) -> Path:
    return staging / "objects" / _key(digest, pointer)


def _lay_out(staging: Path, config: str, pointers: tuple[DataPointer, ...]) -> None:
    """The smallest repository that DVC takes for one."""
    trees.remove_tree(staging / ".dvc")
    writing.make_folders(staging / ".dvc" / "tmp")
    writing.make_folders(staging / "objects")
    # it may hold a login of the clone's config.local
    writing.write_whole(staging / ".dvc" / "config", config.encode("utf-8"), mode=0o600)
    rows = (_row(number, pointer) for number, pointer in enumerate(pointers))
    text = "outs:\n" + "".join(rows)
    writing.write_whole(staging / "wanted.dvc", text.encode("ascii"))


def _row(number: int, pointer: DataPointer) -> str:
    end = FILE_END if pointer.is_folder else ""
    fields: Mapping[str, object] = {
        "md5": f"'{pointer.digest}{end}'",
        **({} if pointer.size_bytes is None else {"size": pointer.size_bytes}),
        **({} if pointer.files is None else {"nfiles": pointer.files}),
        **({} if pointer.dos2unix else {"hash": "md5"}),
        "path": f"content-{number}",
    }
    lines = [f"{key}: {value}" for key, value in fields.items()]
    return f"- {lines[0]}\n" + "".join(f"  {line}\n" for line in lines[1:])
