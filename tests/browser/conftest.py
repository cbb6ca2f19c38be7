"""A real browser, driven through playwright; the tests are skipped where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from difference_cases import NOTE, difference_of
from page_cases import distance_of, repeat_apart, sources
from page_outcomes import SOURCES
from report_cases import LINKS
from report_outcomes import CASES, NONDETERMINISTIC, REPRODUCED

from gate.report.page.page import page_html
from gate.report.page.templates import difference_page
from gate.verdict.history_lines import HistoryLine
from gate.verdict.verdict import Outcome

NAMES = ("chromium", "chromium-browser", "google-chrome")
LONG_NAME = "a.very.long.metric.name." * 4
# every way to end, more than the strip shows, with a name and a number as long as there can be
HISTORY = tuple(
    HistoryLine(
        judged_at=f"2026-07-{1 + place:02}T12:00:00+00:00",
        commit=f"{place:040x}",
        outcome=tuple(Outcome)[place % len(Outcome)],
        passes=place % 3 > 0,
        metric=LONG_NAME[:60],
        last=f"{1 + place / 7:.30f}",
        cost_ratio=1 + place % 5 / 100,
    )
    for place in range(28)
)
Opened = Callable[..., Any]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium: the one that $CHROMIUM names, or the system's."""
    reason = "playwright is not installed: make test-browser"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium here: install one, or name it in $CHROMIUM")
    with playwright.sync_playwright() as driver:
        # its own sandbox needs rights that a container does not have; the page is ours
        launched = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of runs that differ, that are equal, with names that are too long; and each outcome."""
    folder = tmp_path_factory.mktemp("pages")
    heats = {f"h{number}": 10.0**-number for number in range(1, 9)}
    names = (f"state/model/0/{name}.weight" for name in ("loss", *heats))
    repeat = repeat_apart(3, *names)
    measured = replace(sources(24, apart_from=3), distance=distance_of(**heats))
    apart = NONDETERMINISTIC.model_copy(update={"repeat": repeat})
    texts = {
        "differs": page_html(apart, LINKS, sources=measured),
        "equal": page_html(REPRODUCED, LINKS, sources=sources(24)),
        "long": page_html(
            apart.model_copy(
                update={"series": (apart.series[0].model_copy(update={"name": LONG_NAME}),)}
            ),
            LINKS,
            sources=sources(24, apart_from=3, name=LONG_NAME),
        ),
    }
    links = replace(LINKS, history=HISTORY)
    texts |= {
        name: page_html(verdict, links, sources=SOURCES[name]) for name, verdict in CASES.items()
    }
    texts["diff"] = difference_page(difference_of(60, left=(NOTE,), right=(NOTE,)))
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, "utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Iterator[Opened]:  # noqa: ANN401 - playwright is not installed where types are checked
    """Opens a page by its name; what it asked for and complained of is in `asked` and `said`."""
    contexts = []

    def open_page(name: str = "differs", *, width: int = 1000, scheme: str = "light") -> Any:  # noqa: ANN401 - as above
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.asked, page.said = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.goto(pages[name].as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
