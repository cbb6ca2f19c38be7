"""What of a comment is read before its table, counted without the program's own counting."""

from __future__ import annotations

import html
import re

FENCED = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2$", re.MULTILINE | re.DOTALL)
# what stands behind the answers: the table, the drawing, a box, the footer
BEHIND = re.compile(r"^(?:\| Compared \||```text$|> \[!WARNING\]|<sub>)", re.MULTILINE)


def lead(comment: str) -> str:
    """From the title to the table, without the hidden marker."""
    text = comment.partition("\n")[2]
    end = BEHIND.search(text)
    return text[: end.start()] if end else text


def words_before_table(comment: str) -> int:
    """How many words a reader sees there; a block of code is none of them."""
    text = html.unescape(FENCED.sub("", lead(comment)))
    return sum(any(map(str.isalnum, word)) for word in text.split())
