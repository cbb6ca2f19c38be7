"""Where a verdict is published, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """Whether the comment is there, and if not, why."""

    comment_url: str = ""
    action: str = ""
    reason_not_posted: str = ""
