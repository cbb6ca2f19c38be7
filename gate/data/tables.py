"""Statistics of tables: CSV, JSON Lines, and Parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import importlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, BinaryIO, Final, TypeVar

import numpy as np

from gate.data.budget import Budget
from gate.data.data_sets import MAX_STATISTICS
from gate.data.moments import Column, Floats

BLOCK_ROWS: Final = 8192
BLOCK_BYTES: Final = 4 * 1024**2
MAX_LINE_BYTES: Final = 1024**2
DELIMITERS: Final = ",;\t"
MISSING: Final = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?"})
BYTE_ORDER_MARK: Final = "\ufeff"
T = TypeVar("T")


class _Lines:
    """The lines of a file, and how many bytes of them were read since the last question."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size_bytes = 0

    def __iter__(self) -> Iterator[str]:
        while line := self._file.readline(MAX_LINE_BYTES):
            if len(line) == MAX_LINE_BYTES:
                raise ValueError("a line is too long")
            self._size_bytes += len(line)
            yield line.decode("utf-8", "surrogateescape")

    @property
    def block_is_full(self) -> bool:
        """Whether the rows held by now take room enough."""
        return self._size_bytes >= BLOCK_BYTES

    def taken_bytes(self) -> int:
        """Bytes since the last call."""
        taken, self._size_bytes = self._size_bytes, 0
        return taken


def read_csv(file: BinaryIO, budget: Budget) -> dict[str, Column]:
    """The columns of a table by their names, or by number where it has no header.

    A header is a first row without a number. Raises `ValueError` and `csv.Error` for a row of
    another length, and what else is no table.
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
    # nothing is left where everything was read; where nothing was, the first row counts too
    rest = _rows_left(file, budget, quotes=True) + (0 if read else len(held))
    return _with_rows(dict(zip(names, columns, strict=False)), read, rest)


def read_json_lines(file: BinaryIO, budget: Budget) -> dict[str, Column]:
    """The keys of objects, one in each line; raises `ValueError` for a line that is none."""
    lines = _Lines(file)
    columns: dict[str, Column] = {}
    read = 0
    rows = filter(str.strip, lines)
    if not budget.text_bytes(0):
        # the files before took all: of this one rows are counted, under the first one's keys
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


def read_parquet(file: BinaryIO, budget: Budget) -> dict[str, Column]:
    """The flat columns; none without pyarrow. Raises what that raises for a broken file."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
        types: Any = importlib.import_module("pyarrow.types")
    except ImportError:
        return {}
    opened = parquet.ParquetFile(file)
    flat = [each for each in opened.schema_arrow if not types.is_nested(each.type)]
    columns = {each.name: _parquet_column(types, each.type) for each in flat[:MAX_STATISTICS]}
    read = 0
    # threads of its own would take address space, which is limited
    for batch in opened.iter_batches(BLOCK_ROWS * 8, columns=list(columns), use_threads=False):
        if not budget.array_bytes(batch.nbytes):
            break
        for name, column in columns.items():
            cells = batch.column(name)
            if column.moments is not None:
                column.moments.add(cells.cast("float64", safe=False).to_numpy(False))
            if column.values is not None:
                counts = cells.drop_null().value_counts().to_pylist()
                column.count({str(each["values"]): each["counts"] for each in counts})
        read += batch.num_rows
    return _with_rows(columns, read, opened.metadata.num_rows - read)


def _parquet_column(types: Any, kind: Any) -> Column:  # noqa: ANN401 - a module without types
    whole = types.is_integer(kind) or types.is_boolean(kind)
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind)
    return Column(numeric=whole or types.is_floating(kind), classes=whole or text)


def _with_rows(columns: dict[str, Column], read: int, rest: int) -> dict[str, Column]:
    for column in columns.values():
        column.rows, column.rows_read = read + rest, read
        # numbers with a fraction are no classes, however few they are
        if column.moments is not None and not all(map(_is_whole, column.values or ())):
            column.values = None
    return columns


def _blocks(rows: Iterator[T], lines: _Lines, held: list[T], budget: Budget) -> Iterator[list[T]]:
    """Some rows at a time, `held` before them, up to the limit: the file then stands behind one."""
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
        raise ValueError("a row has another number of cells")
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
        # some are missing, or these are no numbers
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


def _rows_left(file: BinaryIO, budget: Budget, *, quotes: bool) -> int:
    """How many rows follow, 0 where the time ends before: line ends, outside `quotes` if any."""
    count, quoted, last = 0, False, b"\n"
    while data := file.read(BLOCK_BYTES):
        if not budget.in_time():
            return 0
        last = data[-1:]
        for number, piece in enumerate(data.split(b'"') if quotes else (data,)):
            quoted ^= number > 0
            count += 0 if quoted else piece.count(b"\n")
    return count + (last != b"\n")
