"""Where a clone's Git LFS objects come from: its own configuration, and trusted settings.

The `.lfsconfig` of the commit under test is never read: it could name any server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.errors import DataError
from gate.system.files import writing
from gate.system.git.command import SEARCH_PATH, GitCommand
from gate.text.untrusted_text import short_text

KEYS: Final = r"^(lfs\.url|remote\..*\.(url|lfsurl)|http\..*\.extraheader)$"
DEFAULT_REMOTE: Final = "origin"
MAX_CONFIG_BYTES: Final = 64 * 1024
HINT: Final = "Give the clone a remote, or commit `lfs.url` in .lfsconfig to the base branch."
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[^/]+:")


@dataclass(frozen=True, kw_only=True, slots=True)
class LfsEndpoint:
    """`remote_url` is the repository, `lfs_url` where its objects are, if that is told.

    `headers` are those of the clone's configuration that let it in, as (key, value).
    """

    remote_url: str
    lfs_url: str
    headers: tuple[tuple[str, str], ...]

    def config(self, storage: Path) -> str:
        """Configuration of a repository of the gate's own that fetches from there."""
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
    """The clone's endpoint; `trusted` is the `.lfsconfig` of the base commit, empty for none.

    Raises `DataError` where there is no remote.
    """
    git = GitCommand(top, search_path=SEARCH_PATH, overrides=(f"safe.directory={top}",))
    rows = tuple(_rows(git.run("config", "-z", "--get-regexp", KEYS).stdout))
    own = dict(rows)
    file = scratch / "lfsconfig"
    writing.write_whole(file, trusted[:MAX_CONFIG_BYTES])
    base = dict(_rows(git.run("config", "--file", str(file), "-z", "--get-regexp", KEYS).stdout))
    remotes = [key for key in own if key.startswith("remote.") and key.endswith(".url")]
    origin = f"remote.{DEFAULT_REMOTE}.url"
    key = origin if origin in remotes else next(iter(remotes), "")
    lfs_key = f"{key.removesuffix('.url')}.lfsurl"
    # the clone's own configuration first, as Git LFS does
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
    """A folder by its absolute path: the fetching repository lies elsewhere."""
    if not url or _ADDRESS.match(url) or Path(url).is_absolute():
        return url
    return os.path.normpath(top / url)


def _rows(output: bytes) -> Iterator[tuple[str, str]]:
    for row in output.split(b"\0"):
        key, _, value = row.decode("utf-8", "surrogateescape").partition("\n")
        if value:
            yield key, value


def _section(row: tuple[str, str]) -> str:
    """One value in git's own form (git-config(1), SYNTAX)."""
    key, value = row
    first, _, rest = key.partition(".")
    middle, _, last = rest.rpartition(".")
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
