"""Where a package has the training states; apart from the records, so quick to import."""

from __future__ import annotations

from typing import Final

STATE_MEMBER: Final = "checkpoint/state.safetensors"
MODEL_FOLDER: Final = "model"
