"""Hostile text in the job log, read back as the runner looks for commands."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_hostile import HOSTILE

from gate.edges.safe_text import LINE_LIMIT, safe_block, safe_line


def runner_sees_a_command(line: str) -> bool:
    """As the runner looks for one, after dropping what a culture-aware comparison skips."""
    seen = re.sub(r"[\u00ad\u034f\u200b-\u200f\u2060-\u206f\ufe00-\ufe0f\ufeff]", "", line)
    return seen.lstrip().startswith("::") or "##[" in seen


@pytest.mark.parametrize(
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
