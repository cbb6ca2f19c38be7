"""The answers to the questions, and the details that stand behind them."""

from __future__ import annotations

from each_row import each_row
from report_cases import (
    COST,
    SELF_TEST,
    TOO_SHORT,
    WITHIN_NOISE,
    against_baseline,
    comparison,
    run,
    tensor,
)
from report_outcomes import (
    CASES,
    CODE_DRIFT,
    ENVIRONMENT_DRIFT,
    ENVIRONMENT_MOVED,
    ERROR,
    NO_BASELINE,
    NOT_COMPARABLE,
    PLAIN,
    REPRODUCED,
    WITHIN_TOLERANCE,
    both,
    judged,
)

from gate.baseline.acceptance import RecordedPrice
from gate.comparison.differences import (
    EnvironmentChange,
    KnobCost,
    KnobCosts,
    SelfTestProbe,
    TensorChange,
)
from gate.report.assembly import ReportLinks, report_of
from gate.report.layout import Limits, Table
from gate.report.wording import moved_words
from gate.training.environment import Environment
from gate.training.runs import RunMode
from gate.verdict.verdict import Answer, Answers, NotRun, Outcome, RunPurpose, Verdict, WhyNotRun

LIMITS = Limits(deltas=10, rows=3)


def answers(verdict: Verdict, **changes: object) -> dict[str, str]:
    report = report_of(verdict.model_copy(update=changes), ReportLinks(), LIMITS)
    return {question.text: answer.text for question, answer in report.overview.rows}


def section(verdict: Verdict, title: str) -> Table:
    report = report_of(verdict, ReportLinks(), LIMITS)
    (found,) = (one.table for one in report.sections if one.title.startswith(title))
    return found


def test_nothing_compared_is_not_equal() -> None:
    nothing = comparison(compared_points=0, compared_tensors=0)
    said = answers(REPRODUCED, repeat=nothing, answers=Answers(repeat=Answer.OUTSIDE))
    assert said["Two runs of this commit"] == "❌ differ: nothing could be compared"


def test_a_question_that_was_not_asked_says_so() -> None:
    assert answers(ERROR) == {
        "Two runs of this commit": "⚪ not compared",
        "Against the baseline": "⚪ not compared",
    }
    assert answers(NO_BASELINE)["Against the baseline"] == "⚪ none for this kind of machine"


def test_tolerance_is_no_equality() -> None:
    assert answers(WITHIN_TOLERANCE)["Against the baseline"].startswith(
        "✅ metrics within tolerance: loss from step 5 (39 of 48 values"
    )


def test_another_number_of_steps_is_told_first() -> None:
    assert answers(NOT_COMPARABLE)["Against the baseline"] == (
        "❌ not comparable: 24 steps instead of 18 (0 of 36 values, 0 of 12 tensors)"
    )


@each_row("verdict", CASES.values(), ids=list(CASES))
def test_green_marks_stand_only_where_the_decision_is_green(verdict: Verdict) -> None:
    said = answers(verdict)
    marks = {
        "Two runs of this commit": verdict.answers.repeat,
        "Against the baseline": verdict.answers.baseline,
        "Against the base commit, run here": verdict.answers.base_run,
    }
    for question, answer in marks.items():
        # that the base agrees does not excuse new packages, which it ran with too
        decides = question != "Against the base commit, run here" or verdict.passes
        # an answer without a run compares what the training gets
        files = question == "Against the baseline" and verdict.unaffected is not None
        green = (answer.good or files) and decides and question in said
        assert ("✅" in said.get(question, "")) == green
    if not verdict.passes and verdict.outcome is not Outcome.ERROR:
        assert any("❌" in text or "⚪" in text for text in said.values())


def test_equal_metrics_and_other_weights_are_not_within_a_tolerance_that_nobody_gave() -> None:
    """The last step alone moved the weights: every loss is equal, and the verdict is a failure."""
    verdict = judged(both(first="parameters", since=24), against=PLAIN)
    assert (verdict.outcome, verdict.passes) == (Outcome.CODE_DRIFT, False)
    assert answers(verdict)["Against the baseline"] == (
        "❌ differs: parameters from step 24 (0 of 48 values, 11 of 12 tensors)"
    )


