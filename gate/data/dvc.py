"""Fetch data that DVC keeps, with the machine's own `dvc`, in a folder that the gate made.

https://dvc.org/doc/user-guide/project-structure/configuration

DVC does not see the commit under test or its pointers. The gate writes a configuration and a `.dvc`
file for it. DVC's own check of a folder is not relied on either: the gate checks every file and
assembles the folder itself.

A folder's listing comes from wherever the commit under test points. So no path in it is used before
it is checked here: DVC itself would write a file at `../x`.
"""

from __future__ import annotations

import os
import posixpath
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from configparser import Error, RawConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from gate.data.cache import SharedCache, md5_of, wrong_md5
from gate.data.data_sets import DataPointer
from gate.data.tools import ToolCall, Tools, last_printed_lines
from gate.errors import DataError, DocumentError
from gate.isolation.process_request import ProcessResult
from gate.system.files import trees, writing
from gate.text.strict_json import parse_json
from gate.text.untrusted_text import short_text

MAX_CONFIG_BYTES: Final = 64 * 1024
REMOTE_HINT: Final = "Write it with `dvc remote add -d NAME URL`, and commit .dvc/config."
# Files with credentials. Some of their formats can name a program to run.
FILE_KEYS: Final = frozenset(
    {"credentialpath", "configpath", "keyfile", "cert_path", "key_path"}
    | {"gdrive_user_credentials_file", "gdrive_service_account_json_file_path"}
)
# Not copied: a program to run, questions to a person, and remotes that do not store content by its
# digest.
LEFT_OUT: Final = frozenset(
    {"bearer_token_command", "ask_password", "ask_passphrase", "worktree", "version_aware"}
)
_REMOTE: Final = re.compile(r"""'?remote "(?P<name>[^"']{1,200})"'?\Z""")
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def fetch_config(
    trusted: Iterable[tuple[bytes, bool]], top: Path, objects: Path
) -> tuple[str, str]:
    """Return the text of a `.dvc/config` for one fetch, and the name of its default remote.

    `trusted` has configurations, each overriding the ones before. If a configuration's flag is
    true, relative paths in it may name files in the clone at `top`. As in DVC, a remote's relative
    folder is resolved from the clone's `.dvc`. `objects` becomes the cache. Raises `DataError` for
    a text that is not a configuration, and if no default remote is defined.
    """
    remotes: dict[str, dict[str, str]] = {}
    default = ""
    for text, own_files in trusted:
        parsed = _parsed(text)
        if parsed.has_section("core"):
            default = _plain(parsed["core"].get("remote", default)).lower()
        for name, values in _remotes(parsed):
            remotes.setdefault(name, {}).update(_taken(name, values, top, own_files=own_files))
    if default not in remotes:
        raise DataError(
            f"data: .dvc/config names the default remote {short_text(default)}, which it does not "
            "define"
            if default
            else "data: .dvc/config names no default remote, so nothing says where the data is "
            "stored",
            hint=f"{REMOTE_HINT} In a pull request, the base commit's file applies.",
        )
    lines = [
        # No request but those to the remote, and no git repository: the folder is not one.
        *("[core]", f"remote = {default}", "analytics = false", "check_update = false"),
        *("autostage = false", "no_scm = true"),
        *("[cache]", f"dir = {_quoted(str(objects))}", "type = copy"),
    ]
    for name, values in remotes.items():
        lines += [
            f"""['remote "{name}"']""",
            *(f"{key} = {value}" for key, value in values.items()),
        ]
    return "\n".join([*lines, ""]), default


def _parsed(data: bytes) -> RawConfigParser:
    if len(data) > MAX_CONFIG_BYTES:
        raise DataError(
            f"data: .dvc/config has {len(data):,} bytes; the limit is {MAX_CONFIG_BYTES:,}",
            hint=REMOTE_HINT,
        )
    # Without this, a section named DEFAULT would give its values to every remote.
    parser = RawConfigParser(
        delimiters=("=",), comment_prefixes=("#",), default_section="", strict=True
    )
    try:
        parser.read_string(data.decode("utf-8"))
    except (Error, UnicodeDecodeError) as error:
        raise DataError(
            f"data: .dvc/config cannot be read: {short_text(str(error).splitlines()[0])}",
            hint=REMOTE_HINT,
        ) from error
    return parser


def _remotes(parsed: RawConfigParser) -> Iterator[tuple[str, dict[str, str]]]:
    for section in parsed.sections():
        match = _REMOTE.match(section)
        if match is not None:
            yield match["name"].lower(), dict(parsed[section])


