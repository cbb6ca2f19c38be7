"""Long series as columns: records that are made when they are asked for.

Records of a few numbers take eight bytes a number, where a record takes hundreds. Plain arrays and
not NumPy's: reading a document alone, as `audit` does, would import that for them.
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
from gate.text.json_text import PACKED, Facts

MAX_STEP = 2**53


class Point(Document):
    """One number at one step; `hex` is the value, `decimal` lets a person read it."""

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
        # NaN equals nothing, not even itself
        if shown != value and not (math.isnan(shown) and math.isnan(value)):
            message = f"decimal {self.decimal} is not the number {self.hex}"
            raise ValueError(message)
        # one text for each number: so a series can be kept as numbers and written as it was read
        if (self.decimal, self.hex) != (repr(value), value.hex()):
            message = f"{self.decimal}, {self.hex} has to be written {value!r}, {value.hex()}"
            raise ValueError(message)
        return self

    @classmethod
    def of(cls, step: int, value: float) -> Point:
        """Write a float so that reading it gives the same bits back."""
        return cls(step=step, decimal=repr(value), hex=value.hex())

    @property
    def value(self) -> float:
        """The number itself."""
        return float.fromhex(self.hex)


# eight bytes each: signed, unsigned, binary64
Kind = Literal["q", "Q", "d"]
SIGNED: Final = "q"
UNSIGNED: Final = "Q"
FLOAT: Final = "d"
# the third word of a packed column whose numbers are all one
SAME: Final = "same"
# as many steps as a run may have; a packed range names its length, and is not trusted for it
MAX_ROWS: Final = 1_000_000
# enough that what is done for all of them takes no time, and few enough to hold
LINES_AT_A_TIME: Final = 1000
Row = TypeVar("Row", bound=BaseModel)
Column: TypeAlias = "array[Any]"


@dataclass(frozen=True, slots=True)
class Same(Sequence[int]):
    """One whole number, so many times."""

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


# what a column is held as
Held: TypeAlias = bytes | range | Same


def whole_column(kind: Kind, part: object) -> Column:
    """The numbers that `packed_column` gave.

    Raises `ValueError`, `TypeError` or `OverflowError` for anything else.
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
    """A column in one value that JSON has: its bytes in this machine's order, or what it is."""
    if isinstance(column, range):
        return [column.start, len(column)]
    if isinstance(column, Same):
        return [column.number, column.times, SAME]
    return b64encode(column).decode("ascii")


def held_column(numbers: Column) -> Held:
    """As little as holds the numbers: most steps follow each other, and some numbers never move."""
    if numbers.typecode == SIGNED and numbers and numbers[-1] - numbers[0] == len(numbers) - 1:
        following = range(numbers[0], numbers[-1] + 1)
        if numbers == array(SIGNED, following):
            return following
    # of floats two zeros are equal, and not the same
    if numbers.typecode != FLOAT and numbers and numbers.count(numbers[0]) == len(numbers):
        return Same(numbers[0], len(numbers))
    return numbers.tobytes()


def shown_column(kind: Kind, column: Held) -> Sequence[Any]:
    """The numbers of what is held, without a copy."""
    return memoryview(column).cast(kind) if isinstance(column, bytes) else column


def within(column: Column, least: float, most: float) -> bool:
    """Whether no number is outside; none may be NaN."""
    return not column or least <= min(column) <= max(column) <= most


