"""Get Git LFS objects from the clone if they are there, or else fetch them with `git lfs`.

The `.lfsconfig` of the commit under test is never read, because it could name any server. `git lfs`
runs in a repository that the gate made, with the wanted pointers and nothing else. So no hook,
filter, attribute or configuration of the commit under test can affect it.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.data.cache import SharedCache, sha256_of
from gate.data.data_sets import DataPointer
from gate.data.tools import ToolCall, Tools, last_printed_lines
from gate.errors import DataError, RepositoryError, StorageError
from gate.isolation.process_request import ProcessResult
from gate.system.files import trees, writing
from gate.system.files.regular_files import open_regular
from gate.system.git.command import SEARCH_PATH, GitCommand
from gate.text.untrusted_text import short_text

KEYS: Final = r"^(lfs\.url|remote\..*\.(url|lfsurl)|http\..*\.extraheader)$"
DEFAULT_REMOTE: Final = "origin"
MAX_CONFIG_BYTES: Final = 64 * 1024
HINT: Final = "Give the clone a remote, or commit `lfs.url` in .lfsconfig to the base branch."
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[^/]+:")


@dataclass(frozen=True, kw_only=True, slots=True)
class LfsEndpoint:
    """Where objects are fetched from: the repository, and its LFS server if configured separately.

    `headers` are HTTP headers of the clone's configuration that give access, as (key, value).
    """

    remote_url: str
    lfs_url: str
    headers: tuple[tuple[str, str], ...]

    def config(self, storage: Path) -> str:
        """Return the git configuration of a repository that fetches from this endpoint."""
        rows = [
            ("core.repositoryformatversion", "0"),
            ("core.bare", "true"),
            ("core.hooksPath", "/dev/null"),
            ("remote.origin.url", self.remote_url or self.lfs_url),
            ("lfs.storage", str(storage)),
            ("lfs.concurrenttransfers", "8"),
            *((("lfs.url", self.lfs_url),) if self.lfs_url else ()),
            *self.headers,
        ]
        return "".join(map(_section, rows))


def endpoint_of(top: Path, trusted: bytes, scratch: Path) -> LfsEndpoint:
    """Return the clone's endpoint; `trusted` is the base commit's `.lfsconfig`, or empty.

    Raises `DataError` if neither a remote nor an LFS server is configured.
    """
    git = GitCommand(top, search_path=SEARCH_PATH, overrides=(f"safe.directory={top}",))
    rows = tuple(_rows(git.run("config", "-z", "--get-regexp", KEYS).stdout))
    own = dict(rows)
    file = scratch / "lfsconfig"
    writing.write_whole(file, trusted[:MAX_CONFIG_BYTES])
    # With --file, git does not follow an `include` (git-config(1), --includes).
    base = dict(_rows(git.run("config", "--file", str(file), "-z", "--get-regexp", KEYS).stdout))
    remotes = [key for key in own if key.startswith("remote.") and key.endswith(".url")]
    origin = f"remote.{DEFAULT_REMOTE}.url"
    key = origin if origin in remotes else next(iter(remotes), "")
    lfs_key = f"{key.removesuffix('.url')}.lfsurl"
    # the clone's own configuration wins, as in Git LFS
    candidates = (own.get("lfs.url"), own.get(lfs_key), base.get("lfs.url"), base.get(lfs_key))
    lfs_url = next(filter(None, candidates), "")
    if not key and not lfs_url:
        raise DataError("data: where Git LFS keeps its objects is not known", hint=HINT)
    headers = tuple(row for row in rows if row[0].startswith("http."))
    return LfsEndpoint(
        remote_url=_absolute(own.get(key, ""), top),
        lfs_url=_absolute(lfs_url, top),
        headers=headers,
    )


def _absolute(url: str, top: Path) -> str:
    """Return a folder as an absolute path, because the fetching repository is elsewhere."""
    if not url or _ADDRESS.match(url) or Path(url).is_absolute():
        return url
    return os.path.normpath(top / url)


def _rows(output: bytes) -> Iterator[tuple[str, str]]:
    for row in output.split(b"\0"):
        # with -z, git puts a line end between key and value
        key, _, value = row.decode("utf-8", "surrogateescape").partition("\n")
        if value:
            yield key, value


def _section(row: tuple[str, str]) -> str:
    """Return one value in the syntax of git's configuration files (git-config(1), SYNTAX)."""
    key, value = row
    first, _, rest = key.partition(".")
    middle, _, last = rest.rpartition(".")
    # a line end in a value could begin another setting
    if not all(map(str.isprintable, (key, value))):
        raise DataError(
            f"data: the configuration {short_text(key)} of the clone has a value of several lines",
            hint="Look at it with `git config -l`.",
        )
    section = f"[{first} {_quoted(middle)}]" if middle else f"[{first}]"
    return f"{section}\n\t{last} = {_quoted(value)}\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


REFERENCE: Final = "refs/heads/wanted"
INSTALL_HINT: Final = "Install it: `apt install git-lfs`, or https://git-lfs.com."
PUSH_HINT: Final = (
    "Push what the commit names (`git lfs push --all origin`), and check that the gate's account "
    "may read the remote: `git lfs fetch` by hand, in its environment. Or let actions/checkout "
    "fetch them (`lfs: true`)."
)
WHERE: Final = Path("lfs", "objects")


