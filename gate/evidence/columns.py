"""Long series as columns: records that are made when they are asked for.

Records of a few numbers take eight bytes a number, where a record takes hundreds.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final, Literal, Self, TypeVar, overload

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
# whatever a column holds: each kind of rows says it of its own
Number = Any
Row = TypeVar("Row", bound=BaseModel)
# what JSON has for records, checked by the records themselves
Checked = Callable[[list[Any]], Iterable[Any]]


class Rows(Facts[Row]):
    """Records of one kind that never change, each made anew when it is asked for.

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
    def of_plain(cls, records: list[Any], checked: Checked, /) -> Self:
        """Hold what JSON has for records; `checked` are the records of some of them.

        Raises `ValueError`, `TypeError`, `KeyError` or `OverflowError` for whatever the record
        itself would not take, or would write in other words.
        """

    @abstractmethod
    def packed(self) -> list[Any]:
        """All of it in few values that JSON has."""

    @classmethod
    @abstractmethod
    def unpacked(cls, parts: list[Any], checked: Checked, /) -> Self:
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
        def checked(records: list[Any]) -> Iterable[Any]:
            found: Iterable[Any] = handler(tuple(records))
            return found

        if isinstance(value, cls):
            return value
        if info.mode != "json" or not isinstance(value, list):
            return cls.of(handler(value))
        packed = info.context == PACKED
        try:
            return cls.unpacked(value, checked) if packed else cls.of_plain(value, checked)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            if packed:
                message = "are no packed records"
                raise ValueError(message) from error
        # record by record: says which one is wrong, and how
        return cls.of(checked(value))

    @classmethod
    def _written(cls, value: Iterable[Row], info: SerializationInfo) -> Self | list[Any]:
        # a copy with other records is not validated
        rows = value if isinstance(value, cls) else cls.of(value)
        if not info.mode_is_json():
            return rows
        return rows.packed() if info.context == PACKED else list(rows.plain())


class NumberRows(Rows[Row]):
    """Each record as a row of numbers, its step first; a column holds the numbers of one kind.

    Two are equal when all bits are.
    """

    __slots__ = ("_columns",)
    kinds: ClassVar[tuple[Kind, ...]]

    def __init__(self, rows: Iterable[tuple[Any, ...]] = ()) -> None:
        """Rows of numbers, one of each kind; `ValueError` or `OverflowError` for no record's."""
        columns = [array(kind) for kind in self.kinds]
        for row in rows:
            for column, number in zip(columns, self.taken(*row), strict=True):
                column.append(number)
        self._columns = tuple(column.tobytes() for column in columns)

    @staticmethod
    @abstractmethod
    def taken(*row: Number) -> tuple[Any, ...]:
        """The row as it is held; `ValueError` where no record has these numbers."""

    @staticmethod
    @abstractmethod
    def row_of(record: Row) -> tuple[Any, ...]:
        """The numbers of a record."""

    @staticmethod
    @abstractmethod
    def row_of_plain(record: dict[str, Any]) -> tuple[Any, ...]:
        """The numbers of what `plain_of` gave; faults as `of_plain` has them for all else."""

    @staticmethod
    @abstractmethod
    def plain_of(*row: Number) -> dict[str, Any]:
        """The record of these numbers as JSON has it."""

    @staticmethod
    @abstractmethod
    def line_of(*row: Number) -> str:
        """The same as a line of JSON, its keys sorted."""

    @staticmethod
    @abstractmethod
    def record_of(*row: Number) -> Row:
        """The record of these numbers."""

    @classmethod
    def of(cls, records: Iterable[Row]) -> Self:
        """Hold these records."""
        return cls(map(cls.row_of, records))

    @classmethod
    def of_plain(cls, records: list[Any], _checked: Checked, /) -> Self:
        """Hold records as JSON has them; faults as the base has them."""
        return cls(map(cls.row_of_plain, records))

    def column(self, place: int) -> memoryview[Any]:
        """The numbers of one kind; not to be written to."""
        return memoryview(self._columns[place]).cast(self.kinds[place])

    @property
    def steps(self) -> memoryview[int]:
        """The steps alone; not to be written to."""
        return self.column(0)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Each record as its numbers."""
        return zip(*map(self.column, range(len(self.kinds))), strict=True)

    def facts(self) -> Iterator[str]:
        """Each record as a line of JSON."""
        return (self.line_of(*row) for row in self.rows())

    def plain(self) -> Iterator[dict[str, Any]]:
        """Each record as JSON has it."""
        return (self.plain_of(*row) for row in self.rows())

    def packed(self) -> list[Any]:
        """The bytes of each column as base64, in this machine's order."""
        return [b64encode(column).decode("ascii") for column in self._columns]

    @classmethod
    def unpacked(cls, parts: list[Any], _checked: Checked, /) -> Self:
        """What `packed` gave; faults as the base has them."""
        columns = [
            memoryview(b64decode(part, validate=True)).cast(kind)
            for part, kind in zip(parts, cls.kinds, strict=True)
        ]
        return cls(zip(*columns, strict=True))

    def at(self, place: int) -> Row:
        """The record at a place from 0 on."""
        row = (self.column(number)[place] for number in range(len(self.kinds)))
        return self.record_of(*row)

    def part(self, places: slice) -> Self:
        """Some of the records."""
        columns = (self.column(number)[places] for number in range(len(self.kinds)))
        return type(self)(zip(*columns, strict=True))

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
    def values(self) -> memoryview[float]:
        """The numbers alone; not to be written to."""
        return self.column(1)

    def pairs(self) -> Iterator[tuple[int, float]]:
        """Each step with its number."""
        return zip(self.steps, self.values, strict=True)

    def same_steps(self, other: Points) -> bool:
        """Whether both have the same steps in the same order."""
        return self.steps == other.steps

    @staticmethod
    def taken(step: int, value: float) -> tuple[int, float]:
        """NaN has no sign or payload here: a point cannot have them either."""
        if not 0 <= step <= MAX_STEP:
            message = f"a step is below 0 or above {MAX_STEP}"
            raise ValueError(message)
        return step, math.nan if math.isnan(value) else value

    @staticmethod
    def row_of(record: Point) -> tuple[int, float]:
        """Step and value."""
        return record.step, record.value

    @staticmethod
    def row_of_plain(record: dict[str, Any]) -> tuple[int, float]:
        """Step and value of what `plain_of` gave."""
        step, text = record["step"], record["hex"]
        value = float.fromhex(text)
        # whatever is not exactly what `plain_of` gives is left to the record to take or refuse
        plain = type(step) is int and record.keys() == POINT_KEYS
        if not plain or (repr(value), value.hex()) != (record["decimal"], text):
            message = "is no plain point"
            raise ValueError(message)
        return step, value

    @staticmethod
    def plain_of(step: int, value: float) -> dict[str, Any]:
        """A point as JSON has it."""
        return {"step": step, "decimal": repr(value), "hex": value.hex()}

    @staticmethod
    def line_of(step: int, value: float) -> str:
        """A point as a line of JSON."""
        return f'{{"decimal": "{value!r}", "hex": "{value.hex()}", "step": {step}}}'

    @staticmethod
    def record_of(step: int, value: float) -> Point:
        """The point."""
        return Point.of(step, value)


