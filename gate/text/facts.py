"""What can be written as a list of records of JSON without being one."""

from __future__ import annotations

from abc import abstractmethod

# SELF from X import Facts
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

Row = TypeVar("Row")


# Apart from `rows.py`, which needs pydantic: whoever only writes JSON imports nothing slow.
class Facts(Sequence[Row]):
    """Records that never change, of which no more than one has to be in memory."""

    __slots__ = ()

    @abstractmethod
    def facts(self) -> Iterator[dict[str, Any] | str]:
        """Each record as JSON has it, or as a line of JSON whose keys are sorted."""

    @abstractmethod
    def plain(self) -> Iterator[dict[str, Any]]:
        """Each record as JSON has it."""


# between the gate and its own reading process: what is written in this context, it alone reads
PACKED: Final = "packed"