def lfs_object_name(digest: str) -> str:
    """Return an object's name in the cache."""
    return f"sha256/{digest}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LfsFetch:
    """One fetch with `git lfs`: for which entry and clone; `trusted` is the base's `.lfsconfig`."""

    entry: str
    tools: Tools
    cache: SharedCache
    top: Path
    trusted: bytes
    seconds: float

    def fetch(self, pointers: tuple[DataPointer, ...], staging: Path) -> None:
        """Put the objects of all pointers into the cache; raises `DataError`."""
        sizes = {pointer.digest: pointer.size_bytes or 0 for pointer in pointers}
        room = self.cache.make_room(sum(sizes.values()), f"data: {self.entry}")
        folder = self._objects_of_clone()
        missing = {
            digest: size
            for digest, size in sizes.items()
            if folder is None or not self._taken(folder, digest, size, staging)
        }
        if missing:
            self._fetch(missing, staging, room)

    def _objects_of_clone(self) -> Path | None:
        """Return the folder with the clone's LFS objects, which several work trees share."""
        git = GitCommand(self.top, overrides=(f"safe.directory={self.top}",))
        done = git.run("rev-parse", "--path-format=absolute", "--git-common-dir")
        if done.returncode != 0:
            return None
        return Path(os.fsdecode(done.stdout.removesuffix(b"\n"))) / WHERE

    def _taken(self, folder: Path, digest: str, size: int, staging: Path) -> bool:
        """Copy an object from the clone into the cache; return False if it is not there intact."""
        copy = staging / f"copy-{digest}"
        trees.remove_tree(copy)
        try:
            with open_regular(_place(folder, digest), max(size, 1)) as file:
                writing.write_new(copy, trees.chunks_of(file), 0o444)
        except (OSError, StorageError):
            return False
        if sha256_of(copy) != digest:
            writing.remove(copy)
            return False
        self.cache.store(lfs_object_name(digest), copy, copy.lstat().st_size)
        return True

    def _fetch(self, missing: dict[str, int], staging: Path, room: int) -> None:
        repository, objects = staging / "repository.git", staging / "lfs"
        writing.make_folders(objects)
        trees.remove_tree(repository)
        git = self.tools.find("git", "Install git (2.30 or later).")
        self.tools.find("git-lfs", INSTALL_HINT)
        try:
            self._lay_out(repository, missing, staging)
            done = self.tools.run(
                ToolCall(
                    entry=self.entry,
                    argv=(
                        *(git, "-C", str(repository), "lfs", "fetch"),
                        # Empty patterns, because those in the account's configuration would leave
                        # objects out.
                        *("--include=", "--exclude=", "origin", REFERENCE),
                    ),
                    objects=objects,
                    workdir=staging,
                    seconds=self.seconds,
                    ends_at=time.monotonic() + self.seconds,
                    max_bytes=room,
                    more_environment={"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"},
                )
            )
        finally:
            # its configuration may contain the clone's login
            trees.remove_tree(repository)
        self._keep(missing, staging, done)

    def _lay_out(self, repository: Path, missing: dict[str, int], staging: Path) -> None:
        """Make a bare repository whose only commit has the pointers, named by their digests."""
        endpoint = endpoint_of(self.top, self.trusted, staging)
        writing.new_folder(repository)
        git = GitCommand(repository, overrides=(f"safe.directory={repository}",))
        try:
            git.output("init", "--quiet", "--bare", "--template=", ".")
            with tempfile.TemporaryFile() as stream:
                stream.writelines(_commit(missing))
                stream.seek(0)
                with git.stream("fast-import", "--quiet", stdin=stream) as answer:
                    answer.read()
        except RepositoryError as error:
            raise DataError(
                f"data: {self.entry}: {error.message}", hint=error.hint, details=error.details
            ) from error
        config = repository / "config"
        writing.set_mode(config, 0o600)
        text = endpoint.config(staging / "lfs")
        writing.write_whole(config, text.encode("utf-8", "surrogateescape"))

    def _keep(self, missing: dict[str, int], staging: Path, done: ProcessResult) -> None:
        absent, wrong = 0, 0
        for digest in missing:
            path = _place(staging / WHERE, digest)
            if not path.exists():
                absent += 1
            elif sha256_of(path) != digest:
                wrong += 1
                writing.remove(path)
            else:
                self.cache.store(lfs_object_name(digest), path, path.lstat().st_size)
        if wrong or absent:
            problem = "came with other content" if wrong else "did not come from the remote"
            raise DataError(
                f"data: {self.entry}: {wrong or absent:,} of {len(missing):,} objects {problem}",
                hint=PUSH_HINT,
                details=last_printed_lines(done),
            )


def _place(folder: Path, digest: str) -> Path:
    return folder / digest[:2] / digest[2:4] / digest


def _commit(missing: dict[str, int]) -> Iterator[bytes]:
    """Yield input for `git fast-import`: one commit with each pointer as Git LFS writes it.

    The digest is the file's name, so that no name of the commit under test reaches git.
    """
    yield f"commit {REFERENCE}\ncommitter repro-gate <> 0 +0000\ndata 0\n".encode()
    for digest, size in missing.items():
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {size}\n"
        yield f"M 100644 inline {digest}\ndata {len(text)}\n{text}\n".encode()
