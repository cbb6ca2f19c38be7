"""Records of declared data: what was found before the first training, and what changed in it."""

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
    """Files that follow each other by name, from `first` up to the next part's first.

    `sha256` covers their lines in the listing (docs/data.md), shortened to 16 digits. It shows
    which part changed; whether anything changed is decided by the whole data set's digest.
    """

    first: str = Field(max_length=MAX_NAME)
    files: int = Field(ge=1, le=MAX_NUMBER)
    sha256: str = Field(pattern=r"^[0-9a-f]{16}$")


class DataStatistics(Document):
    """Simple numbers of a data set, or of one of its arrays or columns, which `name` names.

    `rows` counts the first dimension, the lines or the images. `mean`, `deviation` (of the
    population) and `nan_share` cover all numbers that were read, and are None without any.
    `classes` counts images by folder, or the values of a column with few different ones.
    `rows_read` is less than `rows` if a limit ended the reading.
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
    """One data set: its name, where the training finds it, and its content.

    `place` is its path from the repository's root, empty if it is below `$REPRO_GATE_DATA`.
    `sha256` covers the listing of all files in the order of their names, or the bytes of a single
    file (docs/data.md). `sampled` means that only some files' content was read. `origin` is for
    readers: an address, a path of the machine, or the digest that a pointer names.
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
        """Whether the digest covers the content of only some files."""
        return self.verify is Verify.SAMPLE


# one more than the settings can declare, for what preprocessing wrote
DataSets = Annotated[tuple[DataSet, ...], Field(max_length=MAX_SOURCES + 1)]


class DataDigest(Document):
    """Which content of a data set was measured."""

    name: str = Field(max_length=MAX_NAME)
    sha256: Digest


DataDigests = Annotated[tuple[DataDigest, ...], Field(max_length=MAX_SOURCES + 1)]


def digests_of(sets: DataSets) -> DataDigests:
    """Return the digest of each data set, in the same order."""
    return tuple(DataDigest(name=known.name, sha256=known.sha256) for known in sets)


def same_data(before: DataSets, after: DataSets) -> bool:
    """Return whether two lists of data sets have the same names and digests."""
    left, right = (
        {data_set.name: data_set.sha256 for data_set in sets} for sets in (before, after)
    )
    return left == right


def brings_data(base: DataSets, head: DataSets) -> bool:
    """Return whether a change names other data than its base does.

    Only the base's known data sets are compared: what its preprocessing writes is not known before
    it has run.
    """
    after = {data_set.name: data_set.sha256 for data_set in head}
    return any(after.get(data_set.name) != data_set.sha256 for data_set in base)


class DataMove(Document):
    """A data set that changed: `moved_files` of its `files` differ, and the name of the first.

    `moved_files` is None if only parts of several files each were recorded. Then `moved_parts` of
    `parts` differ. `numbers` are sentences such as `mean 0.481 → 0.533`. A data set that is new or
    gone has no digest on one side.
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


REPEAT_PREPROCESSING: Final = (
    "Seed its random draws, sort what it lists, and write no time and no path into its output."
)


class UnrepeatedData(Document):
    """Output of the preprocessing command that differed between its two runs.

    `move` describes the change from the first run to the second. `where` is the place of the first
    difference in the first differing file, such as `row 17`, or empty if it is not known.
    """

    command: str = Field(max_length=1000)
    move: DataMove
    where: str = Field(default="", max_length=1000)


def _place_in_a_tree(path: str) -> str:
    """Refuse a path that is not below the repository's root, or that belongs to git or DVC."""
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

    `copy_name` is the name of its copy in the folder that the confined reader gets. `stage` selects
    a stage of a `dvc.lock`.
    """

    name: str = Field(min_length=1, max_length=MAX_NAME)
    kind: Literal[DataKind.DVC, DataKind.LFS]
    path: TreePath
    stage: str = Field(default="", max_length=200)
    copy_name: str = Field(default="", max_length=50)


class DataPointer(Document):
    """The file or folder that a pointer in a commit names, with its digest.

    `path` is the content's path from the repository's root. DVC names an MD5 (for a folder, the MD5
    of its listing), and Git LFS a SHA-256. With `dos2unix` the MD5 is computed as before version 3
    of DVC, without the carriage returns of text.
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


def unrepeated_data(data: UnrepeatedData) -> str:
    """Return what the preprocessing command wrote differently the second time."""
    where = f", {data.where}" if data.where else ""
    return (
        f"the preprocessing is not repeatable: two runs of {data.command} wrote different data "
        f"({move_sentence(data.move)}{where})"
    )


def move_sentence(move: DataMove) -> str:
    """Return a finding without its final stop.

    For example `mini, 3 of 1,200 files (first: a/07.npy), mean 0.481 → 0.533`. If files were not
    recorded one by one, it says how many of the recorded parts differ, and where the first of them
    begins.
    """
    return ", ".join((move.name, _what(move), *move.numbers))


def _what(move: DataMove) -> str:
    if not move.before:
        return f"new, {_files(move.files)}"
    if not move.after:
        return "gone"
    if move.moved_files is not None and move.first:
        # Deleted files count too, so more files may have changed than there are now.
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
