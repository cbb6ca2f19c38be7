"""What a test of a command sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a command answered."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]
