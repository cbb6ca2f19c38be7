"""What the server that plays GitHub keeps."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class StoredComment:
    """A comment as the server keeps it."""

    comment_id: int
    number: int
    author: str | None
    body: str
    updated_at: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class SeenRequest:
    """A request that came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
