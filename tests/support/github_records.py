"""The records of the fake GitHub server."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class StoredComment:
    """A comment on the server."""

    comment_id: int
    number: int
    author: str | None
    body: str
    updated_at: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class SeenRequest:
    """A request that the server received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
