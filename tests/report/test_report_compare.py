"""Two compared commits on a terminal of 80 columns and as a page; names come from the training."""

from __future__ import annotations

import io
import json

import pytest
from compare_cases import MOVED, compared_of, request_of, run_of
from evidence_cases import LOSSES
from hypothesis import given
from page_reader import Page
from report_hostile import HOSTILE
from rich.console import Console

from gate.commands.measure import compare_view
from gate.comparison.differences import OptimizerSettingChange
from gate.comparison.measurements import ComparedCommits
from gate.pipelines.compare_commits import Compared
from gate.report.measurement_sections import compared_headline, compared_sentences
from gate.report.page.page import PAGE_BYTES, compare_page
from gate.settings.policy_change import PolicyChange
from gate.training.runs import Commit, RunMode

KEPT = frozenset((
    "schema_version", "closeness", "kind", "mode", "state", "created_at", "settings_digest",
    "training_digest",
))  # fmt: skip
SLOW: dict[str, object] = {"step_seconds": (0.2, 0.25, 0.2), "values": MOVED, "weights": b"others"}
MANY = 2_000


def full() -> Compared:
    """Commits that differ in everything that is shown."""
    found = compared_of(head=SLOW, rounds=4)
    change = PolicyChange(file="repro-gate.yml", what="cost.rounds", before="3", after="5")
    rate = OptimizerSettingChange(optimizer=0, name="lr", before="0.1", after="0.2")
    document = found.document.model_copy(
        update={"settings_changes": (change,), "optimizer_settings": (rate,), "notes": ("a note",)}
    )
    return Compared(document=document, runs=found.runs)


def shown(document: ComparedCommits, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(compare_view(document), crop=False)
    written: str = console.file.getvalue()  # type: ignore[attr-defined] # it is the one above
    return written


def test_equal_commits_say_so_and_what_that_rests_on() -> None:
    document = compared_of().document
    assert compared_headline(document) == "Base and head are equal bit for bit."
    assert compared_sentences(document) == (
        "3 steps, 3 values and 2 tensors, in 2 strict runs of each.",
    )


def test_commits_apart_say_where_first_and_how_much() -> None:
    document = compared_of(head={"values": MOVED, "weights": b"others"}).document
    assert compared_headline(document) == "Base and head are apart."
    assert compared_sentences(document) == (
        "1 of 3 values and 1 of 2 tensors differ; first: loss at step 2.",
    )


def test_within_tolerance_is_said_as_that() -> None:
    loose = {"tolerances": ({"metric": "loss", "relative": 0.01},)}
    document = compared_of(head={"values": MOVED}, request=request_of(compare=loose)).document
    assert compared_headline(document) == "Base and head are within tolerance."
    assert "0.00225 (0.1 %), within" in shown(document, 120)


def test_other_steps_are_said_first() -> None:
    document = compared_of(base={"values": LOSSES[:2]}).document
    assert compared_headline(document) == "Base and head are not comparable in every number."
    assert compared_sentences(document)[0].startswith("Base took 2 steps, head 3 steps; ")


def test_a_commit_that_does_not_repeat_is_named() -> None:
    other = run_of(Commit.HEAD, RunMode.STRICT, 2, values=MOVED)
    document = compared_of(other=other).document
    assert compared_sentences(document)[1:] == (
        "The head is not repeatable: 2 strict runs gave 2 results, so a difference may be chance.",
    )


def test_the_terminal_shows_numbers_speed_and_settings_in_80_columns() -> None:
    text = shown(full().document)
    assert max(map(len, text.splitlines())) <= 80
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "loss 2.125 2.125 2 0.00225 (0.1 %) 2" in rows
    assert any(row.startswith("Step, typical 100 ms 200 ms +100.0 % [+") for row in rows)
    assert "Steps/s 10 4.62" in rows
    assert "cost.rounds 3 5" in rows
    assert "lr of optimizer 0 0.1 0.2" in rows
    assert "A note." in rows
    assert "base main (bbbbbbb), head aaaaaaa" in rows


def test_the_page_shows_both_commits_and_is_well_formed() -> None:
    found = full()
    page = Page(compare_page(found.document, found.runs))
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert page.count("h1") == 1
    assert "step 2: head ≠ base" in page.text
    assert "base-1, strict-1" not in page.text
    for text in ("base strict", "head default", repr(MOVED[1]), "weight", "Seed given to both"):
        assert text in page.text
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_a_page_of_many_metrics_stays_small() -> None:
    long = tuple(float(step) for step in range(MANY))
    found = compared_of({"values": long, "step_seconds": (0.1,) * MANY}, {"values": long[::-1]})
    runs = []
    for run in found.runs:
        (loss,) = run.metrics
        many = tuple(loss.model_copy(update={"name": f"{number:0200}"}) for number in range(60))
        runs.append(run.model_copy(update={"metrics": many}))
    (metric,) = found.document.metrics
    metrics = tuple(metric.model_copy(update={"name": f"{number:0200}"}) for number in range(60))
    page = compare_page(found.document.model_copy(update={"metrics": metrics}), tuple(runs))
    assert len(page.encode()) <= PAGE_BYTES
    assert "and 48 more" in page


def poisoned(document: ComparedCommits, text: str) -> ComparedCommits:
    """The same with `text` wherever a text is free."""

    def poison(value: object) -> object:
        if isinstance(value, str):
            return text
        if isinstance(value, list):
            return [poison(item) for item in value]
        if isinstance(value, dict):
            sides = {"commit"} if value.get("commit") in ("head", "base") else set()
            return {
                key: item if key in KEPT | sides else poison(item) for key, item in value.items()
            }
        return value

    data = json.loads(document.model_dump_json())
    # the curves are drawn of the metrics that the runs have
    data["metrics"], metrics = [], data["metrics"]
    found = ComparedCommits.model_validate_json(json.dumps(poison(data)))
    names = [text, *(metric["name"] for metric in metrics[1:])]
    kept = [metric | {"name": name} for metric, name in zip(metrics, names, strict=True)]
    return ComparedCommits.model_validate_json(
        json.dumps(json.loads(found.model_dump_json()) | {"metrics": kept})
    )


def hostile(text: str) -> tuple[str, str]:
    """The page and the terminal's text where the training chose every name."""
    found, name = full(), f"x{text}"[:150]
    runs = tuple(
        run.model_copy(update={"metrics": (run.metrics[0].model_copy(update={"name": name}),)})
        for run in found.runs
    )
    document = poisoned(found.document, name)
    return compare_page(document, runs), shown(document)


HARMLESS = Page(hostile("")[0])


@given(HOSTILE)
def test_hostile_names_bring_no_tag_no_attribute_and_no_control_character(text: str) -> None:
    written, terminal = hostile(text)
    page = Page(written)
    kinds = {(tag, frozenset(attrs)) for tag, attrs in page.tags}
    assert kinds <= {(tag, frozenset(attrs)) for tag, attrs in HARMLESS.tags}
    assert not {"\u202e", "\u200b", "\x1b", "\x00"} & set(page.text)
    assert not {"\u202e", "\x1b", "\x00"} & set(terminal)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_row_is_cut_off(width: int) -> None:
    assert "+100.0" in shown(full().document, width)
