"""The program's few single objects; quick to import."""

from __future__ import annotations

from typing import Final

from gate.isolation.stop_signals import StopSignals
from gate.system.files.files import LocalFiles

MAX_DOCUMENT_BYTES: Final = 16 * 1024 * 1024
FILES: Final = LocalFiles()
INTERRUPTS: Final = StopSignals()
