"""What a person sees while the gate works: on stderr, so that stdout stays free for results.

The training's text is untrusted. Each line is made safe (`safe_text`), and on a runner the output
is also put between guard lines that stop workflow commands. The runner interleaves a container's
two streams, so the guards must be in the same stream as the text that they guard.
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
    """Shows a person what the gate is doing."""

    def step(self, text: str) -> None:
        """Show that something begins."""
        ...

    def output(self, line: bytes) -> None:
        """Show one line of the training's output; the line is untrusted."""
        ...

    def running(self, text: str) -> AbstractContextManager[Reached | None]:
        """Show `text` and the elapsed time while the body runs.

        The context gives a function that replaces the text by words about the progress, or None if
        nobody would see them.
        """
        ...


def wide_enough(console: Console) -> Console:
    """Give a console a least width: a terminal without a size would lose all text."""
    console.width = max(console.width, LEAST_WIDTH)
    return console


class ConsoleProgress:
    """A `Progress` with a live spinner on a terminal, and plain lines in a log or a pipe.

    `verbose` shows the training's output too. Lines carry no time of day, because a CI log adds it.
    """

    def __init__(self, stream: TextIO, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._console = wide_enough(
            Console(
                file=stream,
                force_terminal=stream.isatty(),
                # With markup, brackets in a training's text would be taken as style and could
                # hide text.
                markup=False,
                emoji=False,
                highlight=False,
                soft_wrap=True,
            )
        )

    def step(self, text: str) -> None:
        """Show that something begins."""
        self._print(safe_line(text), style="bold")

    def output(self, line: bytes) -> None:
        """Show one line of the training's output, made safe; only if verbose."""
        if self._verbose:
            self._print(f"  | {safe_line(line)}", style="dim")

    @contextmanager
    def running(self, text: str) -> Iterator[Reached | None]:
        """Show `text` and the elapsed time while the body runs, then how long it took."""
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
        """Show a spinner of ASCII characters only, because a terminal's encoding is unknown."""
        columns = (
            SpinnerColumn("line"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        with LiveProgress(*columns, console=self._console, transient=True) as live:
            task = live.add_task(text, total=None)

            def reached(words: str) -> None:
                # The words replace the text: a line wider than the terminal would lose its end.
                live.update(task, description=safe_line(words) or text)

            yield reached

    def _print(self, text: str, *, style: str = "") -> None:
        self._console.print(Text(text, style=style))


class QuietProgress:
    """A `Progress` that shows nothing, for calls where only the result matters."""

    def step(self, text: str) -> None:
        """Show nothing."""

    def output(self, line: bytes) -> None:
        """Show nothing."""

    @contextmanager
    def running(self, text: str) -> Iterator[None]:
        """Run the body and show nothing."""
        del text
        yield None


MAX_LINES = 2000
MORE = b"[... not shown from here on: evidence/*/output.txt has what was kept ...]"


class JobLog:
    """A `Progress` for a runner; `verbose` shows up to `MAX_LINES` of each run's output."""

    def __init__(self, stream: TextIO, *, verbose: bool = False) -> None:
        self._stream = stream
        self._console = ConsoleProgress(stream, verbose=verbose)
        self._lines_left = MAX_LINES

    def step(self, text: str) -> None:
        """Show that something begins."""
        self._console.step(text)

    def output(self, line: bytes) -> None:
        """Show one line of the training's output, made safe, until `MAX_LINES` is reached."""
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
    """Return text that may quote a training, made safe line by line, between guard lines."""
    stop, resume = _guard()
    return f"{stop}\n{safe_block(text)}\n{resume}"


def _guard() -> tuple[str, str]:
    """Return the workflow commands that stop and resume the runner's obedience to commands.

    Whoever does not know the token cannot resume it.
    """
    # A new token each time: a training could read a fixed one in this source.
    token = secrets.token_hex(16)
    return f"::stop-commands::{token}", f"::{token}::"
