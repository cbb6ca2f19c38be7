"""A folder inside an archive whose files are not compressed: each is read in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gate.checkpoint.file_part import file_part
from gate.checkpoint.untrusted_files import UntrustedFile
from gate.checkpoint.untrusted_folder import UntrustedFolder
from gate.text.untrusted_text import short_text


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchivedFolder(UntrustedFolder):
    """The files of `whole` below `prefix`, which ends with a slash or is empty.

    `places` has start and size in bytes of each file by its name in the archive; the names are
    plain and relative.
    """

    whole: UntrustedFile
    places: Mapping[str, tuple[int, int]]
    prefix: str

    def names(self) -> tuple[str, ...]:
        """As in `UntrustedFolder`."""
        below = (name.removeprefix(self.prefix) for name in self._below(self.prefix))
        return tuple(sorted({name.partition("/")[0] for name in below}))

    def is_folder(self, name: str) -> bool:
        """As in `UntrustedFolder`."""
        return any(self._below(f"{self.prefix}{name}/"))

    def folder(self, name: str) -> UntrustedFolder:
        """As in `UntrustedFolder`."""
        return replace(self, prefix=f"{self.prefix}{name}/", shown=f"{self.shown}/{name}")

    def open(self, name: str, *, shown: str = "") -> UntrustedFile:
        """As in `UntrustedFolder`; the archive stays open, so there is no limit to their number."""
        place = self.places.get(f"{self.prefix}{name}")
        if place is None or "/" in name:
            raise self.fault(f"{short_text(name)} is named, and no such file is there")
        return file_part(self.whole, *place, shown or f"{self.shown}/{name}")

    def _below(self, prefix: str) -> tuple[str, ...]:
        return tuple(name for name in self.places if name.startswith(prefix))
