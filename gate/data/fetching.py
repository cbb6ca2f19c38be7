"""Turn an entry of `data` into complete and checked files on this machine."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gate.data import dvc, lfs
from gate.data.cache import SharedCache, sha256_of
from gate.data.data_sets import DataPointer, DataPointers
from gate.data.declared import CopiedFile, FetchedData, FetchSources, Listing
from gate.data.hashing import DigestCache
from gate.data.listing import first_change, take_listing
from gate.data.tools import Tools, shown_bytes
from gate.errors import DataError, StorageError
from gate.settings.data import DataKind, DataSource, Verify
from gate.system.files.regular_files import open_regular, refuse_foreign_links
from gate.text.untrusted_text import safe_line

if TYPE_CHECKING:
    from gate.system.http import RetryPolicy


MISSING_HINT = (
    "Correct `path` in repro-gate.yml, or put the data there. In a container a folder of the "
    "runner is there only if the job mounts it: `container:` with `options: --volume "
    "{path}:{path}:ro`, and org/repro-gate/container as its step; the action org/repro-gate sees "
    "the workspace alone."
)


def machine_path(name: str, path: Path, closed: Iterable[Path] = ()) -> Path:
    """Return the real path of the file or folder that an entry names.

    The path must not be at, in or around a path in `closed`. Raises `DataError` if nothing is
    there, if it is a link or neither a file nor a folder, or if this account may not read it. The
    content of a folder is not looked at.
    """
    shown = safe_line(str(path))
    try:
        facts = os.lstat(path)
        if stat.S_ISLNK(facts.st_mode):
            raise _is_link(name, path)
        refuse_foreign_links(path)
        if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
            raise DataError(
                f"data: {name}: {shown} is neither a file nor a folder",
                hint="Declare a regular file, or a folder of them.",
            )
        _try_to_read(path, facts)
        return _open_place(name, path.resolve(strict=True), closed)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            f"data: {name}: there is no {shown}", hint=MISSING_HINT.format(path=shown)
        ) from error
    except StorageError as error:
        raise DataError(f"data: {name}: {error.message}", hint="Declare the real path.") from error
    except (OSError, RuntimeError) as error:
        raise _unreadable(name, shown, error) from error


def _open_place(name: str, real: Path, closed: Iterable[Path]) -> Path:
    """Return the path, unless it is at, in or around a place that is closed to trainings.

    A path below a closed folder would be open to a training that it is mounted for: only its own
    permissions would still protect it.
    """
    for place in closed:
        secret = Path(os.path.realpath(place))
        if real.is_relative_to(secret) or (secret.is_relative_to(real) and secret.exists()):
            inside = "is inside" if real.is_relative_to(secret) else "contains"
            where = "is" if real == secret else inside
            raise DataError(
                f"data: {name}: {safe_line(str(real))} {where} {safe_line(str(secret))}, which is "
                "closed to the training",
                hint="It may hold tokens, logins or the event. Move the data to a folder of its "
                "own, and correct `path` in repro-gate.yml.",
            )
    return real


def _try_to_read(path: Path, facts: os.stat_result) -> None:
    if stat.S_ISDIR(facts.st_mode):
        with os.scandir(path):
            return
    os.close(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))


def _is_link(name: str, path: Path) -> DataError:
    real = os.path.realpath(path)
    there = Path(real).exists()
    return DataError(
        f"data: {name}: {safe_line(str(path))} is a link",
        hint=f"Write the real path: `path: {safe_line(real)}`."
        if there
        else f"It leads to {safe_line(real)}, where nothing is, or in a circle: correct `path`.",
    )


def _unreadable(name: str, shown: str, error: OSError | RuntimeError) -> DataError:
    if isinstance(error, PermissionError):
        return DataError(
            f"data: {name}: the gate's account may not read {shown}",
            hint=f"Let it: for a group, `chgrp -R GROUP {shown}` and `chmod -R g+rX {shown}`; the "
            "folders above must let it pass (x).",
        )
    reason = error.strerror if isinstance(error, OSError) else "a loop of links"
    return DataError(
        f"data: {name}: {shown} cannot be read: {reason}",
        hint="Check the path, and the disk that it is on.",
    )


# limit for a silent server; a whole entry is limited by fetch.timeout_seconds
SILENCE_SECONDS: Final = 60.0
DEFAULT_FOLDER: Final = Path("repro-gate", "data")
LOCAL_CONFIG: Final = Path(".dvc", "config.local")
MAX_CONFIG_BYTES: Final = 64 * 1024


def default_cache(environment: Mapping[str, str]) -> Path:
    """Return the folder `repro-gate/data` in the cache folder of the gate's account.

    https://specifications.freedesktop.org/basedir-spec/latest/
    """
    configured = environment.get("XDG_CACHE_HOME", "")
    home = Path(environment.get("HOME") or Path.home())
    # The specification: "All paths must be absolute. If an implementation encounters a relative
    # path ... ignore it"
    return (
        Path(configured) if Path(configured).is_absolute() else home / ".cache"
    ) / DEFAULT_FOLDER


class Fetcher:
    """Fetches declared data to this machine; `close` releases the shared cache."""

    def __init__(
        self, top: Path, sources: FetchSources, tools: Tools, policy: RetryPolicy | None = None
    ) -> None:
        """`top` is the top of the clone's work tree."""
        settings = sources.settings
        root = settings.cache or default_cache(tools.environment)
        self._cache = SharedCache(
            Path(root), settings.max_bytes, tools.progress, named=settings.cache is not None
        )
        self._top = top
        self._sources = sources
        self._seconds = settings.timeout_seconds
        self._tools = tools
        self._policy = policy

    def close(self) -> None:
        """Allow other gates to remove the data that this one used."""
        self._cache.close()

    @property
    def cache_folder(self) -> Path:
        """The folder with fetched data."""
        return self._cache.root

    def prepare_cache(self) -> None:
        """Make the folder; raises `DataError` if it must not be made or used."""
        self._cache.prepare()

    def fetch(self, source: DataSource, pointers: DataPointers) -> tuple[FetchedData, ...]:
        """Fetch an entry, as `DataStore.fetch`."""
        if source.kind is DataKind.PATH:
            return (self._path(source),)
        if source.kind is DataKind.URL:
            return (self._url(source),)
        if source.kind is DataKind.LFS:
            return self._lfs(source, pointers)
        return self._dvc(source, pointers)

    def _path(self, source: DataSource) -> FetchedData:
        there = machine_path(source.label, Path(source.path or ""), self._sources.closed)
        return FetchedData(
            name=source.label, kind=DataKind.PATH, origin=source.path or "", source=there
        )

    def _url(self, source: DataSource) -> FetchedData:
        # Imported late: slow, and few projects declare a URL.
        from gate.data.web import Download, WebFile  # noqa: PLC0415
        from gate.system.http import RetryPolicy  # noqa: PLC0415

        policy = self._policy or RetryPolicy(timeout_seconds=SILENCE_SECONDS)
        digest, url = source.sha256 or "", source.url or ""
        name = f"sha256/{digest}"

        def fetch(_: tuple[str, ...], staging: Path) -> None:
            file = WebFile(
                entry=source.label,
                url=url,
                sha256=digest,
                seconds=self._seconds,
                make_room=partial(self._cache.make_room, what=f"data: {source.label}"),
            )
            path = Download(file, self._tools.progress, policy).fetch(staging)
            self._cache.store(name, path, path.lstat().st_size)

        self._have(source, {name: partial(_has_sha256, digest)}, fetch)
        return FetchedData(
            name=source.label, kind=DataKind.URL, origin=url, source=self._cache.path(name)
        )

    def _dvc(self, source: DataSource, pointers: DataPointers) -> tuple[FetchedData, ...]:
        named = {dvc.dvc_object_name(pointer): pointer for pointer in pointers}
        call = dvc.DvcFetch(
            entry=source.label,
            tools=self._tools,
            cache=self._cache,
            trusted=tuple(self._configurations()),
            top=self._top,
            seconds=self._seconds,
        )
        self._have(
            source,
            {name: partial(dvc.is_sound, pointer) for name, pointer in named.items()},
            lambda missing, staging: call.fetch([named[name] for name in missing], staging),
        )
        return tuple(self._of_dvc(source, pointer, pointers) for pointer in pointers)

    def _of_dvc(
        self, source: DataSource, pointer: DataPointer, pointers: DataPointers
    ) -> FetchedData:
        several = len(pointers) > 1
        return FetchedData(
            name=f"{source.label}:{pointer.path}" if several else source.label,
            kind=DataKind.DVC,
            origin=f"md5:{pointer.digest}{dvc.FILE_END if pointer.is_folder else ''}",
            place=pointer.path,
            source=dvc.content_of(self._cache, pointer),
        )

    def _configurations(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the trusted DVC configuration and, if the clone is trusted, its local one."""
        own = self._sources.clone_is_trusted
        yield self._sources.dvc_config, own
        local = self._top / LOCAL_CONFIG
        if own and local.exists():
            try:
                with open_regular(local, MAX_CONFIG_BYTES) as file:
                    yield file.read(), True
            except StorageError as error:
                raise DataError(f"data: {error.message}", hint=error.hint) from error

    def _lfs(self, source: DataSource, pointers: DataPointers) -> tuple[FetchedData, ...]:
        """Fetch an entry's LFS files; empty if all of them are regular files of the commit."""
        if not pointers:
            return ()
        named = {lfs.lfs_object_name(pointer.digest): pointer for pointer in pointers}
        call = lfs.LfsFetch(
            entry=source.label,
            tools=self._tools,
            cache=self._cache,
            top=self._top,
            trusted=self._sources.lfs_config,
            seconds=self._seconds,
        )
        self._have(
            source,
            {name: partial(_has_sha256, pointer.digest) for name, pointer in named.items()},
            lambda missing, staging: call.fetch(tuple(named[name] for name in missing), staging),
        )
        copies = tuple(self._copy(pointer) for pointer in pointers)
        return (
            FetchedData(
                name=source.label,
                kind=DataKind.LFS,
                origin=f"{len(named):,} object{'' if len(named) == 1 else 's'} of Git LFS",
                copies=copies,
            ),
        )

    def _copy(self, pointer: DataPointer) -> CopiedFile:
        name = lfs.lfs_object_name(pointer.digest)
        return CopiedFile(
            source=self._cache.path(name),
            place=pointer.path,
            sha256=pointer.digest,
            # The real size; the pointer's is only a claim of the commit.
            size_bytes=self._cache.size_of(name),
        )

    def _have(
        self,
        source: DataSource,
        checks: Mapping[str, Callable[[Path], bool]],
        fetch: Callable[[tuple[str, ...], Path], None],
    ) -> None:
        """Put all objects into the cache, complete; only one gate at a time fetches them."""
        missing = self._missing(source, checks)
        if not missing:
            return
        # One lock for one set of missing objects: gates that need the same data wait for each
        # other.
        key = sha256("\n".join(sorted(missing)).encode()).hexdigest()
        # ask again under the lock: another gate may have fetched them in the meantime
        with self._cache.being_fetched(key, self._seconds) as staging:
            missing = self._cache.claim(missing)
            if missing:
                began = time.monotonic()
                with self._tools.progress.running(f"fetching {source.label}"):
                    fetch(missing, staging)
                self._tell(source, missing, time.monotonic() - began)
            self._cache.done(staging)

    def _missing(
        self, source: DataSource, checks: Mapping[str, Callable[[Path], bool]]
    ) -> tuple[str, ...]:
        """Return the objects that are missing and, for `verify: full`, the damaged ones too."""
        missing = self._cache.claim(checks)
        if source.verify is not Verify.FULL:
            return missing
        spoilt = [
            name
            for name, is_sound in checks.items()
            if name not in missing and not is_sound(self._cache.path(name))
        ]
        for name in spoilt:
            self._tools.progress.step(
                f"{source.label}: what the cache held of it was damaged, and is fetched again"
            )
            self._cache.drop(name)
        return (*missing, *spoilt)

    def _tell(self, source: DataSource, names: tuple[str, ...], seconds: float) -> None:
        size = sum(self._cache.size_of(name) for name in names)
        self._tools.progress.step(
            f"{source.label}: fetched {shown_bytes(size)} in {seconds:.1f} s, "
            f"{shown_bytes(size / max(seconds, 1e-3))}/s"
        )


def _has_sha256(digest: str, path: Path) -> bool:
    try:
        return sha256_of(path) == digest
    except OSError:
        return False


class LocalData:
    """The `DataStore` of this machine; digests of known files are kept beside the fetched data."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._digests = DigestCache(fetcher.cache_folder, prepare=fetcher.prepare_cache)

    def close(self) -> None:
        """Release the data, as `DataStore.close`."""
        self._fetcher.close()

    def fetch(self, source: DataSource, pointers: DataPointers) -> tuple[FetchedData, ...]:
        """Fetch an entry, as `DataStore.fetch`."""
        return self._fetcher.fetch(source, pointers)

    def listing(self, source: Path, verify: Verify) -> Listing:
        """List the files, as `DataStore.listing`."""
        return take_listing(source, verify, self._digests)

    def closed_folder(self, source: Path) -> Path | None:
        """Find a closed folder, as `DataStore.closed_folder`; looks at permission bits only."""
        way = (folder for folder in source.parents if not folder.stat().st_mode & stat.S_IXOTH)
        return next(way, None)

    def changed_since(self, source: Path, listing: Listing) -> str:
        """Find a changed file, as `DataStore.changed_since`."""
        return first_change(source, listing)
