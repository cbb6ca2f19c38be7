"""Make this process's standard output and error robust, wherever they lead.

Characters that a stream cannot encode become plain letters or are escaped, and a closed stream
accepts everything. A full disk is reported as a fault of the stream, not as a crash of the program.
No printed line can be a workflow command of GitHub's runner.
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


# Signs in the gate's own sentences. Any other character comes from a script and is escaped.
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
    """Replace what cannot be encoded by plain letters, or by its escape sequence."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    escaped = (character.encode("ascii", "backslashreplace").decode() for character in text)
    pairs = zip(text, escaped, strict=True)
    return "".join(PLAIN.get(character, plain) for character, plain in pairs), error.end


def prepare_streams() -> None:
    """Make sure that printing never fails because of a character or a closed stream."""
    codecs.register_error(IN_PLAIN_LETTERS, _plain)
    for name in STREAMS:
        stream = getattr(sys, name)
        if stream is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
            setattr(sys, name, nowhere)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=IN_PLAIN_LETTERS)


class CommandFree:
    """A text stream on which no line is a command of GitHub's runner.

    A metric, a tensor or a file may be named `::set-output …`, and a terminal's table may start a
    line anywhere inside a text. A line is passed on when it ends or is flushed.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = self._written = ""
        self._taken = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the stream has
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Accept text and pass on its complete lines.

        Raises `TypeError` for bytes, because programs use that to tell text streams from binary
        ones.
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
        """Accept several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Pass on the unfinished line too."""
        self._go_on()
        self._stream.flush()

    def _go_on(self) -> None:
        """Pass on the new part of the line.

        If the part that is already written would become a command, a blank is inserted.
        """
        safe = without_commands(self._line)
        begun = safe.startswith(self._written)
        rest = safe[len(self._written) :] if begun else f" {self._line[self._taken :]}"
        self._stream.write(rest)
        self._written += rest
        self._taken = len(self._line)


def free_of_commands() -> None:
    """Make sure that nothing which this process prints is a command.

    Outside a runner too: a runner may print a kept log later, or the output of a container.
    """
    sys.stdout, sys.stderr = CommandFree(sys.stdout), CommandFree(sys.stderr)


def unwritten(*, after_fault: bool = False) -> StorageError | None:
    """Flush both streams; return the fault of the first that failed, and silence that stream."""
    for name, shown in STREAMS.items():
        stream = getattr(sys, name)
        try:
            if after_fault:
                # An unbuffered stream does not remember what it failed to write, so try once more.
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
    """Point the stream to nowhere.

    Otherwise Python writes the rest of its buffer at exit, and a second failure changes the exit
    code.
    """
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
