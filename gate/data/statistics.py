"""Compute simple statistics of a data set: rows, mean, deviation, share of NaN, classes.

They are informational, so a file that cannot be read just has none. The bytes are untrusted: this
runs in the confined process only.
"""

from __future__ import annotations

import math
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Final, Literal

import numpy as np

from gate.data.data_sets import MAX_NUMBER, MAX_STATISTICS, DataStatistics
from gate.data.tables import (
    MAX_SHOWN_NAME,
    Column,
    ReadingBudget,
    named_counts,
    read_csv,
    read_json_lines,
)
from gate.errors import GateError
from gate.system.files.port import Files
from gate.text.untrusted_text import shown_name

BLOCK_BYTES: Final = 4 * 1024**2
REAL_KINDS: Final = "biuf"
# a one-dimensional array of these kinds may be labels
LABEL_KINDS: Final = "biu"
MEMBER: Final = ".npy"
# Version 3 is left out: it is for field names beyond Latin-1, and structured arrays have no mean.
HEADERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def npy_columns(file: BinaryIO, budget: ReadingBudget) -> dict[str, Column]:
    """Return the column of one array, without a name; empty for an array of objects.

    Raises NumPy's errors for a broken file.
    """
    column = _array(file, budget)
    return {} if column is None else {"": column}


def npz_columns(file: BinaryIO, budget: ReadingBudget) -> dict[str, Column]:
    """Return an archive's arrays by name; raises the errors of NumPy and `zipfile`."""
    columns: dict[str, Column] = {}
    with zipfile.ZipFile(file) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(MEMBER)]
        for member in members[:MAX_STATISTICS]:
            with archive.open(member) as stream:
                column = _array(stream, budget)
            if column is not None:
                columns[member.filename.removesuffix(MEMBER)] = column
    return columns


def _array(file: IO[bytes], budget: ReadingBudget) -> Column | None:
    header = HEADERS[np.lib.format.read_magic(file)]
    shape, _, dtype = header(file)
    # reading objects would unpickle them, which can run code
    if dtype.hasobject:
        return None
    if any(size < 0 for size in shape):
        raise ValueError("a dimension below zero")
    numeric = dtype.kind in REAL_KINDS
    column = Column(numeric=numeric, classes=dtype.kind in LABEL_KINDS and len(shape) == 1)
    column.rows = shape[0] if shape else 1
    elements = math.prod(shape)
    read = _read_elements(file, dtype, elements, column, budget) if numeric else elements
    # In file order: in a column-major array no row is complete before the end.
    column.rows_read = column.rows * read // elements if elements else column.rows
    return column


def _read_elements(
    file: IO[bytes],
    dtype: np.dtype[np.generic],
    elements: int,
    column: Column,
    budget: ReadingBudget,
) -> int:
    """Add the elements to the column, up to the limit; return how many were read."""
    read = 0
    while read < elements:
        size_bytes = min(BLOCK_BYTES // dtype.itemsize, elements - read) * dtype.itemsize
        if not budget.array_bytes(size_bytes):
            break
        data = file.read(size_bytes)
        if len(data) != size_bytes:
            raise ValueError("the file ends within the array")
        block = np.frombuffer(data, dtype)
        if column.moments is not None:
            column.moments.add(block)
        if column.values is not None:
            values, counts = np.unique(block, return_counts=True)
            # a block with more different values than `MAX_CLASSES` is not labels either
            column.count({str(value): int(count) for value, count in _pairs(values, counts)})
        read += block.size
    return read


def _pairs(
    values: np.ndarray[tuple[int], np.dtype[np.generic]],
    counts: np.ndarray[tuple[int], np.dtype[np.intp]],
) -> list[tuple[object, int]]:
    return list(zip(values.tolist(), counts.tolist(), strict=True))


Format = Literal["npy", "npz", "csv", "images", "jsonl"]
Read = Callable[[BinaryIO, ReadingBudget], dict[str, Column]]
FORMATS: Final[dict[str, tuple[Format, Read]]] = {
    ".npy": ("npy", npy_columns),
    ".npz": ("npz", npz_columns),
    ".csv": ("csv", read_csv),
    ".tsv": ("csv", read_csv),
    ".jsonl": ("jsonl", read_json_lines),
    ".ndjson": ("jsonl", read_json_lines),
}
IMAGES: Final = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
)
MAX_FILE_BYTES: Final = 2**62


