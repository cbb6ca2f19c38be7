"""Statistics of NumPy's files: streamed, no pickle read, arrays of objects left out."""

from __future__ import annotations

import math
import zipfile
from typing import IO, BinaryIO, Final

import numpy as np

from gate.data.budget import Budget
from gate.data.data_sets import MAX_STATISTICS
from gate.data.moments import Column

BLOCK_BYTES: Final = 4 * 1024**2
REAL_KINDS: Final = "biuf"
# of these a one-dimensional array may be labels
LABEL_KINDS: Final = "biu"
MEMBER: Final = ".npy"
# version 3 is for names of fields beyond Latin-1, and arrays of fields have no mean
HEADERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npy(file: BinaryIO, budget: Budget) -> dict[str, Column]:
    """One array, without a name; none of objects. Raises what NumPy raises for a broken file."""
    column = _array(file, budget)
    return {} if column is None else {"": column}


def read_npz(file: BinaryIO, budget: Budget) -> dict[str, Column]:
    """The arrays of an archive by their names; raises as `read_npy` and `zipfile` do."""
    found: dict[str, Column] = {}
    with zipfile.ZipFile(file) as archive:
        members = [each for each in archive.infolist() if each.filename.endswith(MEMBER)]
        for member in members[:MAX_STATISTICS]:
            with archive.open(member) as stream:
                column = _array(stream, budget)
            if column is not None:
                found[member.filename.removesuffix(MEMBER)] = column
    return found


def _array(file: IO[bytes], budget: Budget) -> Column | None:
    header = HEADERS[np.lib.format.read_magic(file)]
    shape, _, dtype = header(file)
    if dtype.hasobject:
        return None
    if any(size < 0 for size in shape):
        raise ValueError("a dimension below zero")
    numeric = dtype.kind in REAL_KINDS
    column = Column(numeric=numeric, classes=dtype.kind in LABEL_KINDS and len(shape) == 1)
    column.rows = shape[0] if shape else 1
    elements = math.prod(shape)
    read = _read_elements(file, dtype, elements, column, budget) if numeric else elements
    # in the order of the file: rows of a column-major array are whole at its end only
    column.rows_read = column.rows * read // elements if elements else column.rows
    return column


def _read_elements(
    file: IO[bytes], dtype: np.dtype[np.generic], elements: int, column: Column, budget: Budget
) -> int:
    """Gather the elements up to the limit; how many were read."""
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
            # as many different values in one block are no labels either
            column.count({str(value): int(count) for value, count in _pairs(values, counts)})
        read += block.size
    return read


def _pairs(
    values: np.ndarray[tuple[int], np.dtype[np.generic]],
    counts: np.ndarray[tuple[int], np.dtype[np.intp]],
) -> list[tuple[object, int]]:
    return list(zip(values.tolist(), counts.tolist(), strict=True))
