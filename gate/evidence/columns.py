"""Store long series as columns of numbers, and build their records only when they are asked for.

A number in a column takes 8 bytes; a pydantic record takes hundreds. A run may have a million
steps. The columns are plain arrays, not NumPy's: `audit` reads documents without any other need for
NumPy, whose import takes long.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias, TypeVar, overload

from pydantic import (
    BaseModel,
    Field,
    GetCoreSchemaHandler,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic_core.core_schema import (
    CoreSchema,
    SerializationInfo,
    plain_serializer_function_ser_schema,
    with_info_wrap_validator_function,
)

from gate.text.document import Document
from gate.text.json_text import PACKED, PackedRecords

MAX_STEP = 2**53


class Point(Document):
    """One number at one step; `hex` is the exact value, `decimal` the same value for people."""

    step: int = Field(ge=0, le=MAX_STEP)
    decimal: str = Field(max_length=40)
    hex: str = Field(max_length=40)

    @model_validator(mode="after")
    def _same_number(self) -> Point:
        try:
            value = float.fromhex(self.hex)
        except OverflowError as error:
            message = f"{self.hex} is beyond what a float holds"
            raise ValueError(message) from error
        shown = float(self.decimal)
        # NaN is not equal to itself, so two NaN need a check of their own
        if shown != value and not (math.isnan(shown) and math.isnan(value)):
            message = f"decimal {self.decimal} is not the number {self.hex}"
            raise ValueError(message)
        # There is only one accepted text for each number. A series can then be kept as floats and
        # written back exactly as it was read.
        if (self.decimal, self.hex) != (repr(value), value.hex()):
            message = f"{self.decimal}, {self.hex} has to be written {value!r}, {value.hex()}"
            raise ValueError(message)
        return self

    @classmethod
    def of(cls, step: int, value: float) -> Point:
        """Build a point from a float; reading it back gives the same bits."""
        return cls(step=step, decimal=repr(value), hex=value.hex())

    @property
    def value(self) -> float:
        """The number as a float."""
        return float.fromhex(self.hex)


# typecodes of `array`, all with 8 bytes: signed integer, unsigned integer, binary64
Kind = Literal["q", "Q", "d"]
SIGNED: Final = "q"
UNSIGNED: Final = "Q"
FLOAT: Final = "d"
# marks a packed column in which all numbers are equal
SAME: Final = "same"
# The largest number of steps of a run. A packed range is only two numbers, so without this limit a
# few bytes could make the reader allocate any amount of memory.
MAX_ROWS: Final = 1_000_000
# large enough that the cost of each call does not matter, and small enough to keep in memory
LINES_AT_A_TIME: Final = 1000
Row = TypeVar("Row", bound=BaseModel)
Column: TypeAlias = "array[Any]"


@dataclass(frozen=True, slots=True)
class Same(Sequence[int]):
    """A sequence that contains `times` times the same integer, without storing it so often."""

    number: int
    times: int

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Same: ...
    def __getitem__(self, place: int | slice) -> int | Same:
        places = range(self.times)[place]
        return Same(self.number, len(places)) if isinstance(places, range) else self.number

    def __iter__(self) -> Iterator[int]:
        return repeat(self.number, self.times)

    def __len__(self) -> int:
        return self.times


# The forms in which a column is stored: raw bytes, consecutive integers, or one repeated integer.
Held: TypeAlias = bytes | range | Same


def whole_column(kind: Kind, part: object) -> Column:
    """Return the column that `packed_column` packed.

    Raises `ValueError`, `TypeError` or `OverflowError` for any other value.
    """
    if isinstance(part, list):
        first, count, *same = part
        if type(first) is not int or type(count) is not int or not 0 < count <= MAX_ROWS:
            message = "is not a range of steps"
            raise ValueError(message)
        if not same:
            return array(kind, range(first, first + count))
        if kind == FLOAT or same != [SAME]:
            message = "is not one number for all rows"
            raise ValueError(message)
        return array(kind, [first]) * count
    if not isinstance(part, str):
        message = "is neither a range nor base64"
        raise TypeError(message)
    numbers = array(kind)
    numbers.frombytes(b64decode(part, validate=True))
    return numbers


def packed_column(column: Held) -> str | list[int | str]:
    """Return a column as one JSON value.

    A range becomes `[first, count]`, a repeated integer `[number, count, "same"]`, and other
    numbers the base64 text of their bytes in this machine's byte order.
    """
    if isinstance(column, range):
        return [column.start, len(column)]
    if isinstance(column, Same):
        return [column.number, column.times, SAME]
    return b64encode(column).decode("ascii")


def held_column(numbers: Column) -> Held:
    """Return the smallest form that stores these numbers.

    Most columns of steps are consecutive integers, and many other columns contain the same number
    at every step.
    """
    if numbers.typecode == SIGNED and numbers and numbers[-1] - numbers[0] == len(numbers) - 1:
        following = range(numbers[0], numbers[-1] + 1)
        if numbers == array(SIGNED, following):
            return following
    # Floats are excluded: 0.0 and -0.0 are equal but have different bits.
    if numbers.typecode != FLOAT and numbers and numbers.count(numbers[0]) == len(numbers):
        return Same(numbers[0], len(numbers))
    return numbers.tobytes()


def shown_column(kind: Kind, column: Held) -> Sequence[Any]:
    """Return the numbers of a stored column as a sequence, without a copy."""
    return memoryview(column).cast(kind) if isinstance(column, bytes) else column


def within(column: Column, least: float, most: float) -> bool:
    """Return whether all numbers are between `least` and `most`; the column must be free of NaN."""
    return not column or least <= min(column) <= max(column) <= most


class Rows(PackedRecords[Row]):
    """An immutable sequence of records of one kind, each rebuilt when it is asked for.

    In a document the sequence is written as the list of its records, and only such a list is read.
    With the validation context `PACKED` it is written by `packed` and read by `unpacked`.
    """

    __slots__ = ()
    record: ClassVar[type[BaseModel]]

    @classmethod
    @abstractmethod
    def of(cls, records: Iterable[Row]) -> Self:
        """Return these records as rows."""

    @classmethod
    @abstractmethod
    def of_plain(cls, records: list[Any]) -> Self:
        """Return rows from records in the form that JSON has, which are dictionaries.

        Raises `ValueError`, `TypeError`, `KeyError` or `OverflowError` for anything that the record
        would refuse, or would write in a different form.
        """

    @abstractmethod
    def packed(self) -> list[Any]:
        """Return all records as a few JSON values."""

    @classmethod
    @abstractmethod
    def unpacked(cls, parts: list[Any]) -> Self:
        """Return the rows that `packed` packed.

        Raises the same errors as `of_plain` for values that no records could have.
        """

    @abstractmethod
    def at(self, place: int) -> Row:
        """Return the record at an index, counted from 0."""

    @abstractmethod
    def part(self, places: slice) -> Self:
        """Return the records of a slice."""

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: int | slice) -> Row | Self:
        if isinstance(place, slice):
            return self.part(place)
        return self.at(range(len(self))[place])

    def __iter__(self) -> Iterator[Row]:
        return map(self.at, range(len(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}.of({list(self)!r})"

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        records = handler.generate_schema(tuple[cls.record, ...])  # type: ignore[name-defined] # a value
        return with_info_wrap_validator_function(
            cls._read,
            records,
            serialization=plain_serializer_function_ser_schema(cls._written, info_arg=True),
        )

    @classmethod
    def _read(
        cls, value: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Self:
        if isinstance(value, cls):
            return value
        if info.mode != "json" or not isinstance(value, list):
            return cls.of(handler(value))
        packed = info.context == PACKED
        try:
            return cls.unpacked(value) if packed else cls.of_plain(value)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            if packed:
                message = "are no packed records"
                raise ValueError(message) from error
        # The fast path failed. Validating record by record names the record that is wrong, and why.
        return cls.of(handler(tuple(value)))

    @classmethod
    def _written(cls, value: Iterable[Row], info: SerializationInfo) -> Self | list[Any]:
        # `model_copy` does not validate, so the value may be a plain sequence of records
        rows = value if isinstance(value, cls) else cls.of(value)
        if not info.mode_is_json():
            return rows
        if info.context == PACKED:
            return rows.packed()
        return [
            row
            for fact in rows.facts()
            for row in ([fact] if isinstance(fact, dict) else map(json.loads, fact))
        ]


class NumberRows(Rows[Row]):
    """Records that consist of numbers, the step first; each column has the numbers of one field.

    Two instances are equal if all bits are equal.
    """

    __slots__ = ("_columns",)
    kinds: ClassVar[tuple[Kind, ...]]

    def __init__(
        self, rows: Iterable[tuple[Any, ...]] = (), *, columns: Iterable[Column] = ()
    ) -> None:
        """Take either rows of numbers, one for each of `kinds`, or the columns themselves.

        Raises `ValueError` or `OverflowError` for numbers that no record of this kind has.
        """
        taken = [*columns]
        if not taken:
            listed = [*rows]
            turned = zip(*listed, strict=True) if listed else ((),) * len(self.kinds)
            taken = [array(kind, column) for kind, column in zip(self.kinds, turned, strict=True)]
        if len(taken) != len(self.kinds) or len({*map(len, taken)}) > 1:
            message = "are no columns of one length"
            raise ValueError(message)
        self.settle(*taken)
        self._columns = tuple(map(held_column, taken))

    @staticmethod
    @abstractmethod
    def settle(*columns: Any) -> None:  # noqa: ANN401 - a `Column` each
        """Check the columns, and normalise their numbers in place.

        Raises `ValueError` for numbers that no record of this kind has.
        """

    @staticmethod
    @abstractmethod
    def row_of(*_: Any, **fields: Any) -> tuple[Any, ...]:  # noqa: ANN401 - as JSON has them
        """Return the numbers of a record's fields, given as JSON has them.

        Raises the errors of `of_plain` for fields that are not in the one accepted form.
        """

    @staticmethod
    @abstractmethod
    def lines_of(*columns: Any) -> list[str]:  # noqa: ANN401 - a sequence of numbers each
        """Return each row of these columns as a line of JSON with sorted keys."""

    @classmethod
    def of(cls, records: Iterable[Row]) -> Self:
        """Return these records as rows."""
        return cls(cls.row_of(**vars(record)) for record in records)

    @classmethod
    def of_plain(cls, records: list[Any]) -> Self:
        """Return rows from records as JSON has them; raises the errors of the base class."""
        return cls(cls.row_of(**record) for record in records)

    def column(self, place: int) -> Sequence[Any]:
        """Return the numbers of one field; the caller must not write to them."""
        return shown_column(self.kinds[place], self._columns[place])

    @property
    def steps(self) -> Sequence[int]:
        """The steps of all records; the caller must not write to them."""
        return self.column(0)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield each record as a tuple of its numbers."""
        return zip(*map(self.column, range(len(self.kinds))), strict=True)

    def facts(self) -> Iterator[list[str]]:
        """Yield the records as lines of JSON, `LINES_AT_A_TIME` at once."""
        columns = [self.column(number) for number in range(len(self.kinds))]
        for first in range(0, len(self), LINES_AT_A_TIME):
            yield self.lines_of(*(column[first : first + LINES_AT_A_TIME] for column in columns))

    def packed(self) -> list[Any]:
        """Return each column as one JSON value."""
        return [*map(packed_column, self._columns)]

    @classmethod
    def unpacked(cls, parts: list[Any]) -> Self:
        """Return the rows that `packed` packed; raises the errors of the base class."""
        pairs = zip(cls.kinds, parts, strict=True)
        return cls(columns=[whole_column(kind, part) for kind, part in pairs])

    def at(self, place: int) -> Row:
        """Return the record at an index, counted from 0."""
        row = ((self.column(number)[place],) for number in range(len(self.kinds)))
        (line,) = self.lines_of(*row)
        record: Row = self.record.model_validate_json(line)  # type: ignore[assignment] # its kind
        return record

    def part(self, places: slice) -> Self:
        """Return the records of a slice."""
        return self._with(self.column(number)[places] for number in range(len(self.kinds)))

    def chosen(self, kept: Sequence[bool]) -> Self:
        """Return the records for which `kept` is true; `kept` has one value for each record."""
        return self._with(compress(self.column(number), kept) for number in range(len(self.kinds)))

    def _with(self, columns: Iterable[Iterable[Any]]) -> Self:
        """Return rows with parts of the stored columns, which need no second check by `settle`."""
        rows = type(self)()
        rows._columns = tuple(  # noqa: SLF001 - its own kind
            held_column(array(kind, column))
            for kind, column in zip(self.kinds, columns, strict=True)
        )
        return rows

    def __len__(self) -> int:
        return len(self.column(0))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self._columns == other._columns

    def __hash__(self) -> int:
        return hash(self._columns)


