"""Make untrusted text harmless where it is shown: in Markdown, in code, in a workflow command.

Everything that a verdict quotes (a metric's name, a path, an error's last line) was chosen by the
code under test. Each function here returns text that is displayed literally. It cannot open a link,
an image, a tag, a comment or a command, mention a person, or be invisible.
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
# A sentence ends before the blank, so a cut after it leaves a whole sentence.
_SENTENCE_END = re.compile(r"[.!?] (?=\S)")
NOTHING = "—"

# GitHub Flavored Markdown links mentions, issues and bare addresses in any text. The zero-width
# space goes before the dot of `www.`, because after it GitHub would still link.
_LINKING = re.compile(r"@|#|www(?=\.)|GH(?=-)|:(?=//)", re.IGNORECASE)
# GitHub links the beginning of a commit's hash from seven digits on. Decimal digits alone are left
# unchanged, because they are nearly always a number.
_COMMIT = re.compile(r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{7,}\b", re.IGNORECASE)
_UNLINKED_DIGITS = re.compile(r"(.{6})(?=.)")
# CommonMark, 2.4: a backslash makes these literal. They are the ones that text often contains.
_BACKSLASHED = frozenset("`*_[]~")
# Written as character references, which mean the same in a sentence, in a table's cell and in HTML.
# `$` would begin a formula.
_ENCODED = frozenset("\\&<>|$")
_PLAIN_CODE = re.compile(r"[^`|\\<>&$]+")
# No quotes, blanks or angle brackets, and no second scheme, so the text cannot end the link or run
# a script.
_URL = re.compile(r"https?://[A-Za-z0-9.\[\]:_-]+(?:/[A-Za-z0-9._~:/?#@!*+,;=%-]*)?")


def clean(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return one line of visible text of at most `limit` characters, cut after a whole sentence.

    If even the first sentence is longer, it is cut at the limit.
    """
    # Limits the work: the rest would be cut anyway.
    line = " ".join(visible(text[: limit * 20]).split())
    if len(line) <= limit:
        return line
    # `<`: leave room for the sign that something is left out
    ends = [match.end() for match in _SENTENCE_END.finditer(line) if match.end() < limit]
    return f"{line[: ends[-1]] if ends else line[: limit - 1].rstrip()}{ELLIPSIS}"


def clean_name(text: str, limit: int = NAME_LIMIT) -> str:
    """Return one line like `clean`, but cut in the middle."""
    line = " ".join(visible(text[: limit * 20]).split())
    if len(line) <= limit:
        return line
    head = (limit - 1) // 2
    # Names of tensors and files differ at their ends, which a cut at the end would remove.
    return line[:head] + ELLIPSIS + line[len(line) - (limit - 1 - head) :]


def _unlinked(text: str) -> str:
    """Keep GitHub from linking people, issues and addresses; in e-mails even code is plain text."""
    return _LINKING.sub(lambda match: match.group() + ZERO_WIDTH_SPACE, text)


def _without_commits(text: str) -> str:
    """Keep GitHub from linking commits, which it does in text but not in code."""
    return _COMMIT.sub(
        lambda match: _UNLINKED_DIGITS.sub(rf"\1{ZERO_WIDTH_SPACE}", match.group()), text
    )


def prose(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return Markdown that shows `text` inside a sentence or a table cell."""
    return "".join(map(_escaped, _without_commits(_unlinked(clean(text, limit)))))


def spans(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return Markdown for one of the gate's own sentences; text in backticks becomes code."""
    pieces = clean(text, limit).split("`")
    if len(pieces) % 2 == 0:
        return prose(text, limit)
    # An empty piece at an end has no neighbour to be separated from. An empty piece elsewhere
    # stays: its zero-width space keeps a preceding @ from mentioning the name after it.
    ends = (0, len(pieces) - 1)
    return "".join(
        code(piece, limit) if number % 2 and piece.strip() else _kept(piece, limit)
        for number, piece in enumerate(pieces)
        if piece or number not in ends
    )


def _kept(piece: str, limit: int) -> str:
    """Return prose with the blanks at its ends, which separate it from its neighbours."""
    if not piece:
        # two adjacent code spans would become one
        return ZERO_WIDTH_SPACE
    before = " " * piece[:1].isspace()
    after = " " * (piece[-1:].isspace() and bool(piece.strip()))
    return f"{before}{prose(piece, limit)}{after}"


def _escaped(character: str) -> str:
    if character in _BACKSLASHED:
        return "\\" + character
    return f"&#{ord(character)};" if character in _ENCODED else character


def code(text: str, limit: int = NAME_LIMIT) -> str:
    """Return Markdown that shows `text` in a code font, also inside a table cell.

    A code span cannot contain every character, such as a backtick, or a pipe in a table. Text with
    such a character becomes an HTML element with character references.
    """
    # Unlinked in code too, because e-mails and feeds show code as plain text.
    line = _unlinked(clean_name(text, limit))
    if not line:
        return NOTHING
    # A code span has no escapes (CommonMark, 6.1), so a character that would end it needs HTML.
    if _PLAIN_CODE.fullmatch(line):
        return f"`{line}`"
    return f"<code>{''.join(map(_encoded, line))}</code>"


def _encoded(character: str) -> str:
    plain = character.isalnum() or character == " " or not character.isascii()
    return character if plain else f"&#{ord(character)};"


def command_lines(text: str, limit: int = BLOCK_LIMIT) -> tuple[str, ...]:
    """Return the lines of a command to copy: visible characters only, with nothing inserted.

    A command above the limit gives no lines, because half a command does something else.
    """
    if len(text) > limit:
        return ()
    lines = (visible(line).rstrip() for line in text.splitlines())
    return tuple(line for line in lines if line)


def code_block(text: str, limit: int = BLOCK_LIMIT, language: str = "sh") -> str:
    """Return a fenced block that shows `text` exactly, for copying; nothing above the limit."""
    return fenced(command_lines(text, limit), language)


def output_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Return lines of a training's output with their indentation, each cut at its end."""
    shown = (visible(line[: LINE_LIMIT * 20]).rstrip() for line in lines)
    return tuple(
        line if len(line) <= LINE_LIMIT else line[: LINE_LIMIT - 1] + ELLIPSIS for line in shown
    )


def unlinked_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Return output lines for Markdown: e-mails and feeds show a block as plain text with links."""
    return tuple(map(_unlinked_line, lines))


def _unlinked_line(line: str) -> str:
    # GitHub recognises a place in a diff by these marks, so keep them intact.
    if line.startswith("@@ ") and line.endswith(" @@"):
        return f"@@ {_unlinked(line[3:-3])} @@"
    return _unlinked(line)


def fenced(lines: tuple[str, ...], language: str = "") -> str:
    """Return lines as a fenced block that none of them can end; nothing without any text."""
    if not any(line.strip() for line in lines):
        return ""
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    # A block ends at the first run of backticks that is at least as long (CommonMark, 4.5).
    fence = "`" * max(3, longest + 1)
    return "\n".join((f"{fence}{language}", *lines, fence))


def safe_url(text: str) -> str:
    """Return the address, or the empty text unless it is a plain http(s) address."""
    return text if _URL.fullmatch(text) else ""


def command_data(text: str) -> str:
    """Return text escaped for the message of a workflow command."""
    # Percent first, because the other two replacements insert percent signs.
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def command_property(text: str) -> str:
    """Return text escaped for a property of a workflow command."""
    # A comma would begin the next property, and a double colon the message.
    return command_data(text).replace(":", "%3A").replace(",", "%2C")
