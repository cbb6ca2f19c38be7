"""The objects that exist once per process: the file system and the signal handler.

Every verb imports this module, so keep it quick to import.
"""

from __future__ import annotations

from typing import Final

from gate.isolation.stop_signals import StopSignals
from gate.system.files.files import LocalFiles

MAX_DOCUMENT_BYTES: Final = 16 * 1024 * 1024
FILES: Final = LocalFiles()
INTERRUPTS: Final = StopSignals()