class Points(NumberRows[Point]):
    """Steps and values of a metric in their order.

    Every bit of a value is kept, except that all NaN become the same NaN. Two instances are equal
    if all bits are equal: NaN equals NaN, and 0.0 differs from -0.0.
    """

    __slots__ = ()
    record = Point
    kinds: ClassVar = (SIGNED, FLOAT)

    @property
    def values(self) -> Sequence[float]:
        """The values of all points; the caller must not write to them."""
        return self.column(1)

    def pairs(self) -> Iterator[tuple[int, float]]:
        """Yield each step with its value."""
        return zip(self.steps, self.values, strict=True)

    def same_steps(self, other: Points) -> bool:
        """Return whether both have the same steps in the same order."""
        return self._columns[0] == other._columns[0]

    @staticmethod
    def settle(steps: Column, values: Column) -> None:
        """Check the steps, and replace every NaN by the same NaN.

        `Point` writes NaN as text, which keeps neither its sign nor its payload.
        """
        if not within(steps, 0, MAX_STEP):
            message = f"a step is below 0 or above {MAX_STEP}"
            raise ValueError(message)
        # The sum is NaN if any number is NaN. It can also be NaN without one, as for inf - inf; the
        # replacement then changes nothing.
        if math.isnan(sum(values)):
            values[:] = array(FLOAT, [math.nan if math.isnan(value) else value for value in values])

    @staticmethod
    def row_of(step: int, decimal: str, hex: str) -> tuple[int, float]:  # noqa: A002 - the key's name
        """Return step and value of a point."""
        value = float.fromhex(hex)
        # any other spelling goes to `Point`, which accepts it or says what is wrong
        if type(step) is not int or (repr(value), value.hex()) != (decimal, hex):
            message = "is not a plain point"
            raise ValueError(message)
        return step, value

    @staticmethod
    def lines_of(steps: Sequence[int], values: Sequence[float]) -> list[str]:
        """Return each point as a line of JSON."""
        return [
            f'{{"decimal": "{value!r}", "hex": "{value.hex()}", "step": {step}}}'
            for step, value in zip(steps, values, strict=True)
        ]

    def with_last(self, value: float) -> Points:
        """Return the same points with a different value at the last step; there must be one."""
        return Points(columns=[array(SIGNED, self.steps), array(FLOAT, [*self.values[:-1], value])])


