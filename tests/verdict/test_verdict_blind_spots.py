from __future__ import annotations

from dataclasses import replace

import pytest
from decision_cases import FAR, HALF, HALVED, TOLERANT, WHOLE, facts_of, with_head, without_sketches
from evidence_cases import evidence_of, series_of, settings_of

from gate.comparison.tolerances import derive, tolerance_uses
from gate.evidence.run_evidence import (
    MetricSource,
    NotFiniteTensor,
    PassedOver,
    RunEvidence,
    UnusedSetting,
    WhyPassedOver,
)
from gate.settings.gate_settings import NotFiniteAllowed
from gate.settings.levels import Tolerance
from gate.verdict.blind_spots import (
    admitted_by_settings,
    equal_runs,
    left_out,
    only_printed,
    passed_over,
    rare_faults,
    tolerances,
    unbounded_tensors,
    unused_settings,
)
from gate.verdict.facts import Facts
from gate.verdict.verdict import EqualRuns, Finding, Outcome, Severity

RUN = evidence_of()
TWO = RUN.model_copy(
    update={"metrics": (*RUN.metrics, series_of((0.5, 0.6, 0.7), name="file.accuracy"))}
)


def _findings(run: RunEvidence, *rules: Tolerance) -> tuple[Finding, ...]:
    return tolerances(tolerance_uses(run, rules), run)


def test_a_tolerance_that_passes_anything_is_a_warning() -> None:
    (found,) = _findings(RUN, Tolerance(metric="*", relative=1e9))
    assert (found.code, found.severity) == ("tolerance-wide", Severity.WARNING)
    assert found.message.endswith(
        "lets loss move by 1e+11 % at every step it applies to: a regression of 1 % goes unnoticed"
    )


@pytest.mark.parametrize(("relative", "told"), [(0.0099, False), (0.01, True), (0.02, True)])
def test_a_limit_that_could_not_catch_one_percent_is_told(relative: float, *, told: bool) -> None:
    assert bool(_findings(RUN, Tolerance(metric="*loss", relative=relative))) == told


def test_a_coarse_metric_beside_a_sharp_one_is_a_notice() -> None:
    coarse = Tolerance(metric="*accuracy", absolute=0.016)
    (found,) = _findings(TWO, Tolerance(metric="*loss", relative=0.001), coarse)
    assert found.severity is Severity.NOTICE
    (loud,) = _findings(TWO, Tolerance(metric="*accuracy", absolute=0.5))
    assert loud.severity is Severity.WARNING


def test_a_pattern_that_fits_no_metric_names_the_metrics() -> None:
    (found,) = _findings(RUN, Tolerance(metric="trian_loss", relative=0.001))
    assert (found.code, found.severity) == ("tolerance-unused", Severity.WARNING)
    assert found.message == (
        "compare.tolerances: trian_loss applies to no metric: the metrics are loss"
    )


def test_a_range_that_no_step_is_in_is_told() -> None:
    (found,) = _findings(RUN, Tolerance(metric="loss", relative=0.001, steps="50-60"))
    assert found.message == (
        "compare.tolerances: loss applies to no metric: none has a step in 50-60"
    )


def test_a_derived_limit_that_was_edited_is_told() -> None:
    limit, derived = derive(5, 1e-4, 0.95)
    assert not _findings(RUN, Tolerance(metric="loss", absolute=limit, derived=derived))
    (found,) = _findings(RUN, Tolerance(metric="loss", absolute=0.01, derived=derived))
    assert (found.code, found.severity) == ("tolerance-edited", Severity.WARNING)
    assert found.message.startswith(
        "compare.tolerances: loss (steps: every) is not what it was derived to be: absolute is "
        "0.01, but "
    )


def test_a_metrics_file_without_a_number_is_a_warning() -> None:
    empty = UnusedSetting(key="train.metrics.file", value="m.jsonl")
    (found,) = unused_settings(RUN.model_copy(update={"unused_settings": (empty,)}), ())
    assert (found.code, found.severity) == ("setting-unused", Severity.WARNING)
    assert found.message == "train.metrics.file is m.jsonl, but the script wrote no number there"


def test_a_permission_that_nothing_needs_is_told() -> None:
    allowed = NotFiniteAllowed(pattern="state/mask", reason="was there once")
    (found,) = unused_settings(RUN, (allowed,))
    assert found.message.startswith("compare.allow_not_finite is state/mask")


def test_what_the_settings_take_out_is_told_with_its_reason() -> None:
    rules = ({"pattern": "/log/**", "reason": "a log"}, {"pattern": "/gone", "reason": "x"})
    train = {"command": ("python", "t.py"), "max_steps": 3, "checkpoint_exclude": rules}
    mask = {"pattern": "state/mask", "reason": "a mask"}
    settings = settings_of(train=train, compare={"allow_not_finite": (mask,)})
    unused = UnusedSetting(key="train.checkpoint_exclude", value="/gone")
    run = RUN.model_copy(update={"unused_settings": (unused,)})
    excluded = "train.checkpoint_exclude leaves /log/** out of the comparison: a log"
    assert [one.message for one in admitted_by_settings(run, settings)] == [excluded]
    infinite = NotFiniteTensor(name="state/mask", nan=0, infinite=3)
    masked = run.model_copy(update={"not_finite": (infinite,)})
    assert [one.message for one in admitted_by_settings(masked, settings)] == [
        excluded,
        "compare.allow_not_finite lets state/mask hold NaN or infinity: a mask",
    ]