def test_a_difference_without_a_size_has_no_worst() -> None:
    assert CODE_DRIFT.baseline is not None
    unsized = {"observed": "nan", "relative": None, "ulp": None}
    nan = CODE_DRIFT.baseline.metrics[0].model_copy(update=unsized)
    words = answers(CODE_DRIFT, baseline=against_baseline(metrics=(nan,)))["Against the baseline"]
    assert words == "❌ differs: 1 of 48 values, 0 of 12 tensors"
    table = section(
        CODE_DRIFT.model_copy(update={"baseline": against_baseline(metrics=(nan,))}), "Baseline: n"
    )
    assert [cell.text for cell in table.rows[0][4:]] == ["0.00111", "—", "no"]


def test_once_the_base_commit_was_run_here_it_decides() -> None:
    said = answers(ENVIRONMENT_MOVED)
    assert said["Against the baseline"].startswith("🔶 differs: loss from step 2 (45 of 48 values")
    assert said["Against the base commit, run here"].startswith("✅ identical: ")
    assert answers(ENVIRONMENT_DRIFT)["Against the baseline"].startswith("❌ differs: ")


def test_many_moved_parts_are_counted() -> None:
    changes = tuple(
        EnvironmentChange(part=f"part{index}", expected="a", observed="b", comparable=True)
        for index in range(6)
    )
    said = answers(REPRODUCED, baseline=against_baseline(environment=changes), environment=None)
    assert said["Machine and packages"] == (
        "🔶 part0 a → b, part1 a → b, part2 a → b, part3 a → b and 2 more"
    )


def test_packages_that_moved_stand_last_with_their_number() -> None:
    packages = EnvironmentChange(
        part="packages",
        expected="a" * 64,
        observed="b" * 64,
        comparable=True,
        details=("auditlib 1.0 → 1.1", "torch 2.12.0 → 2.13.0"),
        installed=54,
        imports_known=True,
    )
    torch = EnvironmentChange(part="torch", expected="2.12.0", observed="2.13.0", comparable=False)
    driver = EnvironmentChange(part="driver", expected="550", observed="560", comparable=False)
    told = "auditlib 1.0 → 1.1, torch 2.12.0 → 2.13.0 (2 of 54 packages; both imported)"
    moved = against_baseline(environment=(packages, torch))
    assert moved_words(moved, 4) == told
    assert (
        moved_words(against_baseline(environment=(driver, packages)), 4)
        == f"driver 550 → 560, {told}"
    )
    assert moved_words(moved, 1) == (
        "auditlib 1.0 → 1.1 and 1 more (2 of 54 packages; both imported)"
    )
    assert moved_words(None, 1) == ""


def test_a_gpu_is_named_by_its_product() -> None:
    parts = {"device": "NVIDIA H200", "torch": "2.13.0", "cuda": "13.0", "python": "3.11.2"}
    said = answers(REPRODUCED, environment=Environment(parts=parts))
    assert said["Machine and packages"] == (
        "✅ as recorded: NVIDIA H200, torch 2.13.0, cuda 13.0, python 3.11.2"
    )


def test_a_stale_baseline_is_told() -> None:
    said = answers(ENVIRONMENT_DRIFT)["Baseline"]
    assert said.startswith("🔶 recorded 203 days ago from commit ")
    assert said.endswith(": too old, record it again")


def test_a_cost_says_what_it_means() -> None:
    assert (
        answers(REPRODUCED)["Cost of determinism"] == "time +4.2 % [+3.9 %, +4.4 %], memory +0.0 %"
    )
    assert answers(REPRODUCED, cost=WITHIN_NOISE)["Cost of determinism"] == (
        "time not measurable here (the noise is larger than the effect), memory +0.0 %"
    )
    assert answers(REPRODUCED, cost=TOO_SHORT)["Cost of determinism"] == (
        "time not measurable (6 steps too short), memory +0.0 %"
    )


