"""The log of a job: what quotes a training stands where the runner takes no commands.

Text is made safe line by line (`safe_text`); this is the second lock on the same door. The runner
reads a container's two streams one beside the other, so guard and guarded text share one stream.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from gate.system.console import ConsoleProgress
from gate.text.untrusted_text import safe_block

MAX_LINES = 2000
MORE = b"[... not shown from here on: evidence/*/output.txt has what was kept ...]"


class JobLog:
    """The port `Progress` for a runner; `verbose` shows the training's output, so many lines."""

    def __init__(self, stream: TextIO, *, verbose: bool = False) -> None:
        self._stream = stream
        self._console = ConsoleProgress(stream, verbose=verbose)
        self._lines_left = MAX_LINES

    def step(self, text: str) -> None:
        """Say that something begins."""
        self._console.step(text)

    def output(self, line: bytes) -> None:
        """Show one line of the training's output, made safe; from some line on nothing more."""
        if self._lines_left > 0:
            self._lines_left -= 1
            self._console.output(line if self._lines_left else MORE)

    @contextmanager
    def running(self, text: str) -> Iterator[None]:
        """Show `text` and how long the body took; no line in between can be a command."""
        self._lines_left = MAX_LINES
        stop, resume = _guard()
        self._write(stop)
        try:
            with self._console.running(text):
                yield
        finally:
            self._write(resume)

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()


def quoted(text: str) -> str:
    """A block of text that may quote a training, each line made safe, between the guards."""
    stop, resume = _guard()
    return f"{stop}\n{safe_block(text)}\n{resume}"


def _guard() -> tuple[str, str]:
    """The commands that end and begin the runner's obedience; who cannot guess the token cannot."""
    # a new one each time: a fixed one would stand in this source, where a training can read it
    token = secrets.token_hex(16)
    return f"::stop-commands::{token}", f"::{token}::"
