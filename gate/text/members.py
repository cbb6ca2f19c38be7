"""Places and bounds of a package; apart from the records, so quick to import."""

from __future__ import annotations

from typing import Final

STATE_MEMBER: Final = "checkpoint/state.safetensors"
MODEL_FOLDER: Final = "model"
# of a package that is verified, audited or fetched
MAX_PACKAGE_BYTES: Final = 64 * 1024**3
# of one seal; a provenance of ten thousand files stays below
MAX_SEAL_BYTES: Final = 8 * 1024 * 1024
