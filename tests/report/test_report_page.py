"""The HTML page: nothing from outside, nothing that runs, nothing that text can break."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from each_row import each_row
from hypothesis import given
from page_cases import baseline_entry, distance_of, repeat_apart, sources
from page_outcomes import SOURCES
from page_reader import Page
from pydantic import ValidationError
from report_cases import LINKS, SERIES, delta
from report_hostile import HOSTILE, poisoned
from report_outcomes import BROKEN_SERIES, CASES, CODE_DRIFT, NONDETERMINISTIC, REPRODUCED

from gate.evidence.run_evidence import DeviceFacts, RunEvidence, TensorDigest
from gate.report.assembly import ReportLinks
from gate.report.page.page import PAGE_BYTES, page_html
from gate.report.page.run_charts import MetricPicture, metric_picture
from gate.verdict.verdict import Finding, SeriesSummary, Severity

FREE_OF = {"script", "link", "img", "iframe", "object", "embed", "form", "base"}


@each_row("name", CASES)
def test_a_page_is_well_formed_and_stands_alone(name: str) -> None:
    page = Page(page_html(CASES[name], LINKS, sources=sources(apart_from=3)))
    assert not FREE_OF & {tag for tag, _ in page.tags}
    addresses = [attrs["href"] or "" for tag, attrs in page.tags if tag == "a"]
    assert [one for one in addresses if not one.startswith("#")] == [LINKS.run_url]
    assert page.count("h1") == 1


def test_every_link_inside_the_page_leads_somewhere_and_no_id_comes_twice() -> None:
    page = Page(
        page_html(
            NONDETERMINISTIC.model_copy(update={"series": SERIES}),
            LINKS,
            sources=sources(apart_from=3),
        )
    )
    ids = [attrs["id"] or "" for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    named = {
        name.removeprefix("#")
        for tag, attrs in page.tags
        for key in ("href", "aria-labelledby", "aria-describedby")
        if (name := attrs.get(key)) and (tag != "a" or name.startswith("#"))
    }
    assert named <= set(ids)


def test_every_table_calls_the_state_of_an_optimizer_by_its_parameter() -> None:
    leaves = [f"state{rank}/optimizer/0/state/3/exp_avg" for rank in ("", ".rank1")]
    names = {
        leaf.removesuffix("/exp_avg"): f"{leaf.partition('/')[0]}/model/0/head.weight"
        for leaf in leaves
    }
    shown = sources(apart_from=3)
    tensors = tuple(
        TensorDigest(name=leaf, dtype="F32", shape=(2,), sha256="a" * 64) for leaf in leaves
    )
    first = shown.runs[0]
    state = first.checkpoint.model_copy(update={"tensors": tensors})
    first = first.model_copy(update={"parameter_names": names, "checkpoint": state})
    verdict = NONDETERMINISTIC.model_copy(update={"repeat": repeat_apart(3, *leaves)})
    page = page_html(verdict, LINKS, sources=replace(shown, runs=(first, *shown.runs[1:])))
    for leaf in leaves:
        assert f"<td><code>{leaf}</code></td>" not in page
        # in the list of what differs, and in the table of the whole state
        assert page.count(f"<td><code>{leaf} (head.weight)</code></td>") == 2


def test_a_traceback_keeps_its_indentation_and_shows_as_itself() -> None:
    lines = ("Traceback (most recent call last):", '  File "train.py", line 3', "    <b>x</b>")
    broken = CASES["error"].model_copy(update={"fault_details": lines})
    page = page_html(broken, LINKS)
    shown = (
        "Traceback (most recent call last):\n"
        "  File &#34;train.py&#34;, line 3\n"
        "    &lt;b&gt;x&lt;/b&gt;"
    )
    assert f"<pre><code>{shown}\n</code></pre>" in page


def test_each_gpu_of_each_process_is_shown() -> None:
    shown = sources()
    device = DeviceFacts(
        index=1,
        name="NVIDIA <b>H100</b> MIG 1g.10gb",
        capability="9.0",
        multiprocessors=16,
        memory_bytes=10 * 1024**3,
        slice="1g.10gb",
        used=True,
    )
    first = shown.runs[0]
    processes = (first.processes[0].model_copy(update={"devices": (device,), "rank": 3}),)
    runs = (first.model_copy(update={"processes": processes}), *shown.runs[1:])
    page = page_html(REPRODUCED, LINKS, sources=replace(shown, runs=runs))
    assert "GPUs as attested by the training (1)" in page
    assert "NVIDIA &lt;b&gt;H100&lt;/b&gt; MIG 1g.10gb" in page
    assert '<td class="number">10.0</td>' in page
    assert "GPUs as attested" not in page_html(REPRODUCED, LINKS, sources=shown)


def test_every_picture_has_a_title_and_words() -> None:
    page = Page(
        page_html(
            NONDETERMINISTIC.model_copy(update={"series": SERIES}),
            LINKS,
            sources=sources(apart_from=3),
        )
    )
    pictures = [attrs for tag, attrs in page.tags if tag == "svg" and "aria-hidden" not in attrs]
    assert len(pictures) == 6
    assert all(one["role"] == "img" and one["aria-labelledby"] for one in pictures)
    # one of the titles is the page's own
    assert page.count("title") - 1 == page.count("desc") == len(pictures)


def test_every_heading_of_a_table_says_what_it_heads() -> None:
    page = Page(
        page_html(
            NONDETERMINISTIC.model_copy(update={"series": SERIES}),
            LINKS,
            sources=sources(apart_from=3),
        )
    )
    assert {attrs.get("scope") for tag, attrs in page.tags if tag == "th"} == {"col", "row"}


def test_the_page_says_verdict_cause_and_next_command() -> None:
    text = Page(page_html(CODE_DRIFT, LINKS, gate_id="lm")).text
    assert "❌ repro-gate failed: this change moves the result" in text
    assert "Loss at step 7: 1.338 instead of 1.336 (+0.2 %, later" in text
    assert all(
        " ".join(step.text.split()) in " ".join(text.split()) for step in CODE_DRIFT.next_steps
    )
    assert "gate lm" in text


def test_answers_stand_first_then_pictures_then_tables() -> None:
    page = Page(page_html(NONDETERMINISTIC, LINKS, sources=SOURCES["nondeterministic"]))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    wanted = ["warnings", "next", "curves", "differences", "glance", "diagnosis", "details"]
    assert [one for one in ids if one in wanted] == wanted
    entries = [attrs["href"] for tag, attrs in page.tags if tag == "a"][2:]
    assert entries[:5] == ["#next", "#curves", "#differences", "#glance", "#diagnosis"]


@each_row("name", CASES)
def test_equal_runs_are_one_curve_in_every_page(name: str) -> None:
    picture = metric_picture_of(name)
    names = [line.name for line in picture.curves.lines] if picture else []
    assert len(names) == len(set(names))
    if name not in {"nondeterministic", "error", "one-run", "unaffected"}:
        assert names[0] == "this change"


def metric_picture_of(name: str) -> MetricPicture | None:
    series = CASES[name].main_series
    return metric_picture(series, SOURCES[name], ()) if series else None


def test_a_remedy_that_a_next_step_gives_is_not_said_twice() -> None:
    diagnosis = CODE_DRIFT.diagnosis
    assert diagnosis is not None
    words = " ".join(Page(page_html(CODE_DRIFT, LINKS)).text.split())
    assert words.casefold().count(diagnosis.remedy.casefold().rstrip(".")) == 1
    assert "What differs first" in words


@each_row("name", [name for name in CASES if SOURCES[name].runs])
def test_every_axis_has_a_title(name: str) -> None:
    page = Page(page_html(CASES[name], LINKS, sources=SOURCES[name]))
    pictures = sum("aria-labelledby" in attrs for tag, attrs in page.tags if tag == "svg")
    across = page.text.count("optimizer step\n") + page.text.count("ms per step\n")
    assert across == pictures
    assert all(f"\n{title}\n" in page.text for title in ("loss", "file.accuracy", "GiB"))


def test_the_main_metric_is_seen_and_the_others_are_folded() -> None:
    page = page_html(REPRODUCED, LINKS, sources=SOURCES["reproduced"])
    curves = page[page.index('id="curves"') : page.index('id="times"')]
    assert curves.index("<code>loss</code>") < curves.index("1 more metric<")
    assert curves.index("1 more metric<") < curves.index("<code>file.accuracy</code>")


def test_the_page_follows_the_readers_choice_of_colours_on_a_screen_only() -> None:
    assert "@media screen and (prefers-color-scheme: dark)" in page_html(REPRODUCED, LINKS)


def test_a_page_without_command_address_and_series_leaves_them_out() -> None:
    page = Page(page_html(REPRODUCED.model_copy(update={"series": ()}), ReportLinks()))
    assert {"svg", "pre", "figure"} & {tag for tag, _ in page.tags} == set()
    assert [attrs["href"] for tag, attrs in page.tags if tag == "a"] == [
        "#content", "#glance", "#details",
    ]  # fmt: skip


def test_without_evidence_the_verdicts_own_curve_is_drawn_and_its_holes_are_told() -> None:
    verdict = REPRODUCED.model_copy(update={"series": (BROKEN_SERIES,)})
    page = Page(page_html(verdict, LINKS))
    assert page.classes("gaps") == 1
    assert "strict-1 has 2 values that are not finite, marked above the curve." in page.text


def test_more_curves_than_twelve_are_counted() -> None:
    page = Page(page_html(REPRODUCED.model_copy(update={"series": SERIES * 7}), LINKS))
    assert page.count("figure") == 12
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


def test_runs_that_part_are_shown_where_how_far_and_on_what() -> None:
    verdict = NONDETERMINISTIC.model_copy(
        update={"repeat": repeat_apart(3, "state/model/0/loss.weight")}
    )
    found = sources(apart_from=3)
    text = Page(page_html(verdict, LINKS, sources=found)).text
    assert "step 3: strict-2 ≠ strict-1" in text
    assert "Layers: strict-2 against strict-1, at the end" in text
    assert "Only digests of a side are kept: repro-gate diff of two packages gives the" in text
    assert "gradients: differs at 4 of 6 steps observed, first at step 3" in text
    assert "Knobs that the script overrode (3)" in text


def test_strict_runs_that_were_measured_are_a_map_of_numbers_with_a_legend() -> None:
    repeat = repeat_apart(3, "state/model/0/loss.weight")
    verdict = NONDETERMINISTIC.model_copy(update={"repeat": repeat})
    found = replace(sources(apart_from=3), distance=distance_of(loss=0.0042))
    page = page_html(verdict, LINKS, sources=found)
    text = Page(page).text
    assert "only digests are kept" not in text
    assert "A number is the relative L2 distance" in text
    assert "below 1e-7 1e-7 to 1e-6" in " ".join(text.split())
    assert '<td class="heat5">4.2e-03</td>' in page
    assert "own checkpoint." in text
    assert '<li class="heat6">1e-2 and more</li>' in page


def test_a_baselines_curve_stands_beside_the_runs() -> None:
    found = sources()
    drawn = type(found)(runs=found.runs, entry=baseline_entry())
    text = Page(page_html(DRAWN, LINKS, sources=drawn)).text
    assert "equal to baseline, bit for bit" in text


@pytest.mark.parametrize("steps", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_long_trainings_make_a_page_below_two_megabytes(steps: int) -> None:
    found = sources(steps, apart_from=steps // 2)
    summary = SeriesSummary(name="loss", source="harness", steps=(), values=(), last_decimal="0.7")
    repeat = repeat_apart(steps // 2)
    verdict = NONDETERMINISTIC.model_copy(update={"repeat": repeat, "series": (summary,)})
    page = page_html(verdict, LINKS, sources=found)
    assert f"{steps:,} points are too many to draw" in page
    assert len(page.encode()) < PAGE_BYTES


def test_a_page_that_is_too_long_shows_less_and_counts_it() -> None:
    assert CODE_DRIFT.baseline is not None
    metrics = tuple(delta(step, 0.1, within=False, metric="損" * 120) for step in range(1, 2001))
    many = CODE_DRIFT.baseline.model_copy(update={"metrics": metrics})
    page = page_html(
        CODE_DRIFT.model_copy(update={"baseline": many, "repeat": many, "base_run": many}), LINKS
    )
    assert len(page.encode()) < PAGE_BYTES
    assert "and 1,500 more" in page


def test_figures_that_no_machine_has_are_no_evidence() -> None:
    run = sources().runs[0]
    for field in ("resident_bytes", "device_bytes", "step"):
        told = run.model_dump(mode="json")
        told["memory"][0][field] = 10**400
        with pytest.raises(ValidationError, match="less than or equal to"):
            RunEvidence.model_validate_json(json.dumps(told))


DRAWN = REPRODUCED.model_copy(update={"series": SERIES})
HARMLESS = Page(page_html(poisoned(CODE_DRIFT, "x"), LINKS))
HARMLESS_RUNS = Page(page_html(poisoned(CODE_DRIFT, "x"), LINKS, sources=sources(name="x")))


@given(HOSTILE)
def test_hostile_text_changes_no_tag(text: str) -> None:
    hostile = Page(page_html(poisoned(CODE_DRIFT, f"x{text}"), LINKS))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in HARMLESS.tags]
    assert not {"\u202e", "\u200b", "\x1b", "\x00"} & set(hostile.text)


def _kinds(page: Page) -> set[tuple[str, frozenset[str]]]:
    """Tags with the names of their attributes; a name with a slash has a map of its own."""
    return {(tag, frozenset(attrs)) for tag, attrs in page.tags}


@given(HOSTILE)
def test_hostile_text_of_the_runs_brings_no_tag_and_no_attribute(text: str) -> None:
    name = f"x{text}"[:100]
    page = Page(page_html(poisoned(CODE_DRIFT, name), LINKS, sources=sources(name=name)))
    assert _kinds(page) <= _kinds(HARMLESS_RUNS)
    assert not {"\u202e", "\u200b", "\x1b", "\x00"} & set(page.text)
