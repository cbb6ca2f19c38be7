"""The common root of every record that is written to or read from a file."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _iso_time(value: str) -> str:
    """Refuse a time without its offset: two clocks could not be compared."""
    message = "must be an ISO 8601 time with an offset, for example 2026-01-31T12:00:00+00:00"
    try:
        time = datetime.fromisoformat(value)
        # Python takes any sign between day and hour, a line's end too
        usable = time.tzinfo is not None and value.isprintable()
        # the first and the last hours of the calendar have no UTC
        if usable:
            time.astimezone(UTC)
    except (ValueError, OverflowError):
        usable = False
    if not usable:
        raise ValueError(message)
    return value


Timestamp = Annotated[str, Field(max_length=40), AfterValidator(_iso_time)]


class Document(BaseModel):
    """A frozen record with no unknown keys and no silent conversions."""

    # defer_build: a call uses few of these, and building all takes a tenth of a second
    # strict: no text becomes a number; forbid: a key
    # that we pass over could be one that others obey
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)
