"""What all columns share: a sequence of records that are made when they are asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final, Self, TypeVar, overload

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationInfo, ValidatorFunctionWrapHandler
from pydantic_core.core_schema import (
    CoreSchema,
    SerializationInfo,
    plain_serializer_function_ser_schema,
    with_info_wrap_validator_function,
)

from gate.records.observed.columns.facts import Facts

# between the gate and its own reading process: what is written in this context, it alone reads
PACKED: Final = "packed"
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
