"""Where a package was published, as each reader sees it; a registry's words deceive nobody."""

from __future__ import annotations

import io
from dataclasses import replace

from harmless import markdown_faults, page_faults
from hypothesis import given
from page_reader import Page
from report_cases import LINKS
from report_hostile import HOSTILE
from report_outcomes import REPRODUCED
from rich.console import Console

from gate.publishing.artifact import PublishedPackage
from gate.report.assembly import ReportLinks
from gate.report.comment import comment_text, summary_text
from gate.report.page.page import page_html
from gate.report.terminal import verdict_view

DIGEST = f"sha256:{'c0ffee' * 10}abcd"
PUBLISHED = PublishedPackage(
    reference=f"registry.example.org/team/runs@{DIGEST}",
    tag="commit-c0ffee",
    tracker="MLflow",
    tracked_run="run1",
    model_version="tiny version 3",
)


def links(published: PublishedPackage) -> ReportLinks:
    return replace(LINKS, published=published)


def poisoned(text: str) -> ReportLinks:
    """A registry and a tracker that answer with this everywhere."""
    fields = dict.fromkeys(("reference", "tag", "tracked_run", "model_version"), f"x{text}")
    lines = (f"x{text}",)
    return ReportLinks(published=PublishedPackage(**fields, notes=lines, faults=lines))


def shown(given_links: ReportLinks) -> str:
    file = io.StringIO()
    Console(file=file, width=80).print(verdict_view(REPRODUCED, given_links), crop=False)
    return file.getvalue()


def test_every_report_says_where_it_lies() -> None:
    told = links(PUBLISHED)
    for text in (comment_text(REPRODUCED, told), summary_text(REPRODUCED, told)):
        assert f"| Digest | `{DIGEST}` |" in text
        assert "| Registry | `registry.example.org/team/runs` |" in text
        assert "| MLflow run | `run1` |" in text
        assert "| Registered model | `tiny version 3` |" in text
    page = Page(page_html(REPRODUCED, told)).text
    assert f"Digest{DIGEST}" in page
    assert "MLflow runrun1" in page
    terminal = shown(told).replace("\n", "")
    assert f"published: registry.example.org/team/runs@{DIGEST}" in terminal
    assert "MLflow run: run1" in terminal


def test_without_publishing_no_report_says_a_word_of_it() -> None:
    for text in (comment_text(REPRODUCED, LINKS), page_html(REPRODUCED, LINKS), shown(LINKS)):
        assert "ublished" not in text
        assert "MLflow" not in text


def test_a_fault_is_seen_without_a_click() -> None:
    told = links(PublishedPackage(faults=("The package was not pushed to a.example/b: no.",)))
    before = comment_text(REPRODUCED, told).partition("<details>")[0]
    assert "not-published" in before
    assert "The package was not pushed to a" in before
    assert "! not-published: The package was not pushed to a.example/b: no." in shown(told)


@given(HOSTILE)
def test_what_a_registry_says_adds_no_link_no_tag_and_no_mention(text: str) -> None:
    told = poisoned(text)
    assert markdown_faults(comment_text(REPRODUCED, told)) == []
    assert markdown_faults(summary_text(REPRODUCED, told)) == []
    assert page_faults(page_html(REPRODUCED, told)) == []
    assert not {"\x1b", "\u202e", "\x00", "\r"} & set(shown(told))
