"""Standard output and standard error of this process, whatever they lead to.

A character that a stream cannot encode is escaped, and a stream that is closed takes all. A disk
that is full is a fault of that stream, and not one of the program.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from gate.errors import StorageError

STREAMS: Final = {"stdout": "standard output", "stderr": "standard error"}


def prepare_streams() -> None:
    """Let no text fail to be printed because of its characters, or because nobody reads it."""
    for name in STREAMS:
        stream = getattr(sys, name)
        if stream is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
            setattr(sys, name, nowhere)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def unwritten(*, after_fault: bool = False) -> StorageError | None:
    """The fault of the first stream that did not take all of its text; it says nothing more."""
    for name, shown in STREAMS.items():
        stream = getattr(sys, name)
        try:
            if after_fault:
                # an unbuffered stream has forgotten what it could not write
                stream.write("\n")
            stream.flush()
        except OSError as error:
            _silence(stream)
            return StorageError(
                f"{shown} cannot be written: {error.strerror}",
                hint="Free space, or let the output go elsewhere. Files that the command has "
                "written are whole.",
            )
    return None


def _silence(stream: io.TextIOWrapper) -> None:
    """Else its text would be tried again at the end of the process, and change the exit code."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