class Rows(Facts[Row]):
    """Records of one kind that never change, each rebuilt when it is asked for.

    In a document they are the list of records that they stand for, and are read from nothing else;
    with the context `PACKED` they are what `packed` gives.
    """

    __slots__ = ()
    record: ClassVar[type[BaseModel]]

    @classmethod
    @abstractmethod
    def of(cls, records: Iterable[Row]) -> Self:
        """Hold these records."""

    @classmethod
    @abstractmethod
    def of_plain(cls, records: list[Any]) -> Self:
        """Hold what JSON has for records.

        Raises `ValueError`, `TypeError`, `KeyError` or `OverflowError` for whatever the record
        itself would not take, or would write in other words.
        """

    @abstractmethod
    def packed(self) -> list[Any]:
        """All of it in few values that JSON has."""

    @classmethod
    @abstractmethod
    def unpacked(cls, parts: list[Any]) -> Self:
        """What `packed` gave; raises as `of_plain` does, for what no records could be."""

    @abstractmethod
    def at(self, place: int) -> Row:
        """The record at a place from 0 on."""

    @abstractmethod
    def part(self, places: slice) -> Self:
        """Some of the records."""

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
        # record by record: says which one is wrong, and how
        return cls.of(handler(tuple(value)))

    @classmethod
    def _written(cls, value: Iterable[Row], info: SerializationInfo) -> Self | list[Any]:
        # a copy with other records is not validated
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
    """Each record as a row of numbers, its step first; a column holds the numbers of one kind.

    Two are equal when all bits are.
    """

    __slots__ = ("_columns",)
    kinds: ClassVar[tuple[Kind, ...]]

    def __init__(
        self, rows: Iterable[tuple[Any, ...]] = (), *, columns: Iterable[Column] = ()
    ) -> None:
        """Rows of numbers, one of each kind, or their columns.

        `ValueError` or `OverflowError` for what no records have.
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
        """Make of the numbers those that are held; `ValueError` where no record has them."""

    @staticmethod
    @abstractmethod
    def row_of(*_: Any, **fields: Any) -> tuple[Any, ...]:  # noqa: ANN401 - as JSON has them
        """The numbers of a record's fields; faults as `of_plain` has them where JSON has others."""

    @staticmethod
    @abstractmethod
    def lines_of(*columns: Any) -> list[str]:  # noqa: ANN401 - a sequence of numbers each
        """The record of each row of these columns as a line of JSON, its keys sorted."""

    @classmethod
    def of(cls, records: Iterable[Row]) -> Self:
        """Hold these records."""
        return cls(cls.row_of(**vars(record)) for record in records)

    @classmethod
    def of_plain(cls, records: list[Any]) -> Self:
        """Hold records as JSON has them; faults as the base has them."""
        return cls(cls.row_of(**record) for record in records)

    def column(self, place: int) -> Sequence[Any]:
        """The numbers of one kind; not to be written to."""
        return shown_column(self.kinds[place], self._columns[place])

    @property
    def steps(self) -> Sequence[int]:
        """The steps alone; not to be written to."""
        return self.column(0)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Each record as its numbers."""
        return zip(*map(self.column, range(len(self.kinds))), strict=True)

    def facts(self) -> Iterator[list[str]]:
        """The records as lines of JSON, some at a time."""
        columns = [self.column(number) for number in range(len(self.kinds))]
        for first in range(0, len(self), LINES_AT_A_TIME):
            yield self.lines_of(*(column[first : first + LINES_AT_A_TIME] for column in columns))

    def packed(self) -> list[Any]:
        """Each column in one value."""
        return [*map(packed_column, self._columns)]

    @classmethod
    def unpacked(cls, parts: list[Any]) -> Self:
        """What `packed` gave; faults as the base has them."""
        pairs = zip(cls.kinds, parts, strict=True)
        return cls(columns=[whole_column(kind, part) for kind, part in pairs])

    def at(self, place: int) -> Row:
        """The record at a place from 0 on."""
        row = ((self.column(number)[place],) for number in range(len(self.kinds)))
        (line,) = self.lines_of(*row)
        record: Row = self.record.model_validate_json(line)  # type: ignore[assignment] # its kind
        return record

    def part(self, places: slice) -> Self:
        """Some of the records."""
        return self._with(self.column(number)[places] for number in range(len(self.kinds)))

    def chosen(self, kept: Sequence[bool]) -> Self:
        """The records at whose place `kept` is true; it has one for each."""
        return self._with(compress(self.column(number), kept) for number in range(len(self.kinds)))

    def _with(self, columns: Iterable[Iterable[Any]]) -> Self:
        """What is held already, in part: it was settled before."""
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
    """Steps and values in their order; every bit of a value is kept, but NaN is one value.

    Two are equal when all bits are: NaN equals NaN, and 0.0 is not -0.0.
    """

    __slots__ = ()
    record = Point
    kinds: ClassVar = (SIGNED, FLOAT)

    @property
    def values(self) -> Sequence[float]:
        """The numbers alone; not to be written to."""
        return self.column(1)

    def pairs(self) -> Iterator[tuple[int, float]]:
        """Each step with its number."""
        return zip(self.steps, self.values, strict=True)

    def same_steps(self, other: Points) -> bool:
        """Whether both have the same steps in the same order."""
        return self._columns[0] == other._columns[0]

    @staticmethod
    def settle(steps: Column, values: Column) -> None:
        """NaN has no sign or payload here: a point cannot have them either."""
        if not within(steps, 0, MAX_STEP):
            message = f"a step is below 0 or above {MAX_STEP}"
            raise ValueError(message)
        # a sum is NaN where one of the numbers is
        if math.isnan(sum(values)):
            values[:] = array(FLOAT, [math.nan if math.isnan(value) else value for value in values])

    @staticmethod
    def row_of(step: int, decimal: str, hex: str) -> tuple[int, float]:  # noqa: A002 - the key's name
        """Step and value."""
        value = float.fromhex(hex)
        # whatever is not written so is left to the record to take or refuse
        if type(step) is not int or (repr(value), value.hex()) != (decimal, hex):
            message = "is not a plain point"
            raise ValueError(message)
        return step, value

    @staticmethod
    def lines_of(steps: Sequence[int], values: Sequence[float]) -> list[str]:
        """Each point as a line of JSON."""
        return [
            f'{{"decimal": "{value!r}", "hex": "{value.hex()}", "step": {step}}}'
            for step, value in zip(steps, values, strict=True)
        ]

    def with_last(self, value: float) -> Points:
        """The same with another value at the last step, which has to be there."""
        return Points(columns=[array(SIGNED, self.steps), array(FLOAT, [*self.values[:-1], value])])


# numbers that a float can hold: evidence may come from another job
MAX_BYTES: Final = 2**63


class StepMemory(Document):
    """Memory after a step: resident on the host, allocated on the device."""

    step: int = Field(ge=1, le=MAX_STEP)
    resident_bytes: int = Field(ge=0, le=MAX_BYTES)
    device_bytes: int = Field(ge=0, le=MAX_BYTES)


class Memory(NumberRows[StepMemory]):
    """Step, resident bytes, and bytes on the device."""

    __slots__ = ()
    record = StepMemory
    kinds: ClassVar = (SIGNED, UNSIGNED, UNSIGNED)

    @property
    def resident_bytes(self) -> Sequence[int]:
        """What the host held; not to be written to."""
        return self.column(1)

    @property
    def device_bytes(self) -> Sequence[int]:
        """What the device held; not to be written to."""
        return self.column(2)

    @staticmethod
    def settle(steps: Column, resident_bytes: Column, device_bytes: Column) -> None:
        """All of it, as it is."""
        sizes = within(resident_bytes, 0, MAX_BYTES) and within(device_bytes, 0, MAX_BYTES)
        if not sizes or not within(steps, 1, MAX_STEP):
            message = "are the numbers of no memory"
            raise ValueError(message)

    @staticmethod
    def row_of(step: int, resident_bytes: int, device_bytes: int) -> tuple[int, int, int]:
        """As the columns hold it."""
        row = step, resident_bytes, device_bytes
        if {*map(type, row)} != {int}:
            message = "is not a plain memory record"
            raise ValueError(message)
        return row

    @staticmethod
    def lines_of(
        steps: Sequence[int], resident_bytes: Sequence[int], device_bytes: Sequence[int]
    ) -> list[str]:
        """Each as a line of JSON."""
        return [
            f'{{"device_bytes": {device}, "resident_bytes": {resident}, "step": {step}}}'
            for step, resident, device in zip(steps, resident_bytes, device_bytes, strict=True)
        ]
