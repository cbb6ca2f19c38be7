"""A login for a service: a name and a password, or a token."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Final, Self

# Hosts to which a login may be sent without TLS, because nobody is on the way.
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """A login; `header` is the value of `Authorization`, and `secrets` must be in no message."""

    header: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def basic(cls, user: str, password: str) -> Self:
        """Return a login with user name and password (RFC 7617)."""
        pair = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
        return cls(header=f"Basic {pair}", secrets=(password, pair))

    @classmethod
    def bearer(cls, token: str) -> Self:
        """Return a login with a token (RFC 6750).

        The caller has already refused line ends in the token, which would add headers (CWE-113).
        """
        return cls(header=f"Bearer {token}", secrets=(token,))
