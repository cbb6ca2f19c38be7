"""What all columns share: a sequence of records that are made when they are asked for.

Records of a few numbers take eight bytes a number, where a record takes hundreds.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final, Literal, Self, TypeVar, overload

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationInfo, ValidatorFunctionWrapHandler
from pydantic_core.core_schema import (
    CoreSchema,
    SerializationInfo,
    plain_serializer_function_ser_schema,
    with_info_wrap_validator_function,
)

from gate.text.facts import PACKED, Facts

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
