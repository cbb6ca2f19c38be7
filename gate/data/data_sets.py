"""Declared data as it was found before the first training, and what moved in it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from gate.settings.data import MAX_SOURCES, DataKind, Verify
from gate.text.document import Document

MAX_PARTS: Final = 2000
MAX_STATISTICS: Final = 50
MAX_CLASSES: Final = 200
MAX_NAME: Final = 1000
MAX_NUMBER: Final = 2**62
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
Sentence = Annotated[str, Field(max_length=1000)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class DataPart(Document):
    """Files that follow each other by name, from `first` on, up to the next part's first.

    `sha256` covers their lines in the listing (docs/data.md), shortened to 16 digits: it tells
    what moved, and the digest of the whole data set that something did.
    """

    first: str = Field(max_length=MAX_NAME)
    files: int = Field(ge=1, le=MAX_NUMBER)
    sha256: str = Field(pattern=r"^[0-9a-f]{16}$")


class DataStatistics(Document):
    """Simple numbers of a data set, or of one array or column of it, which `name` says.

    `rows` counts the first dimension, lines or images. `mean`, `deviation` (of the population) and
    `nan_share` are over all numbers that were read; None where there are none. `classes` counts
    images by folder or values of a column of few. `rows_read` is below `rows` where a limit ended
    the reading.
    """

    format: Literal["npy", "npz", "csv", "images", "jsonl"]
    name: str = Field(default="", max_length=500)
    rows: Count
    rows_read: Count
    mean: Finite | None = None
    deviation: Finite | None = None
    nan_share: Annotated[float, Field(ge=0, le=1)] | None = None
    classes: Annotated[
        dict[Annotated[str, Field(max_length=200)], Count], Field(max_length=MAX_CLASSES)
    ] = Field(default_factory=dict)


class DataSet(Document):
    """One data set: what it is called, where the training finds it, and what it held.

    `place` is its path from the repository's root; empty for one below `$REPRO_GATE_DATA`.
    `sha256` is over the listing of all files in the order of their names, or of the one file
    (docs/data.md); `sampled` says that content was read of some only. `origin` is for readers: an
    address, a path of the machine, the digest that a pointer names.
    """

    name: str = Field(max_length=MAX_NAME)
    kind: DataKind
    place: str = Field(default="", max_length=MAX_NAME)
    origin: str = Field(default="", max_length=2000)
    verify: Verify = Verify.FULL
    files: Count
    size_bytes: Count
    sha256: Digest
    parts: Annotated[tuple[DataPart, ...], Field(max_length=MAX_PARTS)] = ()
    statistics: Annotated[tuple[DataStatistics, ...], Field(max_length=MAX_STATISTICS)] = ()

    @property
    def sampled(self) -> bool:
        """Whether the digest covers the content of some files only."""
        return self.verify is Verify.SAMPLE


# with one more for what preprocessing wrote
DataSets = Annotated[tuple[DataSet, ...], Field(max_length=MAX_SOURCES + 1)]


def same_data(before: DataSets, after: DataSets) -> bool:
    """Whether two lists of data sets have the same names and digests."""
    left, right = (
        {data_set.name: data_set.sha256 for data_set in sets} for sets in (before, after)
    )
    return left == right


def brings_data(base: DataSets, head: DataSets) -> bool:
    """Whether a change names other data than its base, as far as the base's is known.

    What the base commit's preprocessing writes is known only once it has run.
    """
    after = {data_set.name: data_set.sha256 for data_set in head}
    return any(after.get(data_set.name) != data_set.sha256 for data_set in base)


class DataMove(Document):
    """A data set that is not as it was: of `files` files now, how many moved, and the first.

    `moved_files` is None where only parts of several files each were known: then `moved_parts` of
    `parts` moved. `numbers` are sentences such as `mean 0.481 → 0.533`. A data set that is new or
    gone has no file on one side.
    """

    name: str = Field(max_length=MAX_NAME)
    place: str = Field(default="", max_length=MAX_NAME)
    before: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    after: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    files: Count = 0
    moved_files: Count | None = None
    moved_parts: Count = 0
    parts: Count = 0
    first: str = Field(default="", max_length=MAX_NAME)
    numbers: Annotated[tuple[Sentence, ...], Field(max_length=20)] = ()


DataMoves = Annotated[tuple[DataMove, ...], Field(max_length=2 * (MAX_SOURCES + 1))]


class UnrepeatedData(Document):
    """What the preprocessing command wrote twice, and differently.

    `move` is from the first run's to the second's; `where` is the place of the first difference in
    the first file that differs, such as `row 17`; empty where that is not known.
    """

    command: str = Field(max_length=1000)
    move: DataMove
    where: str = Field(default="", max_length=1000)


def _place_in_a_tree(path: str) -> str:
    """Refuse what is no path below the repository's root, or belongs to git or DVC themselves."""
    parts = path.split("/")
    if not path.isprintable() or not {"", ".", ".."}.isdisjoint(parts):
        message = "must be a path from the repository's root, in its shortest spelling"
        raise ValueError(message)
    if not {".git", ".dvc"}.isdisjoint(part.casefold() for part in parts):
        message = "must not be a place of git or DVC"
        raise ValueError(message)
    return path


TreePath = Annotated[
    str, Field(min_length=1, max_length=MAX_NAME), AfterValidator(_place_in_a_tree)
]


class PointerFile(Document):
    """A pointer file to read: for the entry `name`, at `path` from the repository's root.

    `copy_name` is that of its copy in the folder of the question; `stage` belongs to a `dvc.lock`.
    """

    name: str = Field(min_length=1, max_length=MAX_NAME)
    kind: Literal[DataKind.DVC, DataKind.LFS]
    path: TreePath
    stage: str = Field(default="", max_length=200)
    copy_name: str = Field(default="", max_length=50)


class DataPointer(Document):
    """What a pointer in a commit names: a file or folder, by the digest of its tool.

    `path` is that of the content, from the repository's root. DVC names an MD5 (of a folder, that
    of its listing), Git LFS a SHA-256. With `dos2unix` the MD5 is that of DVC before version 3,
    which left out the carriage returns of text.
    """

    name: str = Field(min_length=1, max_length=MAX_NAME)
    kind: Literal[DataKind.DVC, DataKind.LFS]
    path: TreePath
    digest: str = Field(pattern=r"^([0-9a-f]{32}|[0-9a-f]{64})$")
    is_folder: bool = False
    size_bytes: Count | None = None
    files: Count | None = None
    dos2unix: bool = False


MAX_POINTERS: Final = 20_000
DataPointers = Annotated[tuple[DataPointer, ...], Field(max_length=MAX_POINTERS)]


def move_sentence(move: DataMove) -> str:
    """`mini, 3 of 1,200 files (first: a/07.npy), mean 0.481 → 0.533`: a finding, without its end.

    Where files were not known one by one it says how many of the recorded parts moved, and where
    the first of these begins.
    """
    return ", ".join((move.name, _what(move), *move.numbers))


def _what(move: DataMove) -> str:
    if not move.before:
        return f"new, {_files(move.files)}"
    if not move.after:
        return "gone"
    if move.moved_files is not None and move.first:
        # files that are gone count too, so there may be more of them than are left
        of = f" of {_files(move.files)}" if move.moved_files <= move.files else ""
        count = f"{move.moved_files:,}" if of else _files(move.moved_files)
        return f"{count}{of} (first: {move.first})"
    if move.moved_parts and move.first:
        return (
            f"files in {move.moved_parts:,} of {move.parts:,} parts (first: {move.first} or later)"
        )
    return f"different content, from {move.first} on" if move.first else "another content"


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"
