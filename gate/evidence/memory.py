"""How much memory there was after each step."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from pydantic import Field

from gate.evidence.columns import SIGNED, UNSIGNED, NumberRows
from gate.evidence.point import MAX_STEP
from gate.text.records_document import Document

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
