"""The HTML page: nothing from outside, nothing that runs, nothing that text can break."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from report_cases import LINKS, SERIES, delta
from report_hostile import HOSTILE, poisoned
from report_outcomes import BROKEN_SERIES, CASES, CODE_DRIFT, REPRODUCED

from gate.records.report import ReportLinks
from gate.records.verdict import Finding, Severity
from gate.report.page import page_html

VOID = {"meta", "path", "circle", "polyline"}


class Page(HTMLParser):
    """Tags in order, and a check that they are well nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


@pytest.mark.parametrize("name", CASES)
def test_a_page_is_well_formed_and_stands_alone(name: str) -> None:
    page = Page(page_html(CASES[name], LINKS))
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert [attrs["href"] for tag, attrs in page.tags if tag == "a"] == [LINKS.run_url]
    assert page.count("h1") == 1


def test_the_page_says_verdict_cause_and_next_command() -> None:
    text = Page(page_html(CODE_DRIFT, LINKS, gate_id="lm")).text
    assert "❌ repro-gate failed: code drift" in text
    assert "differs from the baseline: loss at step 7 is 1.338445, expected 1.335773" in text
    assert CODE_DRIFT.next_command in text
    assert "gate lm" in text


def test_the_page_follows_the_readers_choice_of_colours() -> None:
    assert "@media (prefers-color-scheme: dark)" in page_html(REPRODUCED, LINKS)


def test_without_a_cause_the_outcome_is_explained() -> None:
    page = Page(page_html(REPRODUCED.model_copy(update={"cause": ""}), LINKS))
    assert page.text.count("The strict runs and the baseline are equal, bit for bit.") == 1


def test_a_page_without_command_address_and_series_leaves_them_out() -> None:
    page = Page(page_html(REPRODUCED.model_copy(update={"series": ()}), ReportLinks()))
    assert {"a", "svg", "pre"} & {tag for tag, _ in page.tags} == set()


def test_a_curve_with_a_hole_is_drawn_in_two_pieces() -> None:
    verdict = REPRODUCED.model_copy(update={"series": (BROKEN_SERIES,)})
    page = Page(page_html(verdict, LINKS))
    assert page.count("polyline") == 2
    assert "2 without a finite value" in page.text


def test_more_curves_than_twelve_are_counted() -> None:
    page = Page(page_html(REPRODUCED.model_copy(update={"series": SERIES * 7}), LINKS))
    assert page.count("svg") == 12
    assert "and 2 more" in page.text


def test_what_is_left_out_is_counted() -> None:
    assert CODE_DRIFT.baseline is not None
    metrics = tuple(delta(step, 0.1, within=False) for step in range(1, 2101))
    many = CODE_DRIFT.baseline.model_copy(update={"metrics": metrics})
    finding = Finding(code="dirty-tree", severity=Severity.ERROR, message="m")
    changes = {"baseline": many, "findings": (finding,) * 9}
    text = Page(page_html(CODE_DRIFT.model_copy(update=changes), LINKS)).text
    assert "and 100 more" in text
    assert "and 4 more" in text


HARMLESS = Page(page_html(poisoned(CODE_DRIFT, "x"), LINKS))


@settings(max_examples=40, deadline=None)
@given(HOSTILE)
def test_hostile_text_changes_no_tag(text: str) -> None:
    hostile = Page(page_html(poisoned(CODE_DRIFT, f"x{text}"), LINKS))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in HARMLESS.tags]
    assert not {"\u202e", "\u200b", "\x1b", "\x00"} & set(hostile.text)
