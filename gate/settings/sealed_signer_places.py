"""Where a signing key is: in a file, in a token, in a vault, or behind a program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePlace:
    """A private key in PEM."""

    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandPlace:
    """A program and its first arguments; it is asked for the public key and for signatures."""

    argv: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class VaultPlace:
    """A key of a transit engine; without a version it is the latest one."""

    mount: str
    key: str
    version: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenPlace:
    """A key in a PKCS#11 token, by RFC 7512; what is empty does not narrow the search.

    `module` is the library of the token's maker, `pin_source` a file with the PIN.
    """

    module: Path
    token: str
    serial: str
    key_label: str
    key_id: bytes
    pin_source: Path | None


SignerPlace = FilePlace | CommandPlace | VaultPlace | TokenPlace
