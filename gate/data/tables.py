"""Compute statistics of tables block by block, for CSV and JSON Lines."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import BinaryIO, Final, TypeVar

import numpy as np
import numpy.typing as npt

from gate.data.data_sets import MAX_CLASSES, MAX_STATISTICS
from gate.text.untrusted_text import shown_name

GIB: Final = 1024**3


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingLimits:
    """The limits for all files of a data set together: bytes after decompression, and seconds.

    Text has a separate limit, because reading it is slow. On any machine the byte limits are
    reached before the time, so that equal files give equal numbers.
    """

    array_bytes: int = 4 * GIB
    text_bytes: int = 64 * 1024**2
    wall_seconds: float = 120.0
    max_names: int = 2_000_000


class ReadingBudget:
    """What is left of the limits; `seconds` is a monotonic clock."""

    def __init__(self, limits: ReadingLimits, seconds: Callable[[], float]) -> None:
        self.limits = limits
        self._seconds = seconds
        self._end = seconds() + limits.wall_seconds
        self._array_bytes = limits.array_bytes
        self._text_bytes = limits.text_bytes

    def in_time(self) -> bool:
        """Return whether there is time left."""
        return self._seconds() < self._end

    def array_bytes(self, count: int) -> bool:
        """Take `count` bytes of arrays from the budget; return whether they may be read."""
        self._array_bytes -= count
        return self._array_bytes >= 0 and self.in_time()

    def text_bytes(self, count: int) -> bool:
        """Take `count` bytes of text from the budget; return whether they may be read."""
        self._text_bytes -= count
        return self._text_bytes >= 0 and self.in_time()


Floats = npt.NDArray[np.float64]
MAX_SHOWN_NAME: Final = 200
# Values count as classes if each occurs at least this many times on average.
ROWS_A_CLASS: Final = 2


class Moments:
    """Count, mean and squared deviation of the finite numbers, and the number of NaN.

    Blocks are combined by the pairwise formula 2.1 of Chan, Golub and LeVeque, "Algorithms for
    computing the sample variance" (The American Statistician 37, 1983), in float64. It loses no
    digits if the mean is large compared with the deviation.
    """

    def __init__(self) -> None:
        self.numbers = 0
        self.nans = 0
        self._finite = 0
        self._mean = 0.0
        self._squares = 0.0

    def add(self, values: npt.NDArray[np.generic]) -> None:
        """Add a block of numbers of any real type."""
        floats: Floats = values.astype(np.float64, copy=False)
        # Values near the end of the float range overflow; the result is then reported as None.
        with np.errstate(all="ignore"):
            finite = floats[np.isfinite(floats)]
            block = Moments()
            block.numbers = int(floats.size)
            block.nans = int(np.isnan(floats).sum())
            block._finite = int(finite.size)
            if finite.size:
                block._mean = float(finite.mean())
                block._squares = float(np.square(finite - block._mean).sum())
        self.join(block)

    def join(self, other: Moments) -> None:
        """Combine with numbers that were gathered elsewhere."""
        self.numbers += other.numbers
        self.nans += other.nans
        together = self._finite + other._finite
        if not other._finite:
            return
        between = other._mean - self._mean
        share = other._finite / together
        self._mean += between * share
        # Not `between**2`, which raises OverflowError for a Python float.
        self._squares += other._squares + between * between * self._finite * share
        self._finite = together

    @property
    def mean(self) -> float | None:
        """The mean of the finite numbers, or None without any."""
        return _finite(self._mean) if self._finite else None

    @property
    def deviation(self) -> float | None:
        """The population's standard deviation of the finite numbers, or None without any."""
        return _finite(math.sqrt(self._squares / self._finite)) if self._finite else None

    @property
    def nan_share(self) -> float | None:
        """The share of NaN from 0 to 1, or None without numbers."""
        return self.nans / self.numbers if self.numbers else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class Column:
    """Statistics of an array or column: its moments, and its values' counts while they are few."""

    def __init__(self, *, numeric: bool = True, classes: bool = True) -> None:
        self.moments: Moments | None = Moments() if numeric else None
        self.values: Counter[str] | None = Counter() if classes else None
        self.rows = 0
        self.rows_read = 0

    def count(self, values: Iterable[str] | Mapping[str, int]) -> None:
        """Count values; give up above `MAX_CLASSES` different ones."""
        if self.values is None:
            return
        self.values.update(values)
        if len(self.values) > MAX_CLASSES:
            self.values = None

    def join(self, other: Column) -> None:
        """Add the same column of the next file."""
        self.rows += other.rows
        self.rows_read += other.rows_read
        if self.moments is None or other.moments is None:
            self.moments = None
        else:
            self.moments.join(other.moments)
        if other.values is None:
            self.values = None
        else:
            self.count(other.values)

    @property
    def classes(self) -> dict[str, int]:
        """How often each value occurs; empty if there are too many values to be classes."""
        counts: Mapping[str, int] = self.values or {}
        if len(counts) * ROWS_A_CLASS > sum(counts.values()):
            return {}
        return named_counts(counts)


