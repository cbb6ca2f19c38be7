"""Count the words of a comment before its table, independently of the program's own count."""

from __future__ import annotations

import html
import re

FENCED = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2$", re.MULTILINE | re.DOTALL)
# what can follow the answers: the table, the drawing, a box, the footer
BEHIND = re.compile(r"^(?:\| Compared \||```text$|> \[!WARNING\]|<sub>)", re.MULTILINE)


def lead(comment: str) -> str:
    """Return the text from the title to the table, without the hidden marker."""
    text = comment.partition("\n")[2]
    end = BEHIND.search(text)
    return text[: end.start()] if end else text


def words_before_table(comment: str) -> int:
    """Count the words that a reader sees before the table; code blocks do not count."""
    text = html.unescape(FENCED.sub("", lead(comment)))
    return sum(any(map(str.isalnum, word)) for word in text.split())
