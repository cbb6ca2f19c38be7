"""The program's few single objects; quick to import."""

from __future__ import annotations

from typing import Final

from gate.adapters.files.files import LocalFiles
from gate.adapters.process.stop_signals import StopSignals

MAX_DOCUMENT_BYTES: Final = 16 * 1024 * 1024
FILES: Final = LocalFiles()
INTERRUPTS: Final = StopSignals()
