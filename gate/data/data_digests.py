r"""The digest of a data set, which anyone can make, and the protocol of who lists one.

A folder's digest is the SHA-256 of the text that
`find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum` prints in it (GNU coreutils 9.0 or
later: they write a carriage return in a name as `\r`). A single file's is that of its bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol

from gate.data.data_sets import MAX_PARTS, DataPart, DataPointers, DataSet
from gate.data.declared import FetchedData, ListedFile, Listing
from gate.settings.data import DataSource, Verify
from gate.text.untrusted_text import bytes_of_shown, name_bytes, shown_name

PART_DIGITS: Final = 16
MIN_SAMPLED: Final = 64
SAMPLED_SHARE: Final = 64
_ESCAPES: Final = ((b"\\", b"\\\\"), (b"\n", b"\\n"), (b"\r", b"\\r"))


def listing_line(file: ListedFile) -> bytes:
    """A line as `sha256sum` prints it; a file whose content was not read has its size there."""
    name = b"./" + name_bytes(file.name)
    escaped = name
    for sign, text in _ESCAPES:
        escaped = escaped.replace(sign, text)
    # such a line begins with a backslash (coreutils' manual, md5sum)
    mark = b"\\" if escaped != name else b""
    content = file.sha256 or str(file.size_bytes)
    return mark + content.encode("ascii") + b"  " + escaped + b"\n"


def listing_digest(files: Sequence[ListedFile]) -> str:
    """The SHA-256 of a data set whose files come in the order of their names' bytes."""
    if is_one_file(files) and files[0].sha256:
        return files[0].sha256
    return _digest(files)


def is_one_file(files: Sequence[ListedFile]) -> bool:
    """Whether the data set is a file by itself and no folder."""
    return len(files) == 1 and not files[0].name


def sampled(names: Sequence[str]) -> set[str]:
    """The names of the files whose content `verify: sample` reads.

    Those with the smallest SHA-256 of their names: 64 of them, or one in 64 of all names where that
    is more. So the same names give the same files, and a new one displaces one at most.
    """
    by_digest = sorted((sha256(name_bytes(name)).digest(), name) for name in names)
    # the share is one of digests, not of the count: an inserted name then moves no other one
    most = (2**256 // SAMPLED_SHARE).to_bytes(32, "big")
    return {
        name
        for number, (digest, name) in enumerate(by_digest)
        if number < MIN_SAMPLED or digest < most
    }


def data_parts(files: Sequence[ListedFile]) -> tuple[DataPart, ...]:
    """One part for each file of up to `MAX_PARTS`, else runs of files of equal count."""
    step = max(1, -(-len(files) // MAX_PARTS))
    return _parts(files, range(0, len(files), step))


def cut_like(files: Sequence[ListedFile], recorded: Sequence[DataPart]) -> tuple[DataPart, ...]:
    """Parts of these files with the boundaries of recorded ones, so that few of them move.

    A file before the first boundary belongs to the first part. A part that holds no file any more
    is left out. Where both have a part for each file, the files' own are made: they tell more.
    """
    if not recorded or (len(files) <= MAX_PARTS and all(part.files == 1 for part in recorded)):
        return data_parts(files)
    firsts = sorted({bytes_of_shown(part.first) for part in recorded})[1:]
    starts, boundary = [0], 0
    for number, file in enumerate(files):
        passed = bisect_right(firsts, name_bytes(file.name), lo=boundary)
        if passed > boundary and number:
            starts.append(number)
        boundary = passed
    return _parts(files, starts)


def data_set(fetched: FetchedData, listing: Listing) -> DataSet:
    """The record of what was fetched and listed; its statistics are made elsewhere."""
    return DataSet(
        name=shown_name(fetched.name),
        kind=fetched.kind,
        place=shown_name(fetched.place),
        origin=shown_name(fetched.origin),
        verify=listing.verify,
        files=len(listing.files),
        size_bytes=listing.size_bytes,
        sha256=listing_digest(listing.files),
        parts=data_parts(listing.files),
    )


def with_parts_of(after: DataSet, listing: Listing, before: DataSet) -> DataSet:
    """A data set whose parts are cut where those of an earlier one were, to be compared with it."""
    return after.model_copy(update={"parts": cut_like(listing.files, before.parts)})


def _parts(files: Sequence[ListedFile], starts: Sequence[int]) -> tuple[DataPart, ...]:
    if not files:
        return ()
    return tuple(_part(files[start:end]) for start, end in pairwise([*starts, len(files)]))


def _part(files: Sequence[ListedFile]) -> DataPart:
    first = shown_name(files[0].name)
    return DataPart(first=first, files=len(files), sha256=_digest(files)[:PART_DIGITS])


def _digest(files: Iterable[ListedFile]) -> str:
    hasher = sha256()
    for lines in _batches(map(listing_line, files)):
        hasher.update(lines)
    return hasher.hexdigest()


def _batches(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Many lines at once: a call for each of a million costs more than to join them."""
    held: list[bytes] = []
    for line in lines:
        held.append(line)
        if len(held) == 1000:  # noqa: PLR2004
            yield b"".join(held)
            held.clear()
    yield b"".join(held)


class DataStore(Protocol):
    """Declared data: fetched before the first training, listed, and looked at again."""

    def fetch(self, source: DataSource, pointers: DataPointers) -> tuple[FetchedData, ...]:
        """Have an entry of `data` on this machine, whole and checked; several for some.

        `pointers` are those of the entry. Raises `DataError` for what is missing, wrong, too large
        or out of reach.
        """
        ...

    def close(self) -> None:
        """Let other gates remove what this one used; call it after the last run."""
        ...

    def listing(self, source: Path, verify: Verify) -> Listing:
        """Every file below a path with its digest, no link followed; `DataError` where one is."""
        ...

    def closed_folder(self, source: Path) -> Path | None:
        """The first folder on the way to a path that other accounts may not pass, or None."""
        ...

    def changed_since(self, source: Path, listing: Listing) -> str:
        """The first file that is not as it was listed, by its content; empty where none is."""
        ...
