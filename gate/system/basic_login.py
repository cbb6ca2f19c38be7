"""A name and a secret as the header that a service takes (RFC 7617)."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """A name and its secret."""

    user: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of the header, RFC 7617."""
        pair = f"{self.user}:{self.password}".encode()
        return f"Basic {base64.b64encode(pair).decode('ascii')}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no message may hold."""
        return (self.password, self.basic.removeprefix("Basic "))
