"""Read and write the baseline's folder, one file per entry, and read an entry in an archive."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Final

from gate.baseline.entry import (
    MAX_BASELINE_BYTES,
    MAX_ENTRIES,
    MAX_ENTRY_BYTES,
    Baseline,
    BaselineEntry,
    entry_name,
    may_be_entry,
)
from gate.baseline.record import with_digest
from gate.errors import DocumentError
from gate.system.files.port import Files
from gate.system.files.regular_files import open_regular
from gate.text.documents import read_document, write_document
from gate.text.untrusted_text import safe_line

# More names than a folder of entries contains by mistake. Only the names are held in memory.
MAX_NAMES: Final = 100_000
# The clocks of two machines may differ by a wrong time zone, but by no more.
AHEAD: Final = timedelta(days=1)
FOLDER_HINT: Final = (
    "baseline.path names a folder with one file for each entry. Move other files away, then "
    "run `repro-gate baseline record`."
)
FEWER_HINT: Final = (
    "Remove entries of environments that are gone: the repository's history keeps them."
)
RESTORE: Final = (
    "Restore the file from version control (after a conflict: one side of it, whole), or record "
    "the entry again."
)
NAMED: Final = 20
MEMBER_PIECE_BYTES: Final = 1024 * 1024
# GitHub uses only these methods, so a different one comes from elsewhere.
METHODS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_BROKEN: Final = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    EOFError,
    # Raised for a central directory that points before the start of the file.
    OSError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    UnicodeDecodeError,
    ValueError,
)
NOT_SHOWN: Final = "a name that cannot be shown"

EntryFiles = Mapping[str, bytes]


def read_entry(data: bytes, source: str) -> BaselineEntry:
    """Parse one entry; raises `DocumentError` for a broken, foreign or manually edited one."""
    try:
        entry = read_document(BaselineEntry, data, source, max_bytes=MAX_ENTRY_BYTES)
    except DocumentError as fault:
        if fault.hint:
            raise
        # A merge conflict leaves markers that are not JSON.
        raise DocumentError(fault.message, hint=RESTORE, details=fault.details) from fault
    if entry != with_digest(entry):
        raise DocumentError(
            f"{source}: was edited by hand: it does not match its digest",
            hint=RESTORE,
        )
    return entry


def read_entries(files: EntryFiles | None, source: str) -> Baseline | None:
    """Return the entries of a folder's files, sorted by name; None for no files.

    `source` is the folder's name for messages. Raises `DocumentError` for what `read_entry`
    refuses, and for a file without its entry's own name: a copied or renamed entry.
    """
    if not files:
        return None
    entries: dict[str, BaselineEntry] = {}
    for name in sorted(files):
        entry = read_entry(files[name], f"{source}/{name}")
        named = entry_name(entry)
        if named != name:
            raise _misnamed(f"{source}/{name}", named, copied=named in files)
        entries[name] = entry
    return Baseline(entries=tuple(entries.values()))


def _misnamed(path: str, named: str, *, copied: bool) -> DocumentError:
    if copied:
        return DocumentError(
            f"{path}: holds an entry of the same environment and training as {named}",
            hint="Remove one of the two: otherwise it is ambiguous which applies.",
        )
    return DocumentError(
        f"{path}: its entry belongs in a file called {named}",
        hint="Rename it back: the file name is derived from the entry's environment.",
    )


def files_in(files: Files, folder: Path, shown: str) -> EntryFiles | None:
    """Return the files of a folder on disk by name; None where nothing is there.

    Raises `DocumentError` for what is not a folder and for what `refuse_unfit` refuses. Raises
    `StorageError` for a link in it: links are never followed (T3).
    """
    if not files.exists(folder):
        return None
    if not files.is_folder(folder):
        raise DocumentError(f"{shown} is not a folder", hint=FOLDER_HINT)
    names = _fit_names(files.list_names(folder, max_names=MAX_NAMES), shown)
    contents: dict[str, bytes] = {}
    left = MAX_BASELINE_BYTES
    for name in names:
        contents[name] = files.read_bytes(folder / name, max_bytes=MAX_ENTRY_BYTES)
        # Each file is bounded by itself; this bounds their sum before all are read.
        left -= len(contents[name])
        if left < 0:
            raise _too_large(shown)
    return contents


def refuse_unfit(entry_files: EntryFiles | None, shown: str) -> EntryFiles | None:
    """Return the files without those whose name begins with a dot, wherever they were read.

    Such files belong to editors or to an interrupted write. Raises `DocumentError` for a name that
    no entry has, and above the limits of number and bytes. All this is checked before anything is
    parsed.
    """
    if entry_files is None:
        return None
    fit = {name: entry_files[name] for name in _fit_names(tuple(entry_files), shown)}
    if sum(map(len, fit.values())) > MAX_BASELINE_BYTES:
        raise _too_large(shown)
    return fit


def _fit_names(names: tuple[str, ...], shown: str) -> tuple[str, ...]:
    kept = tuple(name for name in sorted(names) if not name.startswith("."))
    if len(kept) > MAX_ENTRIES:
        raise DocumentError(
            f"{shown} holds {len(kept):,} files, the limit is {MAX_ENTRIES:,} entries",
            hint=FEWER_HINT,
        )
    odd = [safe_line(name) or NOT_SHOWN for name in kept if not may_be_entry(name)]
    if odd:
        raise DocumentError(
            f"{shown} holds {odd[0]}, which is not the name of an entry",
            hint="Move it elsewhere: the folder may contain only entries, each under its own name.",
            details=tuple(odd[1:NAMED]),
        )
    return kept


def _too_large(shown: str) -> DocumentError:
    return DocumentError(
        f"{shown} holds more than {MAX_BASELINE_BYTES // 1024**2} MiB", hint=FEWER_HINT
    )


def refuse_future(baseline: Baseline | None, now: datetime, source: str) -> Baseline | None:
    """Return the baseline; raises `DocumentError` for an entry over a day in the future.

    Such an entry would always be the newest one and never become stale.
    """
    for entry in baseline.entries if baseline else ():
        # A small difference of clocks is normal between machines.
        if datetime.fromisoformat(entry.recorded_at) > now + AHEAD:
            raise DocumentError(
                f"{source}/{entry_name(entry)}: was recorded at {entry.recorded_at}, "
                "which is in the future",
                hint=f"Set this machine's clock (it says {now.isoformat()}), or record the entry "
                "again on a machine whose clock is right.",
            )
    return baseline


def write_entries(
    files: Files, folder: Path, before: Baseline | None, after: Baseline
) -> tuple[str, ...]:
    """Change the folder's content from `before` to `after`; return the names that were written.

    Only changed files are touched, and new ones are written first. So if this is interrupted, the
    folder can still be read.
    """
    known = {entry_name(entry): entry for entry in (before.entries if before else ())}
    entries = {entry_name(entry): entry for entry in after.entries}
    written = tuple(name for name in entries if entries[name] != known.get(name))
    for name in written:
        files.write_bytes(folder / name, write_document(entries[name]))
    for name in known.keys() - entries.keys():
        files.remove_tree(folder / name)
    return written


def zip_member(path: Path, name: str, shown: str, *, max_archive: int, max_bytes: int) -> bytes:
    """Return the content of the only member called `name`, in any folder of the archive.

    At most `max_bytes` are unpacked, whatever size the archive claims (CWE-409). The member's path
    is harmless, since nothing is written (CWE-22). Raises `DocumentError` for a broken archive, and
    for one without such a member or with more than one.
    """
    # A link at this path is not followed, and the archive's size is bounded.
    with open_regular(path, max_archive) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = [
                    member
                    for member in archive.infolist()
                    if PurePosixPath(member.filename).name == name and not member.is_dir()
                ]
                # With two of them, different readers could choose differently.
                if len(members) != 1:
                    raise _wrong_number(shown, name, len(members))
                return _content(archive, members[0], shown, max_bytes)
        except _BROKEN as error:
            raise DocumentError(
                f"{shown}: not a readable zip archive",
                hint="Download the artifact again.",
            ) from error


def _content(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, shown: str, max_bytes: int
) -> bytes:
    if member.compress_type not in METHODS:
        raise DocumentError(
            f"{shown}: compressed in a way that GitHub does not use",
            hint="Unpack it, and name the folder with --from.",
        )
    with archive.open(member) as opened:
        content = bytearray()
        while piece := opened.read(MEMBER_PIECE_BYTES):
            content += piece
            if len(content) > max_bytes:
                raise DocumentError(
                    f"{shown}: the baseline in it is larger than {max_bytes // 1024**2} MiB",
                    hint="No gate proposes such a baseline. Find out where this file comes from.",
                )
    return bytes(content)


def _wrong_number(shown: str, name: str, number: int) -> DocumentError:
    if number:
        return DocumentError(
            f"{shown}: holds {number} files called {name}",
            hint="Unpack it, and name the right one with --from.",
        )
    return DocumentError(
        f"{shown}: holds no {name}",
        hint="No entry is proposed for a run that was not repeatable, not finite or not "
        "committed. Look at the run's summary; another artifact is named with --artifact.",
    )
