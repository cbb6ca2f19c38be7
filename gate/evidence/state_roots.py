"""The roots of a training state by where its bytes lie in the package: what a seal names."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from gate.text.records_document import Document

MAX_MEMBER = 256
Root = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class StateName(StrEnum):
    """Which state: what the harness captured on rank 0, or what the script saved itself."""

    CAPTURED = "captured"
    SAVED = "saved"


class StateRoots(Document):
    """The digest of a state, as `repro-gate digest` gives it for the file or folder at `member`.

    `member` is its place in the package, empty where it is not packed. `parts` holds the roots of
    model, optimizer, random state and the rest, `root` is over them.
    """

    name: StateName
    member: str = Field(default="", max_length=MAX_MEMBER)
    algorithm: str = Field(max_length=40)
    root: Root
    parts: Annotated[dict[Annotated[str, Field(max_length=40)], Root], Field(max_length=10)]


# one of each at most
States = Annotated[tuple[StateRoots, ...], Field(max_length=len(StateName))]
