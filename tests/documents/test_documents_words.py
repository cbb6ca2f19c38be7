"""Words that the glossary has retired stand in no message, finding code, file name or page."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from written_texts import ROOT, Written, pages, source_texts, yaml_texts

GLOSSARY = "docs/glossary.md"
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
# The same word for another thing, in these places.
OTHER_THINGS = {
    "tamper": {
        ".github/dependabot.yml": "a release that somebody changed",
    },
    "canary": {
        "docs/security.md": "a secret that is planted to see where it turns up",
        "tests/hostile/page.md": "a secret that is planted to see where it turns up",
    },
    "fence": {"gate/report/escape.py": "Markdown's block of code"},
}


def retired() -> dict[str, str]:
    """Each word of the glossary's left column, and what stands in its place."""
    text = (ROOT / GLOSSARY).read_text("utf-8")
    rows = ROW.findall(text[text.rindex("| not | but |") :])[1:]
    return {word.strip(): instead for words, instead in rows for word in words.split(",")}


RETIRED = retired()


def spoken() -> Iterator[Written]:
    """All that a user may read, and the names of all files."""
    yield from (written for written in source_texts() if not written.docstring)
    yield from yaml_texts()
    yield from (
        Written(where=page.name, text=page.text) for page in pages() if page.name != GLOSSARY
    )
    listed = subprocess.run(
        ("git", "ls-files", "--cached", "--others", "--exclude-standard"),  # noqa: S607 - the PATH's own
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        yield Written(where=name, text=re.sub(r"[_/-]", " ", name))


def mentions(word: str, texts: Iterator[Written]) -> list[str]:
    """Where a word, or one made of it, is used for what the field calls otherwise."""
    parts = r"[\s_-]+".join(re.escape(part) for part in word.split())
    pattern = re.compile(rf"(?<![a-z]){parts}(s|ed|ing|ies)?(?![a-z])", re.IGNORECASE)
    allowed = OTHER_THINGS.get(word, {})
    return [
        written.where
        for written in texts
        if pattern.search(written.text) and written.where.partition(":")[0] not in allowed
    ]


def test_the_glossary_names_what_it_retires() -> None:
    assert {"guest", "census", "tamper", "hostile file"} <= RETIRED.keys()
    assert all(instead.strip() for instead in RETIRED.values())


@pytest.mark.parametrize("word", RETIRED)
def test_a_retired_word_is_used_nowhere(word: str) -> None:
    assert mentions(word, spoken()) == []


def test_each_exception_is_still_there() -> None:
    for word, places in OTHER_THINGS.items():
        for place in places:
            assert word in place + (ROOT / place).read_text("utf-8").lower()


@pytest.mark.parametrize(
    "text",
    ["The guest saw it.", "code `told-runs`", "a hostile  file", "census_view", "Siblings wait."],
)
def test_a_mention_is_found_in_any_form(text: str) -> None:
    assert any(mentions(word, iter([Written(where="x.py:1", text=text)])) for word in RETIRED)


def test_a_word_that_only_holds_one_is_another_word() -> None:
    texts = [Written(where="x.py:1", text="guestimate, defence, indeed, incensus")]
    assert not any(mentions(word, iter(texts)) for word in RETIRED)
