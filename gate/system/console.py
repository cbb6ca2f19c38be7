"""What a person sees while the gate works: on stderr, so that stdout stays for results.

Text is made safe line by line (`safe_text`); this is the second lock on the same door. The runner
reads a container's two streams one beside the other, so guard and guarded text share one stream.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import Progress as LiveProgress
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from gate.text.untrusted_text import safe_block, safe_line

Reached = Callable[[str], None]
LEAST_WIDTH = 40


class Progress(Protocol):
    """Where a person sees that work goes on."""

    def step(self, text: str) -> None:
        """Say that something begins."""
        ...

    def output(self, line: bytes) -> None:
        """Show one line of the training's output; the line is untrusted."""
        ...

    def running(self, text: str) -> AbstractContextManager[Reached | None]:
        """Show `text` and the time it takes while the body runs.

        What it gives takes words on how far that has come, which are shown in place of `text`;
        None where nobody would see them.
        """
        ...


def wide_enough(console: Console) -> Console:
    """The same console; a width of none, as of a terminal without a size, would lose all text."""
    console.width = max(console.width, LEAST_WIDTH)
    return console


class ConsoleProgress:
    """The port `Progress`: a live spinner on a terminal, plain lines in a log or a pipe.

    `verbose` shows the training's output too. No line carries a time of day: a CI log adds its own.
    """

    def __init__(self, stream: TextIO, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._console = wide_enough(
            Console(
                file=stream,
                force_terminal=stream.isatty(),
                # brackets in a training's text would be taken
                # as style, and could hide what stands in them
                markup=False,
                emoji=False,
                highlight=False,
                soft_wrap=True,
            )
        )

    def step(self, text: str) -> None:
        """Say that something begins."""
        self._print(safe_line(text), style="bold")

    def output(self, line: bytes) -> None:
        """Show one line of the training's output, made safe; nothing unless verbose."""
        if self._verbose:
            self._print(f"  | {safe_line(line)}", style="dim")

    @contextmanager
    def running(self, text: str) -> Iterator[Reached | None]:
        """Show `text` and the time it takes while the body runs, then how long it took."""
        shown = safe_line(text)
        started = time.monotonic()
        ending = "stopped after"
        try:
            if self._console.is_terminal:
                with self._spinner(shown) as reached:
                    yield reached
            else:
                self._print(f"{shown} ...")
                yield None
            ending = "ended after"
        finally:
            self._print(f"{shown}: {ending} {time.monotonic() - started:.1f} s")

    @contextmanager
    def _spinner(self, text: str) -> Iterator[Reached]:
        """Characters of ASCII only: the log's encoding is anybody's guess."""
        columns = (
            SpinnerColumn("line"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        with LiveProgress(*columns, console=self._console, transient=True) as live:
            task = live.add_task(text, total=None)

            def reached(words: str) -> None:
                # alone: a line that is wider than the terminal would lose its end
                live.update(task, description=safe_line(words) or text)

            yield reached

    def _print(self, text: str, *, style: str = "") -> None:
        self._console.print(Text(text, style=style))


class QuietProgress:
    """The port `Progress` where only the result is wanted."""

    def step(self, text: str) -> None:
        """Say nothing."""

    def output(self, line: bytes) -> None:
        """Show nothing."""

    @contextmanager
    def running(self, text: str) -> Iterator[None]:
        """Run the body, no more."""
        del text
        yield None


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
    def running(self, text: str) -> Iterator[Reached | None]:
        """Show `text` and how long the body took; no line in between can be a command."""
        self._lines_left = MAX_LINES
        stop, resume = _guard()
        self._write(stop)
        try:
            with self._console.running(text) as reached:
                yield reached
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