def test_a_cost_without_memory_leaves_it_out() -> None:
    said = answers(REPRODUCED, cost=COST.model_copy(update={"memory_ratio": None}))
    assert said["Cost of determinism"] == "time +4.2 % [+1.0 %, +7.5 %]"


def test_what_was_left_out_because_runs_differ_is_counted() -> None:
    differ, unpriced = WhyNotRun.RUNS_DIFFER, WhyNotRun.NOT_PRICED
    not_run = (
        NotRun(part=RunPurpose.DEFAULT_RUNS, why=differ, runs=1),
        NotRun(part=RunPurpose.SEEDS, why=differ, runs=4),
    )
    said = answers(CODE_DRIFT, not_run=not_run)
    assert said["Not run"] == "1 default run, 4 seed runs: two strict runs differ"
    alone = (NotRun(part=RunPurpose.DEFAULT_RUNS, why=unpriced, runs=2),)
    assert "Not run" not in answers(CODE_DRIFT, not_run=alone)


PRICE = RecordedPrice(
    measured_at="2026-11-02T04:00:00+00:00", time_ratio=1.03, low=1.02, high=1.041, memory_ratio=1.0
)


def test_a_price_of_the_baseline_is_told_with_its_day() -> None:
    assert REPRODUCED.baseline_facts is not None
    facts = REPRODUCED.baseline_facts.model_copy(update={"price": PRICE})
    said = answers(REPRODUCED, cost=None, baseline_facts=facts)
    assert said["Cost of determinism"] == (
        "time +3.0 % [+2.0 %, +4.1 %], memory +0.0 % (measured 2026-11-02, with the baseline)"
    )
    verdict = REPRODUCED.model_copy(update={"cost": None, "baseline_facts": facts})
    rows = {row[0].text: row[1].text for row in section(verdict, "Cost of determinism").rows}
    assert rows["State"] == "not measured in this call: as recorded with the baseline"
    assert rows["Measured at"] == "2026-11-02T04:00:00+00:00"


def test_without_any_price_nothing_is_said_of_the_cost() -> None:
    assert "Cost of determinism" not in answers(REPRODUCED, cost=None)


def _knobs_said(knob_costs: KnobCosts | None) -> str:
    assert REPRODUCED.baseline_facts is not None
    facts = REPRODUCED.baseline_facts.model_copy(update={"knob_costs": knob_costs})
    verdict = REPRODUCED.model_copy(update={"baseline_facts": facts})
    report = report_of(verdict, ReportLinks(), Limits(deltas=10, rows=20))
    (table,) = (one.table for one in report.sections if one.title == "Cost of determinism")
    return next(row[1].text for row in table.rows if row[0].text == "Cost by knob")


def test_the_most_expensive_knobs_are_told_with_the_date_of_their_price() -> None:
    costs = KnobCosts(
        measured_at="2026-08-01T10:15:00+00:00",
        knobs=tuple(
            KnobCost(knob=f"knob_{each}", ratio=1 + each / 100, low=1.0, high=1.1)
            for each in range(1, 5)
        ),
    )
    assert _knobs_said(costs) == (
        "knob_4 +4.0 % [+0.0 %, +10.0 %], knob_3 +3.0 % [+0.0 %, +10.0 %], knob_2 +2.0 % [+0.0 "
        "%, +10.0 %] (measured 2026-08-01, recorded in the baseline)"
    )
    assert _knobs_said(costs.model_copy(update={"knobs": ()})) == (
        "none alone exceeds this machine's noise (measured 2026-08-01, recorded in the baseline)"
    )
    assert _knobs_said(None) == (
        "not recorded in the baseline; repro-gate baseline record --attribute measures each one"
    )


def test_a_fault_shows_its_last_lines() -> None:
    table = section(ERROR, "Details of the fault (4)")
    assert table.rows[-1][0].text.startswith("FileNotFoundError")
    assert table.omitted == 1


