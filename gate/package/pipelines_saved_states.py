"""Opens what `repro-gate digest` and `repro-gate diff` are pointed at: states, and packages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gate.checkpoint.formats.file_formats import UnknownContent
from gate.checkpoint.formats.formats import open_state
from gate.checkpoint.leaves import StateContent
from gate.package.saved_states import MAX_BYTES, is_package, open_package
from gate.text.untrusted_text import safe_line

if TYPE_CHECKING:
    from gate.system.files.port import Files


@contextmanager
def open_saved_state(files: Files, path: Path, unknown: UnknownContent) -> Iterator[StateContent]:
    """The leaves of a saved state, or of the captured state inside a package of the gate.

    `unknown` says what happens to files whose content is not understood.
    Raises `EvidenceError` saying what is wrong with it.
    """
    if is_package(files, path):
        with open_package(files, path) as package:
            yield package.captured()
        return
    shown = safe_line(str(path))
    with open_state(files, path, shown, max_bytes=MAX_BYTES, unknown=unknown) as content:
        yield content
