"""A login at a service: a name and a password, or a token."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Final, Self

# to whom it may be shown in the clear: nobody is on the way
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """`header` is the value of `Authorization`; no message may hold one of `secrets`."""

    header: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def basic(cls, user: str, password: str) -> Self:
        """RFC 7617."""
        pair = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
        return cls(header=f"Basic {pair}", secrets=(password, pair))

    @classmethod
    def bearer(cls, token: str) -> Self:
        """RFC 6750; the caller has refused line ends in the token (CWE-113)."""
        return cls(header=f"Bearer {token}", secrets=(token,))