def named_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts by names fit to be shown; empty if there are more than a record can have."""
    if len(counts) > MAX_CLASSES:
        return {}
    totals: Counter[str] = Counter()
    for name in sorted(counts):
        totals[shown_name(name, limit=MAX_SHOWN_NAME)] += counts[name]
    return dict(totals)


BLOCK_ROWS: Final = 8192
BLOCK_BYTES: Final = 4 * 1024**2
MAX_LINE_BYTES: Final = 1024**2
DELIMITERS: Final = ",;\t"
MISSING: Final = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?"})
BYTE_ORDER_MARK: Final = "\ufeff"
T = TypeVar("T")


class _Lines:
    """The lines of a file, with a count of the bytes read since `taken_bytes` was called."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size_bytes = 0

    def __iter__(self) -> Iterator[str]:
        while line := self._file.readline(MAX_LINE_BYTES):
            # A file without line ends must not be read into memory as one line.
            if len(line) == MAX_LINE_BYTES:
                raise ValueError("a line is too long")
            self._size_bytes += len(line)
            yield line.decode("utf-8", "surrogateescape")

    @property
    def block_is_full(self) -> bool:
        """Whether the rows that were read are enough for one block."""
        return self._size_bytes >= BLOCK_BYTES

    def taken_bytes(self) -> int:
        """Return the number of bytes since the last call."""
        taken, self._size_bytes = self._size_bytes, 0
        return taken


def read_csv(file: BinaryIO, budget: ReadingBudget) -> dict[str, Column]:
    """Return the columns of a table by name, or by number if the table has no header.

    A first row without any number is a header. Raises `ValueError` and `csv.Error` for a row of
    another length and for anything else that is no table.
    """
    lines = _Lines(file)
    rows = iter(lines)
    first = next(rows, "").removeprefix(BYTE_ORDER_MARK)
    delimiter = max(DELIMITERS, key=first.count)
    reader = csv.reader(_chain(first, rows), delimiter=delimiter, strict=True)
    heading = next(reader, [])
    held = [] if _is_header(heading) else [heading]
    names = _names(heading, is_header=not held)
    columns = [Column() for _ in heading]
    read = 0
    for block in _blocks(reader, lines, list(held), budget):
        for column, cells in zip(columns, _transposed(block, len(heading)), strict=False):
            _add_cells(column, cells)
        read += len(block)
    # Nothing is left if everything was read. If nothing was read, the first row counts too.
    rest = _rows_left(file, budget, quotes=True) + (0 if read else len(held))
    return _with_rows(dict(zip(names, columns, strict=False)), read, rest)


