"""Simple statistics of a data set: rows, mean, deviation, share of NaN, classes.

They are told beside a digest and decide nothing, so a file that cannot be read has none and is no
fault. The bytes may be hostile: this runs in the confined process alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, Literal

from gate.data.arrays import read_npy, read_npz
from gate.data.budget import Budget
from gate.data.data_sets import MAX_NUMBER, MAX_STATISTICS, DataStatistics
from gate.data.moments import MAX_SHOWN_NAME, Column, named_counts
from gate.data.tables import read_csv, read_json_lines, read_parquet
from gate.errors import GateError
from gate.system.files.port import Files
from gate.text.file_names import shown_name

Format = Literal["npy", "npz", "csv", "parquet", "images", "jsonl"]
Read = Callable[[BinaryIO, Budget], dict[str, Column]]
FORMATS: Final[dict[str, tuple[Format, Read]]] = {
    ".npy": ("npy", read_npy),
    ".npz": ("npz", read_npz),
    ".csv": ("csv", read_csv),
    ".tsv": ("csv", read_csv),
    ".jsonl": ("jsonl", read_json_lines),
    ".ndjson": ("jsonl", read_json_lines),
    ".parquet": ("parquet", read_parquet),
}
IMAGES: Final = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
)
MAX_FILE_BYTES: Final = 2**62


def data_statistics(
    files: Files, source: Path, name: str, budget: Budget
) -> tuple[DataStatistics, ...]:
    """Those of a file or folder, at most `MAX_STATISTICS`; `name` has the suffix of a file.

    None where the time ends, and where there are folders that cannot be read or too many names.
    Files of one format count together, column by column; the images of a folder are its class.
    """
    columns: dict[tuple[Format, str], Column] = {}
    images: Counter[tuple[Path, str]] = Counter()
    try:
        for folder, each, suffix in _found(files, source, name, budget):
            if suffix in IMAGES:
                images[folder, suffix] += 1
                continue
            kind, read = FORMATS[suffix]
            for column, values in _read(files, folder / each, read, budget).items():
                if (kind, column) in columns:
                    columns[kind, column].join(values)
                elif len(columns) < MAX_STATISTICS:
                    columns[kind, column] = values
    except GateError:
        return ()
    # how far it would have come depends on the machine
    if not budget.in_time():
        return ()
    told = [*_of_images(images, source)]
    for (kind, column), values in columns.items():
        told += _of_column(kind, column, values)
    return tuple(told[:MAX_STATISTICS])


def _found(
    files: Files, source: Path, name: str, budget: Budget
) -> Iterator[tuple[Path, str, str]]:
    """Folder, name and suffix of each file of a known suffix, in the order of names."""
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
        for each in names:
            suffix = PurePosixPath(each).suffix.lower()
            if not budget.in_time():
                return
            # a million images need no look at each
            if suffix in IMAGES:
                yield folder, each, suffix
            elif files.is_folder(folder / each):
                folders.append(folder / each)
            elif suffix in FORMATS:
                yield folder, each, suffix
        pending += reversed(folders)


def _read(files: Files, path: Path, read: Read, budget: Budget) -> dict[str, Column]:
    try:
        with files.open_binary(path, max_bytes=MAX_FILE_BYTES) as file:
            return read(file, budget)
    except Exception:  # noqa: BLE001 - six parsers raise what they like, and nothing depends on it
        return {}


def _of_column(kind: Format, name: str, column: Column) -> Iterator[DataStatistics]:
    moments = column.moments
    # a header may promise more rows than any disk holds
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
    """All images by folder; then, where there are several suffixes, how many have each."""
    folders: Counter[str] = Counter()
    suffixes: Counter[str] = Counter()
    for (folder, suffix), count in images.items():
        # what lies in the data set's own folder has no class
        if folder != source:
            folders[str(folder.relative_to(source))] += count
        suffixes[suffix] += count
    if images:
        yield _images(images.total(), "", named_counts(folders))
    if len(suffixes) > 1:
        yield from (_images(suffixes[suffix], suffix, {}) for suffix in sorted(suffixes))


def _images(count: int, name: str, classes: dict[str, int]) -> DataStatistics:
    return DataStatistics(format="images", name=name, rows=count, rows_read=count, classes=classes)