def test_what_could_not_be_compared_is_a_warning_that_names_the_first_of_it() -> None:
    assert left_out(RUN) == ()
    told = tuple(f"parameter {number} is left out of the digest: why" for number in range(7))
    (found,) = left_out(RUN.model_copy(update={"left_out": told}))
    assert (found.code, found.severity) == ("left-out", Severity.WARNING)
    assert found.message.startswith("not everything could be compared: parameter 0 is left out")
    assert found.message.endswith("parameter 4 is left out of the digest: why; and 2 more")


def logged(name: str, why: WhyPassedOver, source: MetricSource = MetricSource.FILE) -> PassedOver:
    return PassedOver(source=source, name=name, why=why)


def test_a_logged_value_that_is_no_metric_is_a_warning_and_a_label_a_notice() -> None:
    assert passed_over(RUN) == ()
    label = logged("phase", WhyPassedOver.TEXT)
    (found,) = passed_over(RUN.model_copy(update={"passed_over": (label,)}))
    assert (found.code, found.severity) == ("metric-not-compared", Severity.NOTICE)
    number = logged("acc", WhyPassedOver.NUMBER)
    line = logged("line 3", WhyPassedOver.LINE, MetricSource.STDOUT)
    (found,) = passed_over(RUN.model_copy(update={"passed_over": (label, number, line)}))
    assert found.severity is Severity.WARNING
    assert found.message == (
        "the script logs values that were not compared: phase is text, acc is a number in quotes, "
        "1 printed line above 1,000 bytes not searched"
    )


def test_numbers_that_are_only_printed_are_named_but_those_that_a_metric_has() -> None:
    names = ("val_acc", "Loss")
    printed = [logged(name, WhyPassedOver.PRINTED, MetricSource.STDOUT) for name in names]
    run = RUN.model_copy(update={"passed_over": tuple(printed)})
    (notice,) = only_printed(run)
    assert (notice.code, notice.severity) == ("printed-not-compared", Severity.NOTICE)
    assert notice.message == "the script prints numbers that are not compared: val_acc"
    assert "train.metrics.stdout_pattern" in notice.remedy
    assert passed_over(run) == only_printed(RUN) == ()


def test_weights_that_differ_beside_equal_metrics_are_found_with_their_distance() -> None:
    def found(facts: Facts) -> Finding:
        (one,) = unbounded_tensors(facts, Outcome.WITHIN_TOLERANCE)
        assert one.code == "tensors-unbounded"
        return one

    halved = facts_of(TOLERANT, baseline=HALVED, head=WHOLE)
    assert found(halved).severity is Severity.WARNING
    assert found(halved).message == (
        "every metric equals the baseline, but 1 tensor of the model differs after the last "
        "step; most of all, state/model/0/head.weight differs by about 0.5 of its size"
    )
    assert not unbounded_tensors(halved, Outcome.CODE_DRIFT)
    # a metric that moved by less than its tolerance does not explain a halved head
    moved = evidence_of(values=(2.5, 2.25, 2.25))
    beside = facts_of(TOLERANT, baseline=with_head(b"halved", HALF, moved), head=WHOLE)
    assert found(beside).message.startswith("every metric is within tolerance of the baseline, but")
    near = facts_of(TOLERANT, baseline=with_head(b"near", (0.99,) * 16, moved), head=WHOLE)
    assert not unbounded_tensors(near, Outcome.WITHIN_TOLERANCE)
    # a limit makes it a notice, an entry without sketches asks for a new one
    rule = {"metric": "*", "absolute": 0.5}
    limited = settings_of(compare={"tolerances": (rule,), "tensors": {"relative": 0.6}})
    assert found(facts_of(limited, baseline=HALVED, head=WHOLE)).severity is Severity.NOTICE
    old = found(facts_of(TOLERANT, baseline=without_sketches(HALVED), head=WHOLE))
    assert old.message.endswith("state/model/0/head.weight differs, and its distance is not known")
    assert "record the baseline again" in old.remedy


def test_what_equal_runs_leave_open_is_said_in_figures() -> None:
    facts = facts_of()
    two = "rare faults: of those that affect one run in ten, two runs miss 82 %"
    assert rare_faults(facts) == (two,)
    assert equal_runs(facts) == EqualRuns(runs=2, missed=0.82)
    alike = replace(facts, like_strict=(facts.repeat, facts.repeat))
    assert rare_faults(alike) == (f"{two}, and the 4 equal runs of this call 66 %",)
    assert equal_runs(alike) == EqualRuns(runs=4, missed=0.6562)
    # one that differs is another answer: no share of faults is missed then
    differs = facts_of(again=FAR).repeat
    assert equal_runs(replace(facts, like_strict=(differs,))) is None
    assert (rare_faults(facts_of(again=FAR)), equal_runs(facts_of(again=FAR))) == ((), None)
