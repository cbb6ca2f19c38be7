"""Untrusted text made harmless for the place where it is shown: Markdown, code, a workflow command.

Whatever a verdict quotes (a metric's name, a path, the last line of an error) was chosen by the
code under test. Every function here takes such text and returns text that shows as itself: it
cannot open a link, an image, a tag, a comment or a command, mention a person, or hide.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gate.text.untrusted_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

TEXT_LIMIT = 1000
NAME_LIMIT = 120
BLOCK_LIMIT = 2000
LINE_LIMIT = 200
ZERO_WIDTH_SPACE = "\u200b"
ELLIPSIS = "…"
# behind a full stop that ends a sentence, what is cut away cuts no sentence
_SENTENCE_END = re.compile(r"[.!?] (?=\S)")
NOTHING = "—"

# the break stands before the dot of `www.`: behind it GitHub would link all the same
# GitHub Flavored Markdown links mentions, issues and bare addresses by itself, in any text.
_LINKING = re.compile(r"@|#|www(?=\.)|GH(?=-)|:(?=//)", re.IGNORECASE)
# what GitHub links when it begins the hash of a commit: seven digits are enough; decimal digits
# alone are left in peace, since they are nearly always a number
_COMMIT = re.compile(r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{7,}\b", re.IGNORECASE)
_UNLINKED_DIGITS = re.compile(r"(.{6})(?=.)")
# CommonMark, 2.4: a backslash makes these plain, and they are the ones that text is full of.
_BACKSLASHED = frozenset("`*_[]~")
# As character references, which mean the same in a sentence,
# in a table's cell and in HTML; `$` begins a formula.
_ENCODED = frozenset("\\&<>|$")
_PLAIN_CODE = re.compile(r"[^`|\\<>&$]+")
# No quotes, blanks or angle brackets, and no second scheme: such a text cannot end the link or run.
_URL = re.compile(r"https?://[A-Za-z0-9.\[\]:_-]+(?:/[A-Za-z0-9._~:/?#@!*+,;=%-]*)?")


def clean(text: str, limit: int = TEXT_LIMIT) -> str:
    """One line of visible text of at most `limit` characters, cut behind its last whole sentence.

    A first sentence that is longer than that is cut at its end.
    """
    # a bound on the work: what is cut away anyway need not be looked at
    line = " ".join(visible(text[: limit * 20]).split())
    if len(line) <= limit:
        return line
    # room for a blank and the sign that something is left out
    ends = [match.end() for match in _SENTENCE_END.finditer(line) if match.end() < limit]
    return f"{line[: ends[-1]] if ends else line[: limit - 1].rstrip()}{ELLIPSIS}"


def clean_name(text: str, limit: int = NAME_LIMIT) -> str:
    """One line like `clean`, cut in its middle: names differ at their ends."""
    line = " ".join(visible(text[: limit * 20]).split())
    if len(line) <= limit:
        return line
    head = (limit - 1) // 2
    # names of tensors and files differ at their ends, of which a plain cut would leave nothing
    return line[:head] + ELLIPSIS + line[len(line) - (limit - 1 - head) :]


def _unlinked(text: str) -> str:
    """Keep GitHub from linking people, issues and addresses; replies by e-mail are plain text."""
    return _LINKING.sub(lambda match: match.group() + ZERO_WIDTH_SPACE, text)


def _without_commits(text: str) -> str:
    """Keep GitHub from linking commits; in the code face it does not."""
    return _COMMIT.sub(
        lambda match: _UNLINKED_DIGITS.sub(rf"\1{ZERO_WIDTH_SPACE}", match.group()), text
    )


def prose(text: str, limit: int = TEXT_LIMIT) -> str:
    """Markdown that shows `text` inside a sentence or a table cell."""
    return "".join(map(_escaped, _without_commits(_unlinked(clean(text, limit)))))


def spans(text: str, limit: int = TEXT_LIMIT) -> str:
    """Markdown of a sentence of ours: what stands between two backticks is in the code face."""
    pieces = clean(text, limit).split("`")
    if len(pieces) % 2 == 0:
        return prose(text, limit)
    # at an end there is no neighbour to part from; all else that cannot be seen is there to stay:
    # it keeps a last @ from mentioning the name behind it
    ends = (0, len(pieces) - 1)
    return "".join(
        code(piece, limit) if number % 2 and piece.strip() else _kept(piece, limit)
        for number, piece in enumerate(pieces)
        if piece or number not in ends
    )


def _kept(piece: str, limit: int) -> str:
    """Prose with the blanks at its ends, which part it from its neighbours."""
    if not piece:
        # two code spans side by side would be one
        return ZERO_WIDTH_SPACE
    before = " " * piece[:1].isspace()
    after = " " * (piece[-1:].isspace() and bool(piece.strip()))
    return f"{before}{prose(piece, limit)}{after}"


def _escaped(character: str) -> str:
    if character in _BACKSLASHED:
        return "\\" + character
    return f"&#{ord(character)};" if character in _ENCODED else character


def code(text: str, limit: int = NAME_LIMIT) -> str:
    """Markdown that shows `text` in the code face, also inside a table cell.

    A code span cannot hold every character (a backtick, a pipe in a table), so the rare text
    with such a one becomes an HTML element with character references.
    """
    # in the code face too: in e-mails and feeds it is plain text
    line = _unlinked(clean_name(text, limit))
    if not line:
        return NOTHING
    # a code span knows no escape (CommonMark, 6.1), so a character that would end it needs HTML
    if _PLAIN_CODE.fullmatch(line):
        return f"`{line}`"
    return f"<code>{''.join(map(_encoded, line))}</code>"


def _encoded(character: str) -> str:
    plain = character.isalnum() or character == " " or not character.isascii()
    return character if plain else f"&#{ord(character)};"


def command_lines(text: str, limit: int = BLOCK_LIMIT) -> tuple[str, ...]:
    """The lines of a command to copy: visible characters only, nothing inserted.

    None of a command that is too long: half a command does something else.
    """
    if len(text) > limit:
        return ()
    lines = (visible(line).rstrip() for line in text.splitlines())
    return tuple(line for line in lines if line)


def code_block(text: str, limit: int = BLOCK_LIMIT, language: str = "sh") -> str:
    """A fenced block that shows `text` exactly, so that it can be copied; else nothing."""
    return fenced(command_lines(text, limit), language)


def output_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Lines that a training printed or wrote, with their indentation, each cut at its end."""
    shown = (visible(line[: LINE_LIMIT * 20]).rstrip() for line in lines)
    return tuple(
        line if len(line) <= LINE_LIMIT else line[: LINE_LIMIT - 1] + ELLIPSIS for line in shown
    )


def unlinked_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Such lines for Markdown: in e-mails and feeds a block is plain text, and would mention."""
    return tuple(map(_unlinked_line, lines))


def _unlinked_line(line: str) -> str:
    # the marks of a place in a diff, by which GitHub knows it
    if line.startswith("@@ ") and line.endswith(" @@"):
        return f"@@ {_unlinked(line[3:-3])} @@"
    return _unlinked(line)


def fenced(lines: tuple[str, ...], language: str = "") -> str:
    """Visible lines as a fenced block that none of them can end; nothing without a line."""
    if not any(line.strip() for line in lines):
        return ""
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    # a block ends at the first run of backticks that is as long (CommonMark, 4.5)
    fence = "`" * max(3, longest + 1)
    return "\n".join((f"{fence}{language}", *lines, fence))


def safe_url(text: str) -> str:
    """The address, or nothing when it is not a plain http(s) one."""
    return text if _URL.fullmatch(text) else ""


def command_data(text: str) -> str:
    """Text as the message of a workflow command."""
    # percent first: otherwise what the other two write would be escaped again
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def command_property(text: str) -> str:
    """Text as a property of a workflow command."""
    # a comma begins the next property, a double colon the message
    return command_data(text).replace(":", "%3A").replace(",", "%2C")