# Evidence may come from another job, so sizes are limited to numbers that a float can represent.
MAX_BYTES: Final = 2**63


class StepMemory(Document):
    """Memory after a step: resident on the host, and allocated by torch on the device."""

    step: int = Field(ge=1, le=MAX_STEP)
    resident_bytes: int = Field(ge=0, le=MAX_BYTES)
    device_bytes: int = Field(ge=0, le=MAX_BYTES)


class Memory(NumberRows[StepMemory]):
    """The memory after each step: step, resident bytes and bytes on the device."""

    __slots__ = ()
    record = StepMemory
    kinds: ClassVar = (SIGNED, UNSIGNED, UNSIGNED)

    @property
    def resident_bytes(self) -> Sequence[int]:
        """The resident bytes on the host; the caller must not write to them."""
        return self.column(1)

    @property
    def device_bytes(self) -> Sequence[int]:
        """The allocated bytes on the device; the caller must not write to them."""
        return self.column(2)

    @staticmethod
    def settle(steps: Column, resident_bytes: Column, device_bytes: Column) -> None:
        """Check the ranges of all numbers, and leave them unchanged."""
        sizes = within(resident_bytes, 0, MAX_BYTES) and within(device_bytes, 0, MAX_BYTES)
        if not sizes or not within(steps, 1, MAX_STEP):
            message = "are the numbers of no memory"
            raise ValueError(message)

    @staticmethod
    def row_of(step: int, resident_bytes: int, device_bytes: int) -> tuple[int, int, int]:
        """Return the numbers in the order of the columns."""
        row = step, resident_bytes, device_bytes
        if {*map(type, row)} != {int}:
            message = "is not a plain memory record"
            raise ValueError(message)
        return row

    @staticmethod
    def lines_of(
        steps: Sequence[int], resident_bytes: Sequence[int], device_bytes: Sequence[int]
    ) -> list[str]:
        """Return each record as a line of JSON."""
        return [
            f'{{"device_bytes": {device}, "resident_bytes": {resident}, "step": {step}}}'
            for step, resident, device in zip(steps, resident_bytes, device_bytes, strict=True)
        ]
