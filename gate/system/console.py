"""What a person sees while the gate works: on stderr, so that stdout stays for results."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import Progress as LiveProgress
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from gate.text.untrusted_text import safe_line


class ConsoleProgress:
    """The port `Progress`: a live spinner on a terminal, plain lines in a log or a pipe.

    `verbose` shows the training's output too. No line carries a time of day: a CI log adds its own.
    """

    def __init__(self, stream: TextIO, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._console = Console(
            file=stream,
            force_terminal=stream.isatty(),
            # brackets in a training's text would be taken
            # as style, and could hide what stands in them
            markup=False,
            emoji=False,
            highlight=False,
            soft_wrap=True,
        )

    def step(self, text: str) -> None:
        """Say that something begins."""
        self._print(safe_line(text), style="bold")

    def output(self, line: bytes) -> None:
        """Show one line of the training's output, made safe; nothing unless verbose."""
        if self._verbose:
            self._print(f"  | {safe_line(line)}", style="dim")

    @contextmanager
    def running(self, text: str) -> Iterator[None]:
        """Show `text` and the time it takes while the body runs, then how long it took."""
        shown = safe_line(text)
        started = time.monotonic()
        ending = "stopped after"
        try:
            if self._console.is_terminal:
                with self._spinner(shown):
                    yield
            else:
                self._print(f"{shown} ...")
                yield
            ending = "ended after"
        finally:
            self._print(f"{shown}: {ending} {time.monotonic() - started:.1f} s")

    @contextmanager
    def _spinner(self, text: str) -> Iterator[None]:
        """Characters of ASCII only: the log's encoding is anybody's guess."""
        columns = (
            SpinnerColumn("line"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        with LiveProgress(*columns, console=self._console, transient=True) as live:
            live.add_task(text, total=None)
            yield

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
        yield