def test_a_run_that_was_stopped_says_so() -> None:
    stopped = run("strict-1", RunMode.STRICT, -9, timed_out=True)
    table = section(ERROR.model_copy(update={"runs": (stopped,)}), "Runs (1)")
    assert table.rows[0][3].text == "time limit"


def test_without_runs_there_is_nothing_to_list() -> None:
    report = report_of(ERROR.model_copy(update={"runs": ()}), ReportLinks(), LIMITS)
    assert [one.title for one in report.sections][1:] == ["What was judged"]


def test_a_self_test_that_did_not_fire_cannot_be_overlooked() -> None:
    probes = (*SELF_TEST[:1], SelfTestProbe(name="one missing step", caught=False))
    table = section(REPRODUCED.model_copy(update={"self_test": probes}), "Self-test: 1 of 2 caught")
    assert table.rows[1][1].text == "NOT CAUGHT"


def test_a_baseline_of_the_head_is_told() -> None:
    assert REPRODUCED.baseline_facts is not None
    facts = REPRODUCED.baseline_facts.model_copy(update={"from_base": False, "stale": True})
    report = report_of(
        REPRODUCED.model_copy(update={"baseline_facts": facts}),
        ReportLinks(),
        Limits(deltas=1, rows=9),
    )
    (table,) = (one.table for one in report.sections if one.title == "Baseline")
    said = {name.text: value.text for name, value in table.rows}
    assert (said["Read from"], said["Age"]) == ("the commit under test", "21 days, stale")


def test_a_diagnosis_without_a_step_leaves_it_out() -> None:
    assert CODE_DRIFT.diagnosis is not None
    found = CODE_DRIFT.diagnosis.model_copy(update={"first_step": None})
    table = section(CODE_DRIFT.model_copy(update={"diagnosis": found}), "Diagnosis")
    assert table.rows[0][0].text == "What differs first"


def test_a_cost_that_is_only_a_reason_shows_the_reason() -> None:
    table = section(REPRODUCED.model_copy(update={"cost": TOO_SHORT}), "Cost of determinism")
    assert table.rows[0][1].text == "not measurable: 6 steps too short"
    assert {row[0].text for row in table.rows} == {"State", "Peak memory", "Steady steps used"}


def test_equal_things_have_no_section() -> None:
    titles = [one.title for one in report_of(REPRODUCED, ReportLinks(), LIMITS).sections]
    assert not [title for title in titles if "differ" in title or "moved" in title]


def test_only_tensors_can_differ() -> None:
    only = against_baseline(tensors=(tensor("model/0/head.weight"),))
    verdict = CODE_DRIFT.model_copy(update={"baseline": only})
    assert section(verdict, "Baseline: tensors that differ (1)").total == 1


def test_the_digest_of_a_tensor_is_seen_whatever_its_shape() -> None:
    sides = {
        "expected": "F32[50257, 768] 0123456789abcdef",
        "observed": "int value fedcba9876543210",
    }
    only = against_baseline(tensors=(tensor("model/0/head.weight").model_copy(update=sides),))
    verdict = CODE_DRIFT.model_copy(update={"baseline": only})
    (row,) = section(verdict, "Baseline: tensors that differ (1)").rows
    assert [cell.text for cell in row[2:]] == list(sides.values())


def test_tensors_that_only_one_side_has_are_counted_apart() -> None:
    deltas = (tensor("a"), tensor("b", TensorChange.MISSING), tensor("c", TensorChange.EXTRA))
    assert CODE_DRIFT.baseline is not None
    compared = CODE_DRIFT.baseline.model_copy(update={"tensors": deltas, "compared_tensors": 1})
    told = answers(CODE_DRIFT, baseline=compared)["Against the baseline"]
    assert "1 of 1 tensor and 2 on one side only" in told


def test_where_one_run_was_made_no_runs_are_said_to_differ() -> None:
    said = answers(
        ERROR, baseline=against_baseline(), repeat=None, runs=REPRODUCED.runs[:1], answers=Answers()
    )
    assert said["Against the baseline"] == "⚪ not compared"
