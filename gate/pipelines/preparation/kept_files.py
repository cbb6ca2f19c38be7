"""What a call keeps of its runs beside the documents of the evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gate.codec.digests import sha256_hex
from gate.evidence.capture import CapturedFile
from gate.ports import Files
from gate.records.observed.evidence import KeptFile

OUTPUT_FILE: Final = "output.txt"


class KeptFiles:
    """Outputs and captured files of the runs, under the digests that they had when read."""

    def __init__(self, folder: Path, files: Files) -> None:
        """`folder` is that of the evidence."""
        self._folder = folder
        self._adapter = files
        self.files: list[KeptFile] = []

    def keep(self, label: str, output: bytes, taken: tuple[CapturedFile, ...]) -> None:
        """What a run printed, and what was captured of it."""
        folder = self._folder / label
        self._adapter.fresh_folder(folder)
        self._adapter.write_bytes(folder / OUTPUT_FILE, output)
        digests = {OUTPUT_FILE: sha256_hex(output)}
        for captured in taken:
            # moved and not read again: these are the bytes that were hashed
            self._adapter.move_file(captured.path, folder / captured.kept_name)
            digests[captured.kept_name] = captured.sha256
        self.files += [
            KeptFile(name=f"{label}/{name}", sha256=digest) for name, digest in digests.items()
        ]

    def file(self, name: str) -> tuple[Path, str]:
        """Where a kept file lies, and the SHA-256 that it had when it was kept."""
        kept = next(kept for kept in self.files if kept.name == name)
        return self._folder / name, kept.sha256
