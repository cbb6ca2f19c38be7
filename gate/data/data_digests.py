r"""The digest of a data set, which anyone can compute, and the protocol for fetching and listing.

A folder's digest is the SHA-256 of the text that `find . -type f -print0 | LC_ALL=C sort -z | xargs
-0 sha256sum` prints in it. This needs GNU coreutils 9.0 or later, which write a carriage return in
a name as `\r`. A single file's digest is the SHA-256 of its bytes.
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
    """Return a file's line as `sha256sum` prints it; the size replaces a digest that is missing."""
    name = b"./" + name_bytes(file.name)
    escaped = name
    for sign, text in _ESCAPES:
        escaped = escaped.replace(sign, text)
    # `sha256sum` puts a backslash before a line with an escaped name (coreutils' manual, md5sum).
    mark = b"\\" if escaped != name else b""
    content = file.sha256 or str(file.size_bytes)
    return mark + content.encode("ascii") + b"  " + escaped + b"\n"


def listing_digest(files: Sequence[ListedFile]) -> str:
    """Return the SHA-256 of a data set whose files are sorted by their names' bytes."""
    if is_one_file(files) and files[0].sha256:
        return files[0].sha256
    return _digest(files)


def is_one_file(files: Sequence[ListedFile]) -> bool:
    """Return whether the data set is a single file rather than a folder."""
    return len(files) == 1 and not files[0].name


def sampled(names: Sequence[str]) -> set[str]:
    """Return the names of the files whose content `verify: sample` reads.

    These are the files whose names have the smallest SHA-256: 64 of them, or one in 64 of all names
    if that is more. So equal names give equal samples, and a new file replaces at most one other.
    """
    by_digest = sorted((sha256(name_bytes(name)).digest(), name) for name in names)
    # A limit on the digest rather than a count: adding a name then removes no other name.
    most = (2**256 // SAMPLED_SHARE).to_bytes(32, "big")
    return {
        name
        for number, (digest, name) in enumerate(by_digest)
        if number < MIN_SAMPLED or digest < most
    }


def data_parts(files: Sequence[ListedFile]) -> tuple[DataPart, ...]:
    """Return one part for each file if there are at most `MAX_PARTS`, else equally long runs."""
    step = max(1, -(-len(files) // MAX_PARTS))
    return _parts(files, range(0, len(files), step))


def cut_like(files: Sequence[ListedFile], recorded: Sequence[DataPart]) -> tuple[DataPart, ...]:
    """Return parts of these files with the boundaries of recorded parts, so that few parts differ.

    A file before the first boundary belongs to the first part, and a part without files is left
    out. If both sides can have one part for each file, the files' own parts are returned, because
    they say more.
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
    """Return the record of what was fetched and listed; statistics are added elsewhere."""
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
    """Return a data set with its parts cut like an earlier one's, so that they can be compared."""
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
    """Join many lines: hashing a million lines one by one would cost more than joining them."""
    held: list[bytes] = []
    for line in lines:
        held.append(line)
        if len(held) == 1000:  # noqa: PLR2004
            yield b"".join(held)
            held.clear()
    yield b"".join(held)


class DataStore(Protocol):
    """Declared data: fetched before the first training, listed, and checked again later."""

    def fetch(self, source: DataSource, pointers: DataPointers) -> tuple[FetchedData, ...]:
        """Put an entry of `data` on this machine, complete and checked; some give several results.

        `pointers` are the ones of this entry. Raises `DataError` for data that is missing, wrong,
        too large or not reachable.
        """
        ...

    def close(self) -> None:
        """Allow other gates to remove the data that this one used; call it after the last run."""
        ...

    def listing(self, source: Path, verify: Verify) -> Listing:
        """Return every file below a path with its digest; raises `DataError` for a link."""
        ...

    def closed_folder(self, source: Path) -> Path | None:
        """Return the first folder above a path that other accounts may not enter, or None."""
        ...

    def changed_since(self, source: Path, listing: Listing) -> str:
        """Return the first file whose content differs from the listing, or the empty text."""
        ...