def _taken(name: str, values: dict[str, str], top: Path, *, own_files: bool) -> dict[str, str]:
    """Return the settings of a remote that say where it is and how to log in."""
    taken: dict[str, str] = {}
    for key, value in values.items():
        # A line end in a value could begin another setting of the file that is written below.
        if not value.isprintable() or not re.fullmatch(r"[a-z0-9_]{1,100}", key):
            raise DataError(
                f"data: .dvc/config: {short_text(key)} of the remote {short_text(name)} has a "
                "value of more than one line",
                hint=REMOTE_HINT,
            )
        plain = _plain(value)
        if key in LEFT_OUT:
            if key in {"worktree", "version_aware"} and plain.lower() == "true":
                raise _no_digests(name, key)
        elif key == "url":
            taken[key] = _quoted(_place(plain, top))
        elif key in FILE_KEYS:
            taken[key] = _quoted(_configured_file(name, key, plain, top, own_files=own_files))
        else:
            taken[key] = value
    return taken


def _place(url: str, top: Path) -> str:
    """Return an address unchanged, and a folder as an absolute path."""
    if _ADDRESS.match(url) or Path(url).is_absolute():
        return url
    return os.path.normpath(top / ".dvc" / url)


def _configured_file(name: str, key: str, value: str, top: Path, *, own_files: bool) -> str:
    path = Path(os.path.normpath(top / ".dvc" / Path(value).expanduser()))
    if path.is_relative_to(top) and not own_files:
        raise DataError(
            f"data: .dvc/config: {key} of the remote {short_text(name)} is in the clone: a pull "
            "request could write it",
            hint="Keep logins outside of the repository: in environment variables, or in the "
            "configuration of the gate's account (`dvc remote modify --global`).",
        )
    return str(path)


def _plain(value: str) -> str:
    """Return a value without a comment after it and without quotes around it."""
    # like ConfigObj, which DVC uses to read its files
    text = value.strip()
    if text[:1] in {"'", '"'} and text.find(text[0], 1) > 0:
        return text[1 : text.find(text[0], 1)]
    return re.split(r"\s#", text, maxsplit=1)[0].strip()


def _quoted(value: str) -> str:
    return f"'{value}'" if "'" not in value else f'"{value}"'


def _no_digests(name: str, key: str) -> DataError:
    return DataError(
        f"data: the remote {short_text(name)} has {key} = true: it keeps files by their names and "
        "not by their digests",
        hint="Push to a remote without it: `dvc remote add -d NAME URL`, `dvc push`.",
    )


LISTING: Final = "listing.json"
CONTENT: Final = "content"
MAX_LISTING_BYTES: Final = 160 * 1024**2
MAX_FILES: Final = 1_500_000
MAX_NAME_BYTES: Final = 255
MAX_PATH_BYTES: Final = 3000
FOLDER_HINT: Final = "Add the folder again with `dvc add`, commit its .dvc file, and `dvc push`."
_MD5: Final = re.compile(r"[0-9a-f]{32}\Z")


class FolderFile(NamedTuple):
    """A file of a folder, with its relative path and its MD5."""

    path: str
    md5: str


def read_listing(path: Path, entry: str) -> tuple[FolderFile, ...]:
    """Return the files in a listing; raises `DataError` for a path that no folder can contain."""
    try:
        size = path.lstat().st_size
        data = path.read_bytes() if size <= MAX_LISTING_BYTES else b""
        rows = parse_json(data, "the listing", max_bytes=MAX_LISTING_BYTES)
    except DocumentError as error:
        raise _fault(entry, error.message) from error
    if not isinstance(rows, list) or len(rows) > MAX_FILES:
        raise _fault(entry, f"it is not a list of at most {MAX_FILES:,} files")
    files = tuple(_listed_file(row, entry) for row in rows)
    if len({file.path for file in files}) < len(files):
        raise _fault(entry, "it names a file twice")
    return files


def put_together(
    files: tuple[FolderFile, ...], listing: Path, objects: dict[str, Path], target: Path
) -> int:
    """Assemble a folder from its objects by hard links; return its size in bytes.

    Raises `OSError`, also if one path would have to be both a file and a folder.
    """
    writing.new_folder(target)
    writing.new_folder(target / CONTENT)
    size = 0
    made: set[Path] = set()
    for file in files:
        there = target / CONTENT / file.path
        if there.parent not in made:
            writing.make_folders(there.parent)
            made.add(there.parent)
        # Equal files share one inode, which is safe because nobody may write to them.
        writing.second_name(objects[file.md5], there)
        size += there.lstat().st_size
    writing.rename(listing, target / LISTING)
    return size


