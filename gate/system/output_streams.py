"""Standard output and standard error of this process, whatever they lead to.

A character that a stream cannot encode becomes plain letters or is escaped, and a stream that is
closed takes all. A disk that is full is a fault of that stream, and not one of the program. No line
of them is a command of GitHub's runner.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TextIO

from gate.errors import StorageError
from gate.text.untrusted_text import without_commands

STREAMS: Final = {"stdout": "standard output", "stderr": "standard error"}


# what the gate's own sentences use; anything else is of a script, and is escaped
PLAIN: Final = {
    "✅": "[ok]",
    "❌": "[fail]",
    "⚪": "[none]",
    "⛔": "[error]",
    "🔶": "[changed]",
    "→": "->",
    "←": "<-",
    "…": "...",
    "±": "+/-",
    "×": "x",
    "·": "|",
    "—": "-",
    "≠": "!=",
    "∞": "inf",
    "√": "sqrt",
    "²": "^2",
    "Σ": "sum",
    "✕": "x",
    "▲": "^",
    **dict(zip("▁▂▃▄▅▆▇█", "_.:-=+*#", strict=True)),
}
IN_PLAIN_LETTERS: Final = "repro-gate-plain"


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    """In place of what cannot be encoded: its plain letters, or its escape sequence."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    escaped = (character.encode("ascii", "backslashreplace").decode() for character in text)
    pairs = zip(text, escaped, strict=True)
    return "".join(PLAIN.get(character, plain) for character, plain in pairs), error.end


def prepare_streams() -> None:
    """Let no text fail to be printed because of its characters, or because nobody reads it."""
    codecs.register_error(IN_PLAIN_LETTERS, _plain)
    for name in STREAMS:
        stream = getattr(sys, name)
        if stream is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
            setattr(sys, name, nowhere)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=IN_PLAIN_LETTERS)


class CommandFree:
    """A text stream on which no line is a command of GitHub's runner, whoever chose its words.

    A metric, a tensor or a file may be called `::set-output …`, and a terminal's table begins a
    line wherever it breaks one. Lines go on as they end, or as they are flushed.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = self._written = ""
        self._taken = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the stream has
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Take text; its whole lines go on.

        Raises `TypeError` for bytes: by that a program tells a stream of text from one of bytes.
        """
        if not isinstance(text, str):
            message = f"write() takes text, not {type(text).__name__}"
            raise TypeError(message)
        for piece in text.splitlines(keepends=True):
            self._line += piece
            if piece.splitlines()[0] != piece:
                self._go_on()
                self._line, self._written, self._taken = "", "", 0
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Take several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Let what there is of a line go on too."""
        self._go_on()
        self._stream.flush()

    def _go_on(self) -> None:
        """What is new of the line; a blank where an end would make a command of its beginning."""
        safe = without_commands(self._line)
        begun = safe.startswith(self._written)
        rest = safe[len(self._written) :] if begun else f" {self._line[self._taken :]}"
        self._stream.write(rest)
        self._written += rest
        self._taken = len(self._line)


def free_of_commands() -> None:
    """Let nothing that this process prints be a command.

    Outside a runner too: a log that was kept, or what a container in a job prints, is read by one.
    """
    sys.stdout, sys.stderr = CommandFree(sys.stdout), CommandFree(sys.stderr)


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
                hint="Free some space, or send the output elsewhere. The files that the command "
                "wrote are complete.",
            )
    return None


def _silence(stream: io.TextIOWrapper) -> None:
    """Else its text would be tried again at the end of the process, and change the exit code."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
