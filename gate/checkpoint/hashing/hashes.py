"""The hashes that a state may be digested with, by name; a digest always carries the name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from gate.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined] # of the checker's stubs only

DEFAULT_HASH = "sha256"
HASH_NAMES = (DEFAULT_HASH, "blake3")


class Hasher(Protocol):
    """What `hashlib` and `blake3` have in common; both give 32 bytes."""

    def update(self, data: Buffer, /) -> object:
        """Take more bytes; the interpreter lock is released for large ones."""
        ...

    def digest(self) -> bytes:
        """The 32 bytes."""
        ...


NewHasher = Callable[["Buffer"], Hasher]


def named_hash(name: str) -> NewHasher:
    """The constructor of a hash; `SettingsError` for one that is unknown or not installed."""
    if name == DEFAULT_HASH:
        return hashlib.sha256
    if name not in HASH_NAMES:
        raise SettingsError(
            f"there is no hash named {name[:40]!r} here",
            hint=f"Take one of {', '.join(HASH_NAMES)}.",
        )
    # not an import to try: a package that is there and broken has to say so itself
    if find_spec(name) is None:
        raise SettingsError(
            f"the package {name} is not installed",
            hint=f"Install it beside the gate: pip install {name}",
        )
    made: NewHasher = import_module(name).blake3
    return made
