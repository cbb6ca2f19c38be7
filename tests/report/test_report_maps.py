"""Where two sides differ: layers at the end, fingerprints over the steps; and the full tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from each_row import each_row
from evidence_cases import evidence_set_of
from page_cases import baseline_entry, distance_of, repeat_apart, sources
from page_outcomes import SOURCES
from report_cases import against_baseline, tensor
from report_outcomes import CODE_DRIFT, NONDETERMINISTIC, REPRODUCED

from gate.baseline.entry import Baseline
from gate.comparison.differences import TensorChange
from gate.report.layout import Limits
from gate.report.page.maps import DifferenceMap, difference_map, fingerprint_map, taken_apart
from gate.report.page.page_sources import PageSources, page_sources
from gate.report.page.page_tables import page_sections
from gate.verdict.verdict import Verdict

WEIGHT, BIAS = "state/model/0/loss.weight", "state/model/0/head.bias"
LIMITS = Limits(deltas=50, rows=50)


def apart(*names: str) -> Verdict:
    return NONDETERMINISTIC.model_copy(update={"repeat": repeat_apart(3, *names)})


def cells(found: DifferenceMap | None) -> dict[tuple[str, str], tuple[str, str]]:
    assert found is not None
    return {
        (layer, column): (cell.kind, cell.text)
        for one in found.maps
        for layer, row in one.rows
        for column, cell in zip(one.columns, row, strict=True)
    }


@each_row(
    ("name", "place"),
    [
        ("state/model/0/head.weight", ("state/model/0", "head", "weight")),
        ("state/model/0/h.0.mlp.bias", ("state/model/0", "h.0.mlp", "bias")),
        ("state/optimizer/0/state/1/exp_avg", ("state/optimizer/0/state", "1", "exp_avg")),
        ("weight", ("", "", "weight")),
        ("", ("", "", "")),
    ],
)
def test_a_name_is_part_layer_and_what(name: str, place: tuple[str, str, str]) -> None:
    assert taken_apart(name) == place


def test_a_map_shows_what_differs_and_what_does_not() -> None:
    found = difference_map(apart(WEIGHT), sources(apart_from=3))
    assert cells(found) == {
        ("head", "bias"): ("equal", "="),
        ("head", "weight"): ("none", ""),
        ("loss", "bias"): ("none", ""),
        ("loss", "weight"): ("changed", "≠"),
    }


@each_row(
    ("relative_l2", "kind", "text"),
    [
        (0.0, "heat0", "0"),
        (9.9e-8, "heat0", "9.9e-08"),
        (1e-7, "heat1", "1.0e-07"),
        (0.0042, "heat5", "4.2e-03"),
        (1e-2, "heat6", "1.0e-02"),
        (1.5, "heat6", "1.5e+00"),
        (None, "changed", "≠ NaN, ∞"),
    ],
)
def test_a_tensor_that_was_measured_says_how_far_it_is(
    relative_l2: float | None, kind: str, text: str
) -> None:
    measured = replace(sources(apart_from=3), distance=distance_of(loss=relative_l2))
    assert cells(difference_map(apart(WEIGHT), measured))["loss", "weight"] == (kind, text)


def test_a_number_for_a_tensor_that_does_not_differ_is_not_shown() -> None:
    measured = replace(sources(apart_from=3), distance=distance_of(head=0.5))
    assert cells(difference_map(apart(WEIGHT), measured))["loss", "weight"] == ("changed", "≠")
    assert cells(difference_map(apart(WEIGHT), measured))["head", "weight"] == ("none", "")


def test_the_strict_runs_numbers_are_not_the_baselines() -> None:
    compared = against_baseline(tensors=(tensor(WEIGHT),))
    drifted = CODE_DRIFT.model_copy(update={"baseline": compared})
    found = difference_map(drifted, replace(sources(), distance=distance_of(loss=0.5)))
    assert found is not None
    assert (found.heats, cells(found)["loss", "weight"]) == ((), ("changed", "≠"))


def test_every_tensor_that_was_measured_stands_in_a_table() -> None:
    measured = replace(sources(apart_from=3), distance=distance_of(loss=0.0042))
    found = page_sections(apart(WEIGHT), measured, LIMITS)[2]
    assert found.title == "How far strict-2 is from strict-1, by tensor (1)"
    assert [cell.text for cell in found.table.rows[0]] == [
        WEIGHT, "0.0042", "0.0042", "1,024", "2,048", "no",
    ]  # fmt: skip


def test_a_tensor_that_only_one_side_has_says_so() -> None:
    compared = against_baseline(tensors=(tensor(WEIGHT), tensor(BIAS, TensorChange.MISSING)))
    found = difference_map(CODE_DRIFT.model_copy(update={"baseline": compared}), sources())
    assert cells(found)["loss", "weight"] == ("changed", "≠")
    assert cells(found)["head", "bias"] == ("missing", "missing")


def test_a_tensor_of_another_type_or_shape_says_so() -> None:
    compared = against_baseline(tensors=(tensor(WEIGHT, TensorChange.RETYPED),))
    found = difference_map(CODE_DRIFT.model_copy(update={"baseline": compared}), sources())
    assert cells(found)["loss", "weight"] == ("retyped", "≠ type or shape")


def test_a_setting_of_the_optimizer_shows_both_numbers_against_a_baseline_too() -> None:
    found = difference_map(CODE_DRIFT, SOURCES["code-drift"])
    assert cells(found)["0", "lr"] == ("changed", "0.001 → 0.002")
    assert found is not None
    assert found.why_no_distances == "A baseline holds digests only"


def test_parts_that_are_equal_are_folded_and_counted() -> None:
    found = difference_map(apart(WEIGHT, "state/optimizer/0/state/0/exp_avg"), sources())
    assert found is not None
    assert [(one.title, one.folded, one.summary) for one in found.maps] == [
        ("state/model/0", False, "1 of 2 differ"),
        ("state/optimizer/0/state", False, "1 of 1 differ"),
    ]
    found = difference_map(apart("state/optimizer/0/state/0/exp_avg"), sources())
    assert found is not None
    assert [(one.folded, one.summary) for one in found.maps] == [
        (False, "1 of 1 differ"),
        (True, "all 2 equal"),
    ]


@pytest.mark.parametrize(
    ("leaf", "shown"),
    [("state/model/0/head.bias", "head.bias"), ("state/model/1/head.bias", "1/head.bias")],
)
def test_state_of_an_optimizer_is_called_by_its_parameter(leaf: str, shown: str) -> None:
    known = sources()
    first = known.runs[0].model_copy(
        update={
            "parameter_names": {
                "state/optimizer/0/state/0": leaf,
                "state/optimizer/0/state/1": "state/model/0/<i>",
            }
        }
    )
    names = (f"state/optimizer/0/state/{number}/exp_avg" for number in range(3))
    found = difference_map(apart(*names), replace(known, runs=(first, *known.runs[1:])))
    assert found is not None
    other = "<i>" if shown == "head.bias" else "0/<i>"
    assert [layer for layer, _ in found.maps[0].rows] == [shown, other, "2"]


def test_of_long_parts_that_differ_the_first_is_open() -> None:
    names = [f"{part}/h.{number}.w" for part in ("a", "b") for number in range(20)]
    found = difference_map(apart(*names), PageSources())
    assert found is not None
    assert [one.folded for one in found.maps] == [False, True]


def test_the_entry_of_a_page_is_the_one_that_was_used() -> None:
    used = baseline_entry()
    other = used.model_copy(update={"commit": "b" * 40})
    runs = evidence_set_of(*sources().runs)
    found = page_sources(REPRODUCED, runs, Baseline(entries=(other, used)))
    assert found == PageSources(runs=runs.runs, entry=used)
    assert page_sources(REPRODUCED, runs, None).entry is None


def test_equal_runs_have_no_map() -> None:
    assert difference_map(REPRODUCED, sources()) is None
    assert fingerprint_map(REPRODUCED, sources()) is None


def test_layers_stand_in_the_order_of_their_numbers() -> None:
    names = [f"model/h.{number}.w" for number in (10, 9, 1)]
    found = difference_map(apart(*names), PageSources())
    assert found is not None
    assert [layer for layer, _ in found.maps[0].rows] == ["h.1", "h.9", "h.10"]


def test_layers_that_do_not_fit_are_counted_and_those_that_differ_come_first() -> None:
    names = [f"model/layer{number}.weight" for number in range(200)]
    found = difference_map(apart(*names), PageSources())
    assert found is not None
    assert (len(found.maps[0].rows), found.maps[0].omitted) == (150, 50)


def test_fingerprints_show_where_they_are_equal_differ_or_were_not_observed() -> None:
    found = fingerprint_map(apart(WEIGHT), sources(apart_from=4))
    assert found is not None
    rows = {row.name: row for row in found.rows}
    assert list(rows) == ["random.torch", "gradients", "parameters"]
    assert rows["random.torch"].words == "random.torch: equal (3 steps observed)"
    assert [bar.kind for bar in rows["random.torch"].bars] == ["equal"] * 3
    assert [bar.kind for bar in rows["gradients"].bars] == ["equal", "differs"]
    assert rows["gradients"].words == (
        "gradients: differs at 3 of 6 steps observed, first at step 4"
    )


def test_of_many_steps_one_that_differs_does_not_vanish() -> None:
    found = fingerprint_map(apart(WEIGHT), sources(10_000, apart_from=10_000))
    assert found is not None
    gradients = next(row for row in found.rows if row.name == "gradients")
    assert [bar.kind for bar in gradients.bars] == ["equal", "differs"]


def test_a_baseline_has_the_parameters_alone() -> None:
    both = PageSources(runs=sources().runs, entry=baseline_entry(apart_from=2))
    found = fingerprint_map(CODE_DRIFT, both)
    assert found is not None
    assert [row.name for row in found.rows] == ["parameters"]


def test_a_comparison_without_its_evidence_has_no_fingerprints() -> None:
    assert fingerprint_map(apart(WEIGHT), PageSources()) is None


def test_the_page_has_a_table_for_all_that_the_runs_left() -> None:
    found = page_sections(apart(WEIGHT), sources(apart_from=3), LIMITS)
    assert [section.title for section in found] == [
        "What was measured (3)",
        "Metrics (3)",
        "Training state of strict-1 (2)",
        "Environment, side by side (6)",
        "Knobs as attested by the training (2)",
        "Knobs that the script overrode (3)",
        "Uninstrumented subprocesses (3)",
        "Notes on the runs (9)",
    ]
    assert page_sections(REPRODUCED, PageSources(), LIMITS) == ()


def test_an_environment_that_moved_says_no() -> None:
    both = PageSources(runs=sources().runs, entry=baseline_entry())
    found = page_sections(REPRODUCED, both, LIMITS)[3].table
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in found.rows}
    assert rows["torch"] == ["NO", "2.12.1", "2.13.0", "2.13.0", "2.13.0"]
    assert rows["device"][0] == "yes"


def test_a_tensor_says_on_which_side_it_is_another() -> None:
    found = page_sections(apart(WEIGHT), sources(), LIMITS)[2].table
    assert found.headings[4:] == ("strict-2 and strict-1", "strict-1 and baseline")
    assert [(row[0].text, row[4].text) for row in found.rows] == [
        (BIAS, "equal"), (WEIGHT, "changed"),
    ]  # fmt: skip
