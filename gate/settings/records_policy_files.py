"""What a pull request changes in the files that decide over it."""

from __future__ import annotations

from pydantic import Field

from gate.text.records_document import Document

MAX_SHOWN = 300


class PolicyChange(Document):
    """One field of one file: what the base commit has, which decides, and what was brought.

    Empty where there is nothing; both texts are the files' own and therefore untrusted.
    """

    file: str = Field(max_length=MAX_SHOWN)
    what: str = Field(max_length=MAX_SHOWN)
    before: str = Field(default="", max_length=MAX_SHOWN)
    after: str = Field(default="", max_length=MAX_SHOWN)
