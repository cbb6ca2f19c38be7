"""Check that untrusted text is harmless on GitHub, in a browser, a runner's log or a terminal."""

from __future__ import annotations

import re
import unicodedata
from html.parser import HTMLParser

from markdown_it import MarkdownIt
from runner_rules import commands

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
OWN_TAGS = re.compile(r"</?(details|summary|sub|code)>|<!-- repro-gate:default -->")
OWN_LINKS = re.compile(r"\[this run\]\(https://[^)]*\)")
# outside of code, GitHub would turn each of these into a link or a notification
REFERENCE = re.compile(
    r"@\w|(?<!&)#\w|\bGH-\d|\bwww\.|://"
    r"|\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\b",
    re.IGNORECASE,
)
FENCE = re.compile(r"^ *(`{3,})sh\n.*?^ *\1$", re.DOTALL | re.MULTILINE)
# In a code block GitHub links no hash, but e-mails about the comment link mentions in it.
BLOCK = re.compile(r"^ *(`{3,})[a-z]*\n.*?^ *\1$", re.DOTALL | re.MULTILINE)
CODE_SPAN = re.compile(r"`[^`\n]*`|<code>.*?</code>")
# the page's own table of contents
OWN_PLACE = re.compile(
    r"#(content|next|diagnosis|fault|policy|glance|differences|curves|times|memory|details"
    r"|evidence)"
)
# attributes that a browser shows or reads aloud, and never follows
SPOKEN = {"aria-label", "title"}
ACTIVE_TAGS = {"a", "img", "iframe", "object", "embed", "form", "input", "base", "link"}


def hidden_characters(text: str) -> set[str]:
    """Return the invisible characters in a text.

    The reports' own character that breaks mentions is not counted.
    """
    return {
        sign
        for sign in text
        if sign not in "\n\u200b" and unicodedata.category(sign) in {"Cc", "Cf", "Cs", "Co", "Zl"}
    }


def markdown_faults(text: str) -> list[str]:
    """Return what a comment or summary contains that it must not."""
    text = OWN_LINKS.sub("", text)
    blocks = MARKDOWN.parse(text)
    tokens = [child for block in blocks for child in (block, *(block.children or []))]
    kinds = {token.type for token in tokens} & {"link_open", "image", "s_open"}
    html = "".join(token.content for token in tokens if token.type in {"html_block", "html_inline"})
    tags = [tag for tag in re.findall(r"<[^>]*>", html) if not OWN_TAGS.fullmatch(tag)]
    shown = FENCE.sub("", text)
    # GitHub links no hash inside backticks, where the reports put their digests
    plain = CODE_SPAN.sub("", BLOCK.sub("", shown))
    mentions = re.findall(r"@\w+|(?<!&)#\w+", shown)
    references = [match.group() for match in REFERENCE.finditer(plain)]
    return [*kinds, *tags, *mentions, *references, *hidden_characters(text)]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            link = name not in SPOKEN and "javascript:" in (value or "")
            if name.startswith("on") or link:
                self.faults.append(f"{tag} {name}")
        if tag in ACTIVE_TAGS and not OWN_PLACE.fullmatch(dict(attrs).get("href") or ""):
            self.faults.append(tag)


def page_faults(text: str) -> list[str]:
    """Return the tags and attributes of a page that could execute or load something."""
    tags = _Tags()
    tags.feed(text)
    return [*tags.faults, *hidden_characters(text)]


def log_faults(lines: list[str]) -> list[str]:
    """Return the commands that the runner would obey, except the gate's own annotations."""
    log = "\n".join(lines)
    own = {"error", "warning", "notice", "stop-commands"}
    return [*(name for name in commands(log) if name not in own), *hidden_characters(log)]