def read_json_lines(file: BinaryIO, budget: ReadingBudget) -> dict[str, Column]:
    """Return the keys of JSON objects, one object a line, as columns.

    Raises `ValueError` or `TypeError` for a line that is not an object.
    """
    lines = _Lines(file)
    columns: dict[str, Column] = {}
    read = 0
    rows = filter(str.strip, lines)
    if not budget.text_bytes(0):
        # Earlier files used up the budget. Only count this file's rows, under its first object's
        # keys.
        columns = {name: Column() for name in list(_object(next(rows, "{}")))[:MAX_STATISTICS]}
        return _with_rows(columns, 0, 1 + _rows_left(file, budget, quotes=False))
    for block in _blocks(rows, lines, [], budget):
        gathered: dict[str, list[object]] = {}
        for line in block:
            for name, value in _object(line).items():
                if name in gathered or len(gathered) < MAX_STATISTICS:
                    gathered.setdefault(name, []).append(value)
        for name, values in gathered.items():
            if name in columns or len(columns) < MAX_STATISTICS:
                _add_values(columns.setdefault(name, Column()), values)
        read += len(block)
    return _with_rows(columns, read, _rows_left(file, budget, quotes=False))


def _object(line: str) -> dict[str, object]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise TypeError("a line holds no object")
    return row


def _with_rows(columns: dict[str, Column], read: int, rest: int) -> dict[str, Column]:
    for column in columns.values():
        column.rows, column.rows_read = read + rest, read
        # fractions are never classes, however few there are
        if column.moments is not None and not all(map(_is_whole, column.values or ())):
            column.values = None
    return columns


def _blocks(
    rows: Iterator[T], lines: _Lines, held: list[T], budget: ReadingBudget
) -> Iterator[list[T]]:
    """Yield blocks of rows within the budget, the first beginning with `held`.

    Afterwards the file's position is after the last row that was yielded.
    """
    if not budget.text_bytes(0):
        return
    for row in rows:
        if row:
            held.append(row)
        if len(held) >= BLOCK_ROWS or lines.block_is_full:
            yield held
            held = []
            if not budget.text_bytes(lines.taken_bytes()):
                return
    budget.text_bytes(lines.taken_bytes())
    if held:
        yield held


def _chain(first: str, rows: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rows


def _is_header(row: Sequence[str]) -> bool:
    return any(row) and not any(map(_is_number, row))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdigit() or text in {"True", "False"}


def _names(row: Sequence[str], *, is_header: bool) -> list[str]:
    names: list[str] = []
    for number, cell in enumerate(row[:MAX_STATISTICS], 1):
        name = cell.strip() if is_header else ""
        name = name or f"column {number}"
        names.append(f"{name} ({number})" if name in names else name)
    return names


def _transposed(rows: Sequence[Sequence[str]], width: int) -> Iterable[tuple[str, ...]]:
    if any(len(row) != width for row in rows):
        raise ValueError("a row has a different number of cells")
    return zip_longest(*(row[:MAX_STATISTICS] for row in rows))


def _add_cells(column: Column, cells: Sequence[str]) -> None:
    if column.moments is not None:
        try:
            column.moments.add(_floats(cells))
        except ValueError:
            column.moments = None
    column.count(cell for cell in cells if cell not in MISSING)


def _floats(cells: Sequence[str]) -> Floats:
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        # some cells are missing, or are not numbers
        filled = (math.nan if cell in MISSING else float(cell) for cell in cells)
        return np.fromiter(filled, np.float64, len(cells))


def _add_values(column: Column, values: Sequence[object]) -> None:
    numbers = [math.nan if value is None else value for value in values]
    if column.moments is not None:
        if all(type(value) in {int, float} for value in numbers):
            column.moments.add(np.array(list(map(float, numbers))))  # type: ignore[arg-type]  # asked above
        else:
            column.moments = None
    if all(isinstance(value, str | int | float) for value in numbers):
        column.count(str(value) for value in values if value is not None)
    else:
        column.values = None


def _rows_left(file: BinaryIO, budget: ReadingBudget, *, quotes: bool) -> int:
    """Count the remaining rows by their line ends; with `quotes`, only those outside of quotes.

    Returns 0 if the time ends before.
    """
    count, quoted, last = 0, False, b"\n"
    while data := file.read(BLOCK_BYTES):
        if not budget.in_time():
            return 0
        last = data[-1:]
        for number, piece in enumerate(data.split(b'"') if quotes else (data,)):
            # Each quotation mark toggles. A doubled one inside a cell toggles twice, which changes
            # nothing.
            quoted ^= number > 0
            count += 0 if quoted else piece.count(b"\n")
    return count + (last != b"\n")
