"""Phrases that read as translated stay out of what users read: messages, help, pages, workflows.

The left side is a pattern, the right side what a colleague would say. A word that is right in some
places is kept out by the phrases around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from written_texts import ROOT, Written, constants, spoken

# Pages for those who change the gate, and pages of figures that commands write.
OTHER_READERS = ("tests/README.md", "CONTRIBUTING.md", "docs/results/")
README_WORDS = 900
SPANS = re.compile(r"```.*?```|`[^`\n]+`|<style>.*?</style>|\{[%{#].*?[%}#]\}", re.DOTALL)

INSTEAD = {
    r"made (?:anew|again)|written anew|\banew\b": "regenerated, re-run",
    r"\b(?:mend|mends|mended|heal|heals)\b": "fix",
    r"where (?:two|the|both) \w+ part\b|\bparts with (?:a|the|its)\b": "differ, diverge",
    r"\b(?:it|which|that|who|page|verdict|report|comment|gate|row) tells\b": "reports, shows",
    r"\b(?:is|are|was|be|not) told\b|\bas told\b|told from\b|told apart\b": "reported; "
    "distinguished",
    r"\b(?:is|are) said\b|\bis said to\b": "reports; is",
    r"\bstands? (?:in|on|at|beside|behind|above|below|under|there|for|lower|between)\b": "is in",
    r"\b(?:lies|lie|lay) (?:in|on|at|beside|there|below|elsewhere|under|between)\b": "is in",
    r"\bso (?:many|much) (?!more|that\b)": "a number, or rewrite",
    r"\bof (?:which|whom|whose)\b(?! (?:\d|…))": "rewrite: whose, its, or two sentences",
    r"\bwhatever\b|\bno such one\b|\bsuch (?:is|are)\b": "name the thing",
    r"\bfor ever\b(?! \w)|\bwithout end\b|never leads? back|never goes? back": "never ends; is "
    "final",
    r"counts? for nothing|(?:decides?|judges?) nothing": "is ignored; is informational",
    r"beyond doubt|certain sure": "certainly",
    r"\b(?:the|these|those|an) others? than\b|\bother (?:numbers|values|files) than\b": "different",
    r"\banother result\b|\ban(?:d|y) another order\b|in another order\b": "a different result, "
    "order",
    r"\b(?:this|the) commit does not repeat\b": "two runs of this commit gave different results",
    r"\bNot meant:|\bMeant:": "If unintended, if intended",
    r"\b(?:brings?|brought) (?:a|an|the|its|no|other|another|new|here|back)\b": "include, install, "
    "add",
    r"\bas then\b|\bas they were then\b": "unchanged",
    r"\ball the same\b(?=[.,;:)]|$)": "anyway",
    r"\bthe very (?:files|same|file)\b": "exactly these files",
    r"\b(?:could|can) (?:not )?be told\b|cannot be told\b": "unknown",
    r"(?<!there )(?<!There )\b(?:is|are) no "
    r"(?:path|list|file|folder|mapping|text|number|name|version|"
    r"hash|address|package|remote|kind|knob|JWT|code|plain)\b(?! of)": "is not a",
    r"\b(?:is|are) at hand\b|\bin vain\b": "available; without success",
    r"\bnobody's (?:home|hash)\b": "rewrite",
    r"\bmoves? as well\b": "changes too",
    r"\bexcuses? nothing any ?more\b": "has expired",
}


def readers_texts() -> Iterable[Written]:
    """What users read: no docstring, no page for contributors, no code."""
    for written in spoken():
        if written.docstring or written.where.startswith(OTHER_READERS):
            continue
        if ".py" in written.where and not written.is_message:
            continue
        yield Written(where=written.where, text=SPANS.sub("`…`", written.text))
    for path in sorted((ROOT / "tests" / "hostile").glob("attempts_*.py")):
        for written in constants(path):
            # the titles of the rows, and not the attempts themselves
            if not written.docstring and "\n" not in written.text:
                yield written


def found(texts: Iterable[Written]) -> list[str]:
    """Each phrase with its place and what to write."""
    patterns = [(re.compile(phrase, re.IGNORECASE), instead) for phrase, instead in INSTEAD.items()]
    return [
        f"{written.where}: {_around(written.text, match)} -> {instead}"
        for written in texts
        for pattern, instead in patterns
        for match in pattern.finditer(written.text)
    ]


def _around(text: str, match: re.Match[str]) -> str:
    return " ".join(text[max(0, match.start() - 30) : match.end() + 20].split())


def test_no_phrase_that_reads_as_translated() -> None:
    assert found(readers_texts()) == []


def test_each_phrase_is_seen_and_plain_english_is_not() -> None:
    stilted = (
        "the lock file is made anew",
        "Mend that, or stop",
        "the page tells which",
        "it is told as an error",
        "the token lies in the clone",
        "a key stands in the file",
        "so many runs",
        "two files, of which one differs",
        "it waits for ever",
        "they count for nothing",
        "another result than before",
        "Not meant: undo it",
        "the change brings a baseline",
        "12 parts as then",
        "better, and outside all the same.",
        "could not be told",
        "train.py is no file",
        "the commit is at hand",
    )
    seen = {text: found([Written(where="x.md", text=text)]) for text in stilted}
    assert [text for text, faults in seen.items() if not faults] == []
    plain = "There is no file, so nothing is compared. Others agree: see part 2, or re-run it."
    assert found([Written(where="x.md", text=plain)]) == []


def test_the_readme_is_a_first_page() -> None:
    words = len((ROOT / "README.md").read_text("utf-8").split())
    assert words <= README_WORDS, f"{words} words: a guide in docs/ has room for more"