POINT_KEYS = frozenset(Point.model_fields)


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
    def resident_bytes(self) -> memoryview[int]:
        """What the host held; not to be written to."""
        return self.column(1)

    @property
    def device_bytes(self) -> memoryview[int]:
        """What the device held; not to be written to."""
        return self.column(2)

    @staticmethod
    def taken(step: int, resident_bytes: int, device_bytes: int) -> tuple[int, int, int]:
        """All of it."""
        if not (
            1 <= step <= MAX_STEP
            and 0 <= resident_bytes <= MAX_BYTES
            and 0 <= device_bytes <= MAX_BYTES
        ):
            message = "are the numbers of no memory"
            raise ValueError(message)
        return step, resident_bytes, device_bytes

    @staticmethod
    def row_of(record: StepMemory) -> tuple[int, int, int]:
        """As the columns hold it."""
        return record.step, record.resident_bytes, record.device_bytes

    @staticmethod
    def row_of_plain(record: dict[str, Any]) -> tuple[int, int, int]:
        """The numbers of what `plain_of` gave."""
        row = record["step"], record["resident_bytes"], record["device_bytes"]
        if {*map(type, row)} != {int} or record.keys() != MEMORY_KEYS:
            message = "is no plain memory"
            raise ValueError(message)
        return row

    @staticmethod
    def plain_of(step: int, resident_bytes: int, device_bytes: int) -> dict[str, Any]:
        """It as JSON has it."""
        return {"step": step, "resident_bytes": resident_bytes, "device_bytes": device_bytes}

    @staticmethod
    def line_of(step: int, resident_bytes: int, device_bytes: int) -> str:
        """It as a line of JSON."""
        return (
            f'{{"device_bytes": {device_bytes}, "resident_bytes": {resident_bytes}, '
            f'"step": {step}}}'
        )

    @staticmethod
    def record_of(step: int, resident_bytes: int, device_bytes: int) -> StepMemory:
        """The record."""
        return StepMemory(step=step, resident_bytes=resident_bytes, device_bytes=device_bytes)


MEMORY_KEYS = frozenset(StepMemory.model_fields)
