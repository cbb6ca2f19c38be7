"""The page in a real browser: quiet, alone, reachable by keyboard, legible everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_outcomes import CASES

pytestmark = pytest.mark.browser

Opened = Callable[..., Any]

PAGES = ("differs", "equal", "long")
OUTCOMES = (*PAGES, *CASES)
# pixels at a width of 1,280, of everything above the folded details
HIGHEST = 3000
SCHEMES = ("light", "dark")
CUT_IN_A_PICTURE = """
() => [...document.querySelectorAll('svg text')].filter(text => {
  const box = text.getBBox(), frame = text.closest('svg').viewBox.baseVal;
  return box.width && (box.x < frame.x - 1 || box.x + box.width > frame.x + frame.width + 1);
}).map(text => text.textContent)
"""
# relative luminance and contrast as WCAG 2 defines them
CONTRASTS = """
() => {
  const parts = text => text.match(/[0-9.]+/g).map(Number);
  const over = (top, under) => {
    const [r, g, b, a = 1] = top;
    return [r, g, b].map((value, place) => value * a + under[place] * (1 - a));
  };
  const light = colour => {
    const [r, g, b] = colour.map(v => v / 255).map(
      v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = element => {
    const above = element.parentElement ? ground(element.parentElement) : [255, 255, 255];
    return over(parts(getComputedStyle(element).backgroundColor), above);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const told = walker.currentNode.data.trim().slice(0, 40);
    if (!told || ["title", "desc"].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    const svg = element instanceof SVGElement;
    const under = ground(svg ? element.closest("figure") : element);
    const text = over(parts(svg ? style.fill : style.color), under);
    const [one, other] = [light(text), light(under)].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)}: ${told}`);
  }
  return found;
}
"""
FOCUSED = """
() => {
  const on = document.activeElement;
  const style = getComputedStyle(on);
  return {
    place: [...document.querySelectorAll("summary")].indexOf(on),
    text: on.textContent.trim(),
    outline: style.outlineStyle,
    seen: on.getBoundingClientRect().right > 0,
  };
}
"""


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", [*OUTCOMES, "diff"])
def test_it_fits_is_legible_and_asks_and_complains_of_nothing(
    opened: Opened, pages: dict[str, Path], name: str, scheme: str, width: int
) -> None:
    page = opened(name, width=width, scheme=scheme)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRASTS) == []
    assert page.asked == [pages[name].as_uri()]
    assert page.said == []


@pytest.mark.parametrize("name", [*OUTCOMES, "diff"])
def test_it_fits_the_narrowest_phone(opened: Opened, name: str) -> None:
    page = opened(name, width=320)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    assert page.evaluate(CUT_IN_A_PICTURE) == []


@pytest.mark.parametrize("width", [400, 1280])
def test_a_run_keeps_its_label_in_one_line(opened: Opened, width: int) -> None:
    page = opened("environment-drift", width=width)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    labels = page.get_by_role("region", name="Metrics (14)").locator("td:nth-child(2) code")
    heights = labels.evaluate_all("all => all.map(one => one.getClientRects().length)")
    assert set(heights) == {1}


@pytest.mark.parametrize("name", OUTCOMES)
def test_what_is_not_folded_is_at_most_three_screens(opened: Opened, name: str) -> None:
    page = opened(name, width=1280)
    assert page.locator("#details").evaluate("one => one.offsetTop") <= HIGHEST
    assert page.locator("#details ~ details[open]").count() == 0


def test_two_checkpoints_fit_and_names_stay_in_sight_while_figures_scroll(opened: Opened) -> None:
    page = opened("diff", width=1280)
    assert page.evaluate("document.documentElement.scrollHeight") <= HIGHEST
    region = page.get_by_role("region", name="Tensors whose numbers differ")
    name = region.locator("tbody td").first
    before = name.bounding_box()
    region.evaluate("one => one.scrollTo(one.scrollWidth, 0)")
    assert region.evaluate("one => one.scrollLeft") > 0
    assert name.bounding_box() == before


def test_what_is_wider_than_the_screen_has_a_shadow_at_the_side_that_is_hidden(
    opened: Opened,
) -> None:
    page = opened("within-tolerance", width=380)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    region = page.get_by_role("region", name="Metrics (10)")
    assert region.evaluate("one => one.scrollWidth > one.clientWidth")
    at_first = region.screenshot()
    region.evaluate("one => one.scrollTo(one.scrollWidth, 0)")
    assert region.screenshot() != at_first
    grounds = region.evaluate("one => getComputedStyle(one).backgroundAttachment")
    assert grounds.count("local") == grounds.count("scroll") == 2


def test_the_keyboard_reaches_every_fold_in_order_and_shows_where_it_is(opened: Opened) -> None:
    page = opened()
    folds = page.locator("summary").count()
    reached = []
    for _ in range(200):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        assert focused["outline"] != "none", focused["text"]
        if focused["place"] >= 0:
            reached.append(focused["place"])
        if len(reached) == folds:
            break
    assert reached == list(range(folds))


def test_the_first_stop_is_a_way_past_the_contents(opened: Opened) -> None:
    page = opened()
    page.keyboard.press("Tab")
    focused = page.evaluate(FOCUSED)
    assert (focused["text"], focused["seen"]) == ("Skip the contents", True)
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"


def test_a_fold_opens_with_the_keyboard(opened: Opened) -> None:
    page = opened("equal")
    fold = page.locator("details").first
    assert fold.get_attribute("open") is None
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    assert fold.get_attribute("open") is not None
    assert fold.locator("table").is_visible()


def test_dark_and_light_both_apply(opened: Opened) -> None:
    grounds = [
        opened(scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in SCHEMES
    ]
    assert grounds == ["rgb(255, 255, 255)", "rgb(13, 17, 23)"]


def test_paper_is_white_and_shows_what_is_folded(opened: Opened) -> None:
    page = opened(scheme="dark")
    folded = page.locator("details:not([open]) table").first
    assert not folded.is_visible()
    page.emulate_media(media="print", color_scheme="dark")
    assert folded.is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_pictures_have_names_for_those_who_cannot_see_them(opened: Opened) -> None:
    page = opened()
    assert page.get_by_role("region", name="What was measured (3)").count() == 0
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.get_by_role("img", name="loss over the steps", exact=True).count() == 1
    assert page.get_by_role("img", name="Step times of each run").count() == 1
    assert page.get_by_role("region", name="At a glance").count() == 1
