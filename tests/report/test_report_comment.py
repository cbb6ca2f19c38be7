"""The comment: its head, its size, and what untrusted text can do to it."""

from __future__ import annotations

import re

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from report_cases import LINKS, delta, tensor
from report_hostile import HOSTILE, poisoned
from report_outcomes import BASELINE_CHANGE, CASES, CODE_DRIFT, REPRODUCED

from gate.report.assembly import ReportLinks
from gate.report.comment import COMMENT_BYTES, comment_text, marker
from gate.report.markdown import CUT_NOTE, MarkdownPart, cut_lines, fit
from gate.verdict.verdict import Finding, Severity, Verdict

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
OWN_TAGS = {"<details>", "</details>", "<summary>", "</summary>", "<sub>", "</sub>", "<code>",
            "</code>", marker("default")}  # fmt: skip
TEXTS = st.text(max_size=400)
FIRST_LINE = "<!-- repro-gate:default -->"
HEADLINE = "### ❌ repro-gate failed: this change moves the result"
UNKNOWN_WORDS = re.compile(r"\bstrict mode\b|\bseries\b|\bnumbers\b|[0-9a-f]{12}")


def test_the_verdict_comes_first() -> None:
    lines = comment_text(CODE_DRIFT, LINKS).splitlines()
    assert lines[:2] == [FIRST_LINE, HEADLINE]


def test_a_named_gate_says_its_name() -> None:
    lines = comment_text(REPRODUCED, LINKS, gate_id="lm-small").splitlines()
    assert lines[0] == "<!-- repro-gate:lm-small -->"
    assert lines[1] == "### ✅ repro-gate (lm-small) passed: same result, bit for bit"


def test_after_a_pass_nothing_is_next_and_the_seal_can_be_verified() -> None:
    text = comment_text(REPRODUCED, LINKS)
    assert "\n\n**What now?** Nothing to do.\n\n" in text
    command = f"```sh\n{LINKS.verify_command}\n```"
    assert f"<summary>Verify the sealed package</summary>\n\n{command}\n\n</details>" in text


@each_row("verdict", CASES.values(), ids=list(CASES))
def test_three_answers_stand_first(verdict: Verdict) -> None:
    lines = [line for line in comment_text(verdict, LINKS).splitlines() if line]
    seen = "\n".join(lines).partition("<details>")[0]
    leads = ("**Is it this change?** ", "**What now?**")
    answers = [line for line in seen.splitlines() if line.startswith("**")]
    assert all(line.startswith(lead) for line, lead in zip(answers, leads, strict=True))
    # what happened stands before them, or in the title
    assert lines.index(answers[0]) >= 2
    # words of the program and long digests tell a reviewer nothing
    assert not UNKNOWN_WORDS.search(re.sub(r"(?s)```diff.*?```", "", seen).split("```")[0])


def test_without_addresses_nothing_is_linked() -> None:
    text = comment_text(REPRODUCED, ReportLinks(run_url="javascript:alert(1)"))
    assert "](" not in text


def test_more_warnings_than_five_are_counted() -> None:
    finding = Finding(code="dirty-tree", severity=Severity.WARNING, message="m", remedy="r")
    text = comment_text(BASELINE_CHANGE.model_copy(update={"findings": (finding,) * 7}), LINKS)
    assert text.count("> - `dirty-tree`: m. r") == 5
    assert "> - and 2 more" in text


def test_what_does_not_fit_in_a_table_is_counted() -> None:
    assert CODE_DRIFT.baseline is not None
    many = CODE_DRIFT.baseline.model_copy(
        update={
            "metrics": tuple(delta(step, 0.1, within=False) for step in range(1, 5001)),
            "tensors": tuple(tensor(f"model/0/{index}") for index in range(5000)),
        }
    )
    text = comment_text(CODE_DRIFT.model_copy(update={"baseline": many}), LINKS)
    assert text.count("*and 4,990 more*") == 2


@given(HOSTILE)
def test_hostile_text_adds_no_link_no_tag_and_no_mention(text: str) -> None:
    shown = comment_text(poisoned(CODE_DRIFT, text), ReportLinks())
    blocks = MARKDOWN.parse(shown)
    tokens = [child for block in blocks for child in (block, *(block.children or []))]
    assert not {"link_open", "image", "s_open"} & {token.type for token in tokens}
    html = "".join(token.content for token in tokens if token.type in {"html_block", "html_inline"})
    assert set(re.findall(r"<[^>]*>", html)) <= OWN_TAGS
    rest = re.sub(r"&#\d+;|^ *(`{3,})sh\n.*?^ *\1$", "", shown, flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"[@#]\w", rest)


def test_a_result_of_many_megabytes_keeps_its_head_and_its_size() -> None:
    assert CODE_DRIFT.baseline is not None
    every = tuple(
        delta(step, 0.1, within=False, metric=f"metric-{step}-" + "m" * 100)
        for step in range(20_000)
    )
    text = comment_text(
        CODE_DRIFT.model_copy(
            update={
                "baseline": CODE_DRIFT.baseline.model_copy(update={"metrics": every}),
                "fault_details": ("x" * 500,) * 5_000,
                "not_exercised": ("y" * 500,) * 5_000,
            }
        ),
        LINKS,
    )
    assert len(text.encode()) <= COMMENT_BYTES
    assert text.splitlines()[1] == "### ❌ repro-gate failed: this change moves the result"
    assert "*and 19,990 more*" in text


@pytest.mark.parametrize("text", ["|" * 400, "𐍈" * 400, "`$@" * 200, "<&" * 900])
def test_the_comment_is_never_too_long(text: str) -> None:
    shown = comment_text(poisoned(CODE_DRIFT, text), LINKS)
    assert len(shown.encode()) <= COMMENT_BYTES
    assert shown.startswith(f"{FIRST_LINE}\n{HEADLINE}\n")
    assert shown.count("<details>") == shown.count("</details>")


@given(
    TEXTS,
    st.lists(st.builds(MarkdownPart, text=TEXTS, close=st.just("\nend"))),
    st.integers(700, 2000),
)
def test_fitting_keeps_the_limit_and_the_head(
    head: str, parts: list[MarkdownPart], limit: int
) -> None:
    # 400 characters are at most 1,600 bytes: a head may be cut too
    text = fit(head, parts, limit)
    assert len(text.encode()) <= limit
    assert text.startswith(head if len(head.encode()) < limit else head.rpartition("\n")[0][:1])


def test_a_part_is_cut_at_a_line_end_and_closed() -> None:
    part = MarkdownPart(text="<details>\n" + "| row |\n" * 1000, close="\n</details>")
    text = fit("head", (part, MarkdownPart(text="left out")), 2000)
    assert text.endswith(f"| row |\n\n{CUT_NOTE}\n</details>\n")
    assert "left out" not in text


def test_a_part_of_which_little_would_be_left_is_left_out() -> None:
    assert fit("head", (MarkdownPart(text="row\n" * 1000),), 500) == "head\n"


@given(st.text(), st.integers(0, 100))
def test_cutting_gives_whole_lines(text: str, limit: int) -> None:
    cut = cut_lines(text, limit)
    assert len(cut.encode()) <= limit
    assert cut in {text, ""} or text.startswith(cut + "\n")