def data_statistics(
    files: Files, source: Path, name: str, budget: ReadingBudget
) -> tuple[DataStatistics, ...]:
    """Return the statistics of a file or folder, at most `MAX_STATISTICS`.

    `name` gives a single file's suffix. Returns none if the time ends, if a folder cannot be read,
    or if there are too many names. Files of one format are counted together, column by column. An
    image's class is its folder.
    """
    columns: dict[tuple[Format, str], Column] = {}
    images: Counter[tuple[Path, str]] = Counter()
    try:
        for folder, table, suffix in _tables(files, source, name, budget):
            if suffix in IMAGES:
                images[folder, suffix] += 1
                continue
            kind, read = FORMATS[suffix]
            for column, values in _read(files, folder / table, read, budget).items():
                if (kind, column) in columns:
                    columns[kind, column].join(values)
                elif len(columns) < MAX_STATISTICS:
                    columns[kind, column] = values
    except GateError:
        return ()
    # How far the reading got depends on the machine, so partial numbers would not be comparable.
    if not budget.in_time():
        return ()
    statistics = [*_of_images(images, source)]
    for (kind, column), values in columns.items():
        statistics += _of_column(kind, column, values)
    return tuple(statistics[:MAX_STATISTICS])


def _tables(
    files: Files, source: Path, name: str, budget: ReadingBudget
) -> Iterator[tuple[Path, str, str]]:
    """Yield (folder, name, suffix) of each file with a known suffix, in the order of names."""
    if not files.is_folder(source):
        suffix = PurePosixPath(name).suffix.lower()
        if suffix in FORMATS:
            yield source.parent, source.name, suffix
        return
    pending, left = [source], budget.limits.max_names
    while pending:
        folder = pending.pop()
        names = files.list_names(folder, max_names=left)
        left -= len(names)
        folders = []
        for path in names:
            suffix = PurePosixPath(path).suffix.lower()
            if not budget.in_time():
                return
            # Images are only counted, so a million of them need no system call each.
            if suffix in IMAGES:
                yield folder, path, suffix
            elif files.is_folder(folder / path):
                folders.append(folder / path)
            elif suffix in FORMATS:
                yield folder, path, suffix
        pending += reversed(folders)


def _read(files: Files, path: Path, read: Read, budget: ReadingBudget) -> dict[str, Column]:
    try:
        with files.open_binary(path, max_bytes=MAX_FILE_BYTES) as file:
            return read(file, budget)
    except Exception:  # noqa: BLE001 - six parsers raise what they like, and nothing depends on it
        return {}


def _of_column(kind: Format, name: str, column: Column) -> Iterator[DataStatistics]:
    moments = column.moments
    # A forged header may promise more rows than any disk can store.
    if column.rows <= MAX_NUMBER:
        yield DataStatistics(
            format=kind,
            name=shown_name(name, limit=MAX_SHOWN_NAME),
            rows=column.rows,
            rows_read=column.rows_read,
            mean=moments.mean if moments else None,
            deviation=moments.deviation if moments else None,
            nan_share=moments.nan_share if moments else None,
            classes=column.classes,
        )


def _of_images(images: Counter[tuple[Path, str]], source: Path) -> Iterator[DataStatistics]:
    """Yield the number of images by folder and, for several suffixes, the number of each."""
    folders: Counter[str] = Counter()
    suffixes: Counter[str] = Counter()
    for (folder, suffix), count in images.items():
        # images directly in the data set's own folder have no class
        if folder != source:
            folders[str(folder.relative_to(source))] += count
        suffixes[suffix] += count
    if images:
        yield _images(images.total(), "", named_counts(folders))
    if len(suffixes) > 1:
        yield from (_images(suffixes[suffix], suffix, {}) for suffix in sorted(suffixes))


def _images(count: int, name: str, classes: dict[str, int]) -> DataStatistics:
    return DataStatistics(format="images", name=name, rows=count, rows_read=count, classes=classes)
