"""Untrusted text where it is shown; the job log is read back as the runner looks for commands."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from report_hostile import HOSTILE
from runner_commands import runner_sees_a_command

from gate.text.untrusted_text import (
    LINE_LIMIT,
    escaped_lines,
    masked,
    plain_text,
    safe_block,
    safe_line,
    short_text,
    shown_name,
    visible,
)


@each_row(
    ("output", "shown"),
    [
        (b"step 1", "step 1"),
        (b"10%\r 20%", "10%\\r 20%"),
        (b"  ::error::no", "  : :error: :no"),
        (b"text ##[error]no", "text # #[error]no"),
        ("#\u034f#[error]no", "# #[error]no"),
        (b"\x1b[31mred\x1b[0m \xff", "red \ufffd"),
        (b"a\tb", "a    b"),
    ],
)
def test_output_is_shown_as_text(output: str | bytes, shown: str) -> None:
    assert safe_line(output) == shown


@given(HOSTILE.map(lambda text: text.encode()) | st.binary())
def test_no_output_is_a_command(output: bytes) -> None:
    line = safe_line(output)
    assert not runner_sees_a_command(line)
    assert len(line.splitlines()) <= 1


def test_a_long_line_is_cut() -> None:
    assert len(safe_line(b"x" * 100_000)) == LINE_LIMIT


def test_a_block_keeps_its_lines() -> None:
    assert safe_block("one\n  ::error::two") == "one\n  : :error: :two"


@pytest.mark.parametrize(
    "show", [escaped_lines, masked, plain_text, safe_block, safe_line, short_text, visible]
)
@given(text=HOSTILE | st.text())
def test_whatever_is_shown_can_be_printed(show: Callable[[str], str], text: str) -> None:
    """But for the ends of lines where lines stay lines; a space of any kind is a space."""
    hidden = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    shown = show(text).replace("\n", "")
    assert not [sign for sign in shown if unicodedata.category(sign) in hidden]


@given(st.text())
def test_only_text_of_several_lines_has_ends_of_lines(text: str) -> None:
    assert "\n" not in plain_text(text) + safe_line(text) + short_text(text) + masked(text)


def test_what_cannot_be_printed_is_spelt_out_dropped_or_masked() -> None:
    text = "a\x1b[1mb\u202ec\n"
    assert plain_text(text) == r"a\x1b[1mb\u202ec\n"
    assert masked(text) == "a?[1mb?c?"
    assert visible(text) == "abc "


@given(st.text(), st.integers(min_value=0, max_value=60))
def test_a_shown_name_is_one_printable_text_of_bounded_length(name: str, limit: int) -> None:
    shown = shown_name(name, limit=limit)
    assert shown.isprintable()
    assert len(shown) <= limit


def test_names_that_differ_in_what_nobody_sees_are_shown_differently() -> None:
    names = ("a", "a\x1b[2K", "a\u202e", "a\n", "a\\n", "a\u200b", "a\udc80")
    assert len(set(map(shown_name, names))) == len(names)
