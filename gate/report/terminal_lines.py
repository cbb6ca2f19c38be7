"""Sentences and commands for a terminal: a command is never broken by a line end.

The lines are printed unwrapped. A terminal that is narrower shows a line in several rows and still
copies it as one.
"""

from __future__ import annotations

import re
import textwrap

from gate.report.escape import clean, command_lines

COMMAND_WIDTH = 76
SHELL_QUOTING = frozenset("'\"\\`$#")
# what stands in backticks is one word: it may be a command
WORDS = re.compile(r"(?:`[^`]*`|\S)+")


def step_lines(text: str, *commands: str) -> list[str]:
    """A sentence as an entry of a list, and its commands below it, each to be copied whole."""
    lines = filled(clean(text), COMMAND_WIDTH, first="- ", rest="  ")
    for command in commands:
        lines += shell_lines(command)
    return lines


def shell_lines(command: str) -> list[str]:
    """The command in lines that fit and can be copied together.

    A command with quotes stays as it is: a line end inside them would change it.
    """
    lines: list[str] = []
    for line in command_lines(command):
        # inside quotes a backslash at a line's end is part of the word or vanishes with it
        if len(line) <= COMMAND_WIDTH or SHELL_QUOTING & set(line):
            lines.append(f"  {line}")
            continue
        pieces = textwrap.wrap(
            line, COMMAND_WIDTH - 4, break_long_words=False, break_on_hyphens=False
        )
        lines += [f"  {piece} \\" for piece in pieces[:-1]] + [f"  {pieces[-1]}"]
    return lines


def filled(text: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    """One line of text in lines of `width` characters; a longer word has a line of its own.

    `first` begins the first line, `rest` all others.
    """
    lines, line = [], first
    for word in WORDS.findall(text):
        begun = line not in (first, rest)
        if begun and len(line) + 1 + len(word) > width:
            lines.append(line)
            line, begun = rest, False
        line += f" {word}" if begun else word
    return [*lines, line]
