"""What `repro-gate.yml` may say about how runs are made."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from gate.text.document import MachinePath
from gate.text.records_document import Document

MAX_LANES: Final = 16


class RunsSettings(Document):
    """How many runs may go at the same time, and which need not be made again."""

    parallel: Literal["auto", "never"] | Annotated[int, Field(ge=2, le=MAX_LANES)] = Field(
        default="auto",
        description="Strict runs beside each other, on CPU cores of their own: `auto` takes as "
        "many as cores and memory allow, `never` makes one run after the other, and a number is "
        "the most at a time. Default runs that are timed always run alone.",
    )
    cache: MachinePath | None = Field(
        default=None,
        description="Folder of the machine, by its absolute path, that keeps runs of base commits "
        "for later pull requests. It is made if only it is missing, and must hold nothing else; "
        "the gate's own account must own it, and no other may write in it. Used with isolation "
        "`uid` or `container`. Without it, every call makes its own.",
    )
