"""Laws of escaping, judged by a CommonMark parser (rich depends on one, so it is there)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

import pytest
from each_row import each_row
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from report_hostile import HOSTILE

from gate.report.escape import (
    clean,
    clean_name,
    code,
    code_block,
    command_data,
    command_lines,
    command_property,
    fenced,
    output_lines,
    prose,
    safe_url,
    spans,
)
from gate.text.untrusted_text import visible

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
ANY = HOSTILE | st.text()
LINKING = re.compile(r"[@#](?!\u200b)|www\.|GH-|://", re.IGNORECASE)


def inline(markdown: str) -> list[Token]:
    (token,) = (one for one in MARKDOWN.parse(markdown) if one.type == "inline")
    return token.children or []


@given(ANY)
def test_prose_shows_as_itself(text: str) -> None:
    tokens = inline(f"x {prose(text)} y")
    assert {token.type for token in tokens} == {"text"}
    shown = "".join(token.content for token in tokens)
    assert " ".join(shown.replace("\u200b", "").split()) == f"x {clean(text)} y".replace("  ", " ")


@given(ANY)
def test_a_sentence_shows_as_itself_with_backticks_as_code(text: str) -> None:
    tokens = inline(f"x {spans(text)} y")
    assert {token.type for token in tokens} <= {"text", "code_inline", "html_inline"}
    assert {t.content for t in tokens if t.type == "html_inline"} <= {"<code>", "</code>"}
    shown = "".join(token.content for token in tokens if token.type != "html_inline")
    wanted = clean(text) if clean(text).count("`") % 2 else clean(text).replace("`", "")
    assert re.sub(r"[\s\u200b]", "", shown) == re.sub(r"\s", "", f"x{wanted}y")


def test_a_command_of_a_sentence_is_in_the_code_face() -> None:
    assert spans("Run `pip install a|b`, then a`b.") == (
        "Run \\`pip install a&#124;b\\`, then a\\`b."
    )
    assert spans("Run `pip check`. Then `x`") == "Run `pip check`. Then `x`"


def test_nothing_is_cut_inside_a_sentence_where_one_fits() -> None:
    text = "First part. Second part, which is longer."
    assert clean(text, 30) == "First part. …"
    assert clean(text, 41) == text


@given(ANY)
def test_code_shows_as_itself(text: str) -> None:
    tokens = inline(f"x {code(text)} y")[1:-1]
    assert {token.type for token in tokens} <= {"code_inline", "html_inline", "text"}
    tags = [token.content for token in tokens if token.type == "html_inline"]
    assert tags in ([], ["<code>", "</code>"])
    shown = "".join(token.content for token in tokens if token.type != "html_inline")
    assert not tokens or shown.replace("\u200b", "") == clean_name(text)


@given(ANY, ANY, st.sampled_from([prose, spans]))
def test_a_table_keeps_its_shape(left: str, right: str, escape: Callable[[str], str]) -> None:
    tokens = MARKDOWN.parse(f"| a | b |\n| --- | --- |\n| {escape(left)} | {code(right)} |")
    kinds = [token.type for token in tokens]
    assert (kinds.count("tr_open"), kinds.count("td_open"), tokens[-1].type) == (
        2,
        2,
        "table_close",
    )


@given(ANY, st.sampled_from([prose, code, spans]))
@example("@", spans)
@example("`a` @", spans)
def test_nothing_is_left_to_link_or_mention(text: str, escape: object) -> None:
    assert callable(escape)
    shown = escape(text)
    assert not LINKING.search(re.sub(r"&#\d+;", "", shown))


@given(ANY)
def test_nothing_hidden_is_left(text: str) -> None:
    hidden = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert not hidden & {unicodedata.category(character) for character in visible(text)}


@given(ANY, st.integers(min_value=1, max_value=40))
def test_lines_keep_to_their_limit(text: str, limit: int) -> None:
    assert len(clean(text, limit)) <= limit
    assert len(clean_name(text, limit)) <= limit


@given(ANY)
def test_a_code_block_is_one_block_that_shows_its_lines(text: str) -> None:
    kinds = [(token.type, token.content) for token in MARKDOWN.parse(code_block(text))]
    lines = command_lines(text)
    assert kinds == ([("fence", "".join(f"{line}\n" for line in lines))] if lines else [])


@given(st.lists(ANY, max_size=4))
def test_printed_lines_are_one_block_that_none_of_them_ends(texts: list[str]) -> None:
    lines = output_lines(line for text in texts for line in text.splitlines())
    kinds = [(token.type, token.content) for token in MARKDOWN.parse(fenced(lines))]
    shown = "".join(f"{line}\n" for line in lines)
    assert kinds == ([("fence", shown)] if shown.strip() else [])


@given(ANY)
def test_a_workflow_command_keeps_to_one_line_and_can_be_read_back(text: str) -> None:
    escaped = command_property(text)
    assert not set("\r\n:,") & set(escaped)
    for mark, sign in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        escaped = escaped.replace(mark, sign)
    assert escaped == text


def test_the_message_of_a_command_keeps_its_colons() -> None:
    assert command_data("a: 5 %, b\r\n") == "a: 5 %25, b%0D%0A"


@each_row(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("a\u202eb\u200bc\x00d", "abcd"),
        ("  a\r\n\tb\u2028c ", "a b c"),
        ("abcdefghij", "abcdefg…"),
    ],
)
def test_clean_shows_what_can_be_seen(text: str, shown: str) -> None:
    assert clean(text, 8) == shown


def test_a_name_is_cut_in_its_middle() -> None:
    assert clean_name("model/0/layer.12.weight", 12) == "model….weight"[:5] + "…weight"


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("model/0/conv.weight", "`model/0/conv.weight`"),
        ("", "—"),
        ("a|b", "<code>a&#124;b</code>"),
        ("user@host", "`user@\u200bhost`"),
    ],
)
def test_code_takes_the_readable_form_where_it_can(text: str, markdown: str) -> None:
    assert code(text) == markdown


def test_a_command_that_is_too_long_is_not_shown_in_part() -> None:
    assert code_block("x" * 2001) == ""


@each_row(
    ("url", "kept"),
    [
        ("https://github.example:8443/org/repo/actions/runs/1", True),
        ("http://[::1]/x?a=b#c", True),
        ("javascript:alert(1)", False),
        ("https://x/)[a](b", False),
        ("https://x/ y", False),
        ('https://x/"onclick', False),
        ("", False),
    ],
)
def test_only_plain_addresses_are_linked(url: str, *, kept: bool) -> None:
    assert safe_url(url) == (url if kept else "")
