"""The page of `repro-gate diff`, and the sentences above its tables."""

from __future__ import annotations

from difference_cases import NAME, NOTE, difference_of
from page_reader import Page

from gate.report.difference_words import difference_facts
from gate.report.page.templates import difference_page


def test_a_note_about_both_sides_stands_once() -> None:
    found = difference_facts(difference_of(1, left=(NOTE, "old"), right=(NOTE, "new")))
    assert found[2:] == [f"A and B: {NOTE}", "A: old", "B: new"]


def test_the_page_names_every_tensor_and_is_well_formed() -> None:
    page = Page(difference_page(difference_of(30, left=(), right=())))
    assert all(NAME.format(number) in page.text for number in range(30))
    # a long table scrolls in itself, a short one does not
    assert (page.classes("scroll"), page.classes("tall")) == (2, 1)
    assert page.count("script") == 0
