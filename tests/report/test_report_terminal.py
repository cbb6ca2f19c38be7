"""The verdict on a terminal of 80 columns."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Literal

import pytest
from each_row import each_row
from hypothesis import example, given, settings
from hypothesis import strategies as st
from report_cases import LINKS
from report_hostile import HOSTILE, poisoned
from report_outcomes import BASELINE_CHANGE, CASES, CODE_DRIFT, ERROR, NO_BASELINE, REPRODUCED
from rich.console import Console

from gate.publishing.artifact import PublishedPackage
from gate.report.assembly import ReportLinks
from gate.report.layout import Cell, Section, ShownLines, table_of
from gate.report.terminal import change_lines, next_text, quiet_line, verdict_view
from gate.report.terminal_lines import section_view
from gate.verdict.verdict import NextStep, Verdict


def shown(verdict: Verdict, links: ReportLinks = LINKS, *, colour: bool = False) -> str:
    file = io.StringIO()
    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(file=file, width=80, force_terminal=colour, color_system=system)
    # as the command prints it
    console.print(verdict_view(verdict, links), crop=False)
    return file.getvalue()


@each_row("name", CASES)
def test_it_keeps_to_80_columns(name: str) -> None:
    console = Console(width=80)
    assert all(console.measure(line).maximum <= 80 for line in shown(CASES[name]).splitlines())


def test_a_published_address_is_one_line_that_can_be_copied() -> None:
    reference = f"registry.example.org:5000/team/gates@sha256:{'0123456789abcdef' * 4}"
    links = replace(LINKS, published=PublishedPackage(reference=reference, tag="commit-x"))
    assert f"published: {reference}" in shown(REPRODUCED, links).splitlines()


def test_the_verdict_comes_first_then_its_cause() -> None:
    lines = shown(CODE_DRIFT).splitlines()
    assert lines[0] == "❌ repro-gate failed: this change moves the result"
    assert lines[1].startswith(
        "Loss at step 7: 1.338 instead of 1.336 (+0.2 %, later up to 3.6 %)."
    )
    assert any(line.startswith("Is it this change? Yes. Same machine and") for line in lines)


@each_row("name", CASES)
def test_the_quiet_line_says_why_where_a_verdict_fails(name: str) -> None:
    verdict = CASES[name]
    line = quiet_line(verdict)
    assert "\n" not in line
    _, _, reason = line.partition(". ")
    assert bool(reason) is not verdict.passes


def test_the_quiet_line_has_the_cause() -> None:
    assert quiet_line(CODE_DRIFT) == (
        "❌ repro-gate failed: this change moves the result. Cause: lr 0.001 → 0.002."
    )


def test_what_is_next_is_told_step_by_step() -> None:
    text = next_text(CODE_DRIFT, ReportLinks())
    assert text.startswith("\nWhat now:\n- If unintended: ")
    assert "\n- If intended, record it in this pull request:" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_command_is_never_broken_where_a_line_end_would_change_it() -> None:
    """Rich wraps at the width of the terminal, also inside quotes: printed unwrapped it cannot."""
    command = f"repro-gate baseline accept --out /{'long/' * 30}out --reason 'why it moves'"
    step = NextStep(text="Accept it:", command=command)
    text = next_text(NO_BASELINE.model_copy(update={"next_steps": (step,)}), ReportLinks())
    file = io.StringIO()
    Console(file=file, width=80).print(text, soft_wrap=True)
    assert f"\n  {command}\n" in file.getvalue()


@pytest.mark.parametrize(
    ("verdict", "colour"), [(REPRODUCED, "32"), (BASELINE_CHANGE, "33"), (CODE_DRIFT, "31")]
)
def test_the_colour_follows_the_verdict(verdict: Verdict, colour: str) -> None:
    assert shown(verdict, colour=True).startswith(f"\x1b[1;{colour}m")


def test_the_end_of_a_long_changed_line_is_shown() -> None:
    lines = ("@@ train.py:16 @@", f"-{'x' * 100} ** 0.75", f"+{'x' * 100} ** 0.5")
    out = io.StringIO()
    console = Console(file=out, width=80)
    console.print(*change_lines(ShownLines(caption="All that changes:", lines=lines)), sep="\n")
    text = out.getvalue()
    assert "** 0.75" in text
    assert "** 0.5 " in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_long_command_is_continued_as_a_shell_reads_it() -> None:
    lines = next_text(REPRODUCED, LINKS).splitlines()
    command = lines[lines.index("Verify:") + 1 :]
    assert [line.endswith(" \\") for line in command] == [True, True, False]
    assert " ".join(line.strip(" \\") for line in command) == LINKS.verify_command


def test_without_a_command_nothing_is_next() -> None:
    assert next_text(REPRODUCED, ReportLinks()) == ""


def test_a_fault_shows_its_last_lines() -> None:
    assert "FileNotFoundError: [Errno 2] No such file or directory" in shown(ERROR)


def test_warnings_are_shown() -> None:
    assert "! policy-changed: this pull request includes" in shown(BASELINE_CHANGE)


def test_rows_that_do_not_fit_are_counted() -> None:
    assert "and 31 more" in shown(CODE_DRIFT)


@settings(max_examples=25, deadline=None)
@given(HOSTILE)
def test_hostile_text_is_text(text: str) -> None:
    output = shown(poisoned(CODE_DRIFT, f"[bold red]{text}[/]"))
    assert "[boldred]" in "".join(output.split())
    assert not {"\x1b", "\u202e", "\u200b", "\x00", "\r"} & set(output)


@given(
    words=st.lists(st.integers(1, 14), min_size=4, max_size=4),
    sentence=st.lists(st.integers(1, 5), min_size=1, max_size=40),
)
@example(words=[14, 14, 14, 14], sentence=[5] * 40)
def test_a_table_gives_way_in_sentences_and_breaks_no_word(
    words: list[int], sentence: list[int]
) -> None:
    told = " ".join("s" * length for length in sentence)
    row = (*(Cell("w" * length) for length in words), Cell(told))
    table = table_of(tuple("abcdefgh"[: len(row)]), [row], 1)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(section_view(Section(title="Facts", table=table)))
    shown = console.export_text().split()
    assert {cell.text for cell in row[:-1]} <= set(shown)
    assert [word for word in shown if set(word) == {"s"}] == told.split()
