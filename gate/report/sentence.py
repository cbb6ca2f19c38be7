"""A sentence on a terminal of any width: what stands in backticks is never broken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.text import Text

from gate.report.terminal_lines import filled

# what is narrower shows a line in two rows, and copies it as one
LEAST_WIDTH = 60


@dataclass(frozen=True, slots=True)
class Sentence:
    """Text behind a lead; further lines begin with `indent` blanks.

    Print it with `crop=False`: a line with a long command is wider than the terminal, which shows
    it in several rows and copies it as one line.
    """

    text: str
    style: str = ""
    lead: str = ""
    lead_style: str = ""
    indent: int = 0

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Rich's protocol of what can be printed; the width is that of the place."""
        width = max(options.max_width, LEAST_WIDTH)
        lines = filled(self.text, width, first=self.lead, rest=" " * self.indent)
        shown = Text("\n".join(lines), style=self.style, no_wrap=True, overflow="ignore")
        shown.stylize(self.lead_style, 0, len(self.lead))
        yield shown