def is_whole(folder: Path, digest: str, *, dos2unix: bool) -> bool:
    """Return whether an assembled folder still matches its digest and has no other files."""
    try:
        if md5_of(folder / LISTING, dos2unix=dos2unix) != digest:
            return False
        files = read_listing(folder / LISTING, "")
        content = folder / CONTENT
        there = set(_files_below(content))
    except (OSError, DataError):
        return False
    rows = [(content / file.path, file.md5) for file in files]
    return there == {file.path for file in files} and not any(
        True for _ in wrong_md5(rows, dos2unix=dos2unix)
    )


def _files_below(top: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(top):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in (*names, *links):
            yield Path(folder, name).relative_to(top).as_posix()


def _listed_file(row: object, entry: str) -> FolderFile:
    path, digest = (row.get("relpath"), row.get("md5")) if isinstance(row, dict) else (None, None)
    if not isinstance(path, str) or not isinstance(digest, str) or not _MD5.match(digest):
        raise _fault(entry, f"it has a row without a path and an MD5: {short_text(str(row))}")
    try:
        parts = path.encode("utf-8").split(b"/")
    except UnicodeEncodeError as error:
        raise _fault(entry, f"{short_text(path)} cannot be the name of a file") from error
    wrong = not {b"", b".", b".."}.isdisjoint(parts) or "\0" in path
    if wrong or max(map(len, parts)) > MAX_NAME_BYTES or len(path) > MAX_PATH_BYTES:
        raise _fault(entry, f"{short_text(path)} is not a path below the folder")
    return FolderFile(path, digest)


def _fault(entry: str, problem: str) -> DataError:
    return DataError(
        f"data: {entry}: the remote's listing of it is refused: {problem}", hint=FOLDER_HINT
    )


INSTALL_HINT: Final = (
    "Install it for the gate: `pip install 'dvc[s3]'`, or dvc[gs], dvc[azure], dvc[ssh] and so on, "
    "by the kind of the remote."
)
PUSH_HINT: Final = (
    "Push what the commit names (`dvc push`), and check that the gate's account may read the "
    "remote: `dvc pull` by hand, in its environment."
)
FILE_END: Final = ".dir"


def dvc_object_name(pointer: DataPointer) -> str:
    """Return an object's name in the cache, which keeps folders and old digests apart."""
    algorithm = "dos2unix" if pointer.dos2unix else "md5"
    return f"{algorithm}/{pointer.digest}{FILE_END if pointer.is_folder else ''}"


def content_of(cache: SharedCache, pointer: DataPointer) -> Path:
    """Return the path of a pointer's file or folder in the cache."""
    there = cache.path(dvc_object_name(pointer))
    return there / CONTENT if pointer.is_folder else there


def is_sound(pointer: DataPointer, there: Path) -> bool:
    """Return whether an object in the cache still matches its pointer; reads all of it."""
    if pointer.is_folder:
        return is_whole(there, pointer.digest, dos2unix=pointer.dos2unix)
    return not any(True for _ in wrong_md5([(there, pointer.digest)], dos2unix=pointer.dos2unix))


@dataclass(frozen=True, kw_only=True, slots=True)
class DvcFetch:
    """One fetch with DVC: for which entry, with which trusted configurations and limits."""

    entry: str
    tools: Tools
    cache: SharedCache
    trusted: tuple[tuple[bytes, bool], ...]
    top: Path
    seconds: float

    def fetch(self, pointers: Iterable[DataPointer], staging: Path) -> None:
        """Put the content of all pointers into the cache; raises `DataError`."""
        pointers_to_fetch = tuple(pointers)
        room = self.cache.make_room(
            sum(pointer.size_bytes or 0 for pointer in pointers_to_fetch), f"data: {self.entry}"
        )
        program = self.tools.find("dvc", INSTALL_HINT)
        text, remote = fetch_config(self.trusted, self.top, staging / "objects")
        _lay_out(staging, text, pointers_to_fetch)
        try:
            call = _Call(
                fetch=self,
                program=program,
                staging=staging,
                room=room,
                ends_at=time.monotonic() + self.seconds,
            )
            # Before DVC fetches: it would follow a folder's listing, so each listing is checked
            # first.
            listings = {
                pointer.digest: call.listing(pointer, remote)
                for pointer in pointers_to_fetch
                if pointer.is_folder
            }
            done = call.dvc("fetch", "wanted.dvc")
            for pointer in pointers_to_fetch:
                self._keep(pointer, staging, listings.get(pointer.digest), done)
        finally:
            # The configuration may contain a login from the clone's config.local.
            trees.remove_tree(staging / ".dvc")

    def _keep(
        self,
        pointer: DataPointer,
        staging: Path,
        files: tuple[FolderFile, ...] | None,
        done: ProcessResult,
    ) -> None:
        """Check what arrived, and move it to its name in the cache."""
        digests = [pointer.digest] if files is None else [file.md5 for file in files]
        objects = {digest: _object(staging, digest, pointer) for digest in digests}
        rows = [(path, digest) for digest, path in objects.items()]
        wrong = sorted(wrong_md5(rows, dos2unix=pointer.dos2unix))
        if wrong:
            raise self._incomplete(pointer, wrong, len(objects), done)
        if files is None:
            staged = staging / "file"
            writing.remove(staged)
            # Linked rather than moved, because a folder of the same entry may contain the same
            # file.
            writing.second_name(objects[pointer.digest], staged)
            self.cache.store(dvc_object_name(pointer), staged, staged.lstat().st_size)
            return
        target = staging / "folder"
        trees.remove_tree(target)
        listing = _object(staging, f"{pointer.digest}{FILE_END}", pointer)
        size = put_together(files, listing, objects, target)
        self.cache.store(dvc_object_name(pointer), target, size)

    def _incomplete(
        self, pointer: DataPointer, wrong: list[Path], total: int, done: ProcessResult
    ) -> DataError:
        """Return the error for wrong files, and remove them: DVC would accept them next time."""
        came = [path for path in wrong if path.exists()]
        for path in came:
            writing.remove(path)
        if came:
            problem = f"{len(came):,} of {total:,} files have another MD5 than the commit names"
        else:
            problem = f"{len(wrong):,} of {total:,} files did not come from the remote"
        return DataError(
            f"data: {self.entry}: {pointer.path}: {problem}",
            hint=PUSH_HINT,
            details=last_printed_lines(done),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """A call of DVC in its own small repository."""

    fetch: DvcFetch
    program: str
    staging: Path
    room: int
    ends_at: float

    def dvc(self, *arguments: str) -> ProcessResult:
        """Run DVC to its end; the caller looks at its output only if something is missing."""
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
                    # in this fetch's own folder instead of the one that a machine's users share
                    "DVC_SITE_CACHE_DIR": str(self.staging / "site"),
                    "DVC_STUDIO_OFFLINE": "1",
                },
            )
        )

    def listing(self, pointer: DataPointer, remote: str) -> tuple[FolderFile, ...]:
        """Return a folder's listing, fetched as a file and checked before DVC may use it."""
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
                    details=last_printed_lines(done),
                )
            if not _has_md5(path, pointer):
                writing.remove(path)
                raise DataError(
                    f"data: {entry}: the remote's listing of it has another MD5 than the commit "
                    "names",
                    hint=PUSH_HINT,
                )
            # DVC trusts a read-only object, but checks a writable one again.
            writing.set_mode(path, 0o444)
        return read_listing(path, entry)


def _has_md5(path: Path, pointer: DataPointer) -> bool:
    try:
        return md5_of(path, dos2unix=pointer.dos2unix) == pointer.digest
    except OSError:
        return False


def _key(digest: str, pointer: DataPointer) -> str:
    """Return an object's path in a remote or cache, which DVC before version 3 did not prefix."""
    key = f"{digest[:2]}/{digest[2:]}"
    return key if pointer.dos2unix else f"files/md5/{key}"


def _object(staging: Path, digest: str, pointer: DataPointer) -> Path:
    return staging / "objects" / _key(digest, pointer)


def _lay_out(staging: Path, config: str, pointers: tuple[DataPointer, ...]) -> None:
    """Write the smallest repository that DVC accepts."""
    trees.remove_tree(staging / ".dvc")
    writing.make_folders(staging / ".dvc" / "tmp")
    writing.make_folders(staging / "objects")
    # Mode 0600, because it may contain a login from the clone's config.local.
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
        # A name of the gate's own: no path of the commit under test reaches DVC.
        "path": f"content-{number}",
    }
    lines = [f"{key}: {value}" for key, value in fields.items()]
    return f"- {lines[0]}\n" + "".join(f"  {line}\n" for line in lines[1:])
