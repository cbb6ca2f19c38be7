"""What `repro-gate baseline show` tells: every entry, and which commits changed its file."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from gate.baseline.entry import MAX_ENTRIES, BaselineEntry
from gate.text.records_document import Document

SHOWN_SCHEMA: Final = "repro-gate.baseline-shown/1"
MAX_COMMITS: Final = 5


class EntryCommit(Document):
    """A commit that changed an entry's file.

    `reason` is the one that the entry gave then; None where it could not be read, such as in a
    commit that removed the file.
    """

    commit: str = Field(max_length=64)
    committed_at: str = Field(max_length=40)
    author: str = Field(max_length=100)
    reason: str | None = Field(default=None, max_length=500)


class ShownEntry(Document):
    """An entry, the name of its file, its age in days, and the newest commits of the file first."""

    file: str
    age_days: int
    stale: bool
    history: Annotated[tuple[EntryCommit, ...], Field(max_length=MAX_COMMITS)] = ()
    entry: BaselineEntry


class ShownBaseline(Document):
    """The document of `repro-gate baseline show --json`; entries in the order of their files."""

    schema_version: Literal["repro-gate.baseline-shown/1"] = SHOWN_SCHEMA
    entries: Annotated[tuple[ShownEntry, ...], Field(max_length=MAX_ENTRIES)]
