from __future__ import annotations

from dataclasses import replace

import pytest
from decision_cases import (
    BITWISE,
    EXACT,
    FAR,
    HALF,
    HALVED,
    MAYBE,
    NEAR,
    OTHER_CPU,
    OTHER_TORCH,
    RUN,
    RUNS,
    TOLERANT,
    WHOLE,
    compare,
    facts_of,
    moved,
    row,
    with_base,
    with_head,
    without_sketches,
)
from each_row import each_row
from evidence_cases import PARTS, evidence_of, manifest_of, settings_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.differences import (
    NotFinite,
    SelfTestProbe,
    StepFault,
    StepFaultKind,
    ThresholdResult,
)
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.step_columns import StepDigests
from gate.pipelines.comparisons import alone
from gate.settings.gate_settings import GateSettings
from gate.settings.levels import Level
from gate.verdict.decision import decide, needs_base_run
from gate.verdict.facts import Decision, EntropyDraw, Facts
from gate.verdict.reasons import only_renamed
from gate.verdict.verdict import Answer, Outcome, RecordedRuns


def test_equal_runs_equal_to_the_baseline_reproduce_it() -> None:
    decision = decide(facts_of())
    assert row(decision) == (Outcome.REPRODUCED, True)
    assert decision.cause == "equal to the baseline, bit for bit"


ONE_RUN = RecordedRuns(runs=2, recorded_at="2026-11-20T08:00:00+00:00")


def _of_one_run(**changed: object) -> Facts:
    facts = replace(facts_of(), strict_runs=1, repeat=alone(RUN), one_run=ONE_RUN)
    return replace(facts, **changed)  # type: ignore[arg-type] # by name


def test_one_run_that_equals_recorded_ones_reproduces_them_and_says_so() -> None:
    decision = decide(_of_one_run())
    assert row(decision) == (Outcome.REPRODUCED, True)
    words = "1 run here, equal to 2 recorded on 2026-11-20"
    assert decision.cause == f"equal to the baseline, bit for bit: {words}"
    assert (decision.answers.repeat, decision.answers.baseline) == (
        Answer.NOT_COMPARED,
        Answer.EQUAL,
    )


@each_row(
    "changed",
    [
        {"baseline": None},
        {"baseline": compare(FAR, RUN, EXACT)},
        {"baseline": compare(moved(RUN, OTHER_TORCH), RUN, EXACT)},
        {"same_training": False},
        {"one_run": None},
    ],
)
def test_one_run_is_never_a_pass_where_the_claim_is_wrong(changed: dict[str, object]) -> None:
    decision = decide(_of_one_run(**changed))
    assert row(decision) == (Outcome.ERROR, False)
    assert decision.cause.startswith("nothing was compared")


def test_equal_bits_in_another_environment_are_equal_bits() -> None:
    assert row(decide(facts_of(baseline=moved(RUN, OTHER_TORCH)))) == (Outcome.REPRODUCED, True)


def test_runs_that_differ_are_nondeterministic_whatever_the_baseline_says() -> None:
    decision = decide(facts_of(again=FAR))
    assert row(decision) == (Outcome.NONDETERMINISTIC, False)
    assert decision.cause == "two strict runs of the same commit differ from step 3 on: loss first"


def test_runs_of_different_length_are_nondeterministic() -> None:
    decision = decide(facts_of(again=evidence_of(values=(2.5, 2.25))))
    assert row(decision) == (Outcome.NONDETERMINISTIC, False)


def test_runs_that_differ_only_at_their_end_say_so() -> None:
    decision = decide(facts_of(again=evidence_of(weights=b"WEIGHTS")))
    assert decision.cause == "two strict runs of the same commit end in different states"


def test_without_a_baseline_nothing_passes() -> None:
    assert row(decide(facts_of(baseline=None))) == (Outcome.NO_BASELINE, False)


def test_another_training_is_not_comparable() -> None:
    facts = replace(facts_of(baseline=evidence_of(values=(9.0,) * 3)), same_training=False)
    decision = decide(facts)
    assert row(decision) == (Outcome.NOT_COMPARABLE, False)
    # what differs is diagnosed like any drift
    assert decision.decided == facts.baseline
    assert decision.other_training


def _renamed(before: dict[str, bytes], after: dict[str, bytes]) -> str:
    entry, run = (
        RUN.model_copy(update={"checkpoint": manifest_of(**contents)})
        for contents in (before, after)
    )
    decision = decide(facts_of(head=run, baseline=entry))
    assert row(decision) == (Outcome.NOT_COMPARABLE, False)
    # the next step is about names where the cause is
    assert decision.decided is not None
    renamed = only_renamed(decision.decided)
    assert decision.cause.startswith("only names differ: " * bool(renamed))
    assert (f"{renamed} tensor" in decision.cause) or not renamed
    assert bool(renamed) is ("only names differ" in decision.cause)
    return decision.cause


def test_tensors_that_only_have_other_names_are_said_to() -> None:
    body = {"body.weight": b"body"}
    fc = {"fc.bias": b"bias", "fc.weight": b"weights"}
    head = {"head.bias": b"bias", "head.weight": b"weights"}
    assert _renamed(body | fc, body | head) == (
        "only names differ: 2 tensors have the same content under other names: "
        "fc.bias is now head.bias, fc.weight is now head.weight"
    )
    # another value is no name alone, and one that was made anew has no former name
    assert _renamed(body | fc, {"body.weight": b"BODY"} | head).startswith("2 tensors have")
    assert _renamed(body | fc, body | head | {"head.scale": b"one"}) == (
        "tensor head.scale is not in the baseline; 2 tensors have the same content under other "
        "names: fc.bias is now head.bias, fc.weight is now head.weight"
    )
    assert _renamed(fc, head | {"head.weight": b"WEIGHTS"}) == (
        "tensor fc.weight is missing; 1 tensor has the same content under another name: "
        "fc.bias is now head.bias"
    )
    assert _renamed(fc, {"head.bias": b"BIAS"}) == "tensor fc.bias is missing"


def test_of_tensors_with_one_content_none_is_named_as_another() -> None:
    before, after = ({f"{name}.{number}": b"0000" for number in "ab"} for name in ("fc", "head"))
    assert _renamed(before, after) == (
        "only names differ: 2 tensors have the same content under other names"
    )
    many = {f"fc.{number}": str(number).encode() for number in range(5)}
    assert _renamed(many, {name.replace("fc", "head"): of for name, of in many.items()}) == (
        "only names differ: 5 tensors have the same content under other names: "
        "fc.0 is now head.0, fc.1 is now head.1, fc.2 is now head.2, and 2 more"
    )


def test_a_missing_metric_or_tensor_is_not_comparable() -> None:
    renamed = RUN.model_copy(update={"checkpoint": manifest_of(weight=b"weights", other=b"")})
    decision = decide(facts_of(baseline=renamed))
    assert row(decision) == (Outcome.NOT_COMPARABLE, False)
    assert decision.cause == "tensor bias is not in the baseline"
    shorter = evidence_of(values=(2.5, 2.25))
    assert (
        decide(facts_of(baseline=shorter)).cause == "3 optimizer steps instead of the baseline's 2"
    )


def test_other_step_counts_alone_are_not_comparable() -> None:
    fewer = RUN.model_copy(update={"steps": RUN.steps[:-1]})
    decision = decide(facts_of(baseline=fewer))
    assert decision.cause == "3 optimizer steps instead of the baseline's 2"


def test_outside_tolerance_in_the_same_environment_is_code_drift() -> None:
    decision = decide(facts_of(TOLERANT, baseline=FAR))
    assert row(decision) == (Outcome.CODE_DRIFT, False)
    assert decision.cause == (
        "differs from the baseline of this environment: loss at step 3 is 2.125, expected 9.0"
    )


def test_inside_tolerance_passes_even_with_other_weights() -> None:
    assert row(decide(facts_of(TOLERANT, baseline=NEAR))) == (Outcome.WITHIN_TOLERANCE, True)


def test_weights_are_within_tolerance_only_where_they_have_a_limit_of_their_own() -> None:
    rule = {"metric": "*", "absolute": 0.5}

    def limited(relative: float, baseline: RunEvidence = HALVED) -> Decision:
        compare = {"tolerances": (rule,), "tensors": {"relative": relative}}
        return decide(facts_of(settings_of(compare=compare), baseline=baseline, head=WHOLE))

    unlimited = decide(facts_of(TOLERANT, baseline=HALVED, head=WHOLE))
    assert row(unlimited) == (Outcome.WITHIN_TOLERANCE, True)
    assert unlimited.cause == "metrics within tolerance of the baseline"
    assert limited(0.6).cause == "within tolerance of the baseline"
    found = limited(0.4)
    assert row(found) == (Outcome.CODE_DRIFT, False)
    assert found.cause == (
        "differs from the baseline of this environment: state/model/0/head.weight differs by about "
        "0.5 of its size; compare.tensors allows 0.4"
    )
    # with zero, other bits are a difference, of an optimizer's state too
    near = with_head(b"near", (0.999,) * 16)
    assert row(limited(0, near)) == (Outcome.CODE_DRIFT, False)
    # a distance that is not known is none within a limit
    assert limited(2, without_sketches(HALVED)).cause.endswith(
        "state/model/0/head.weight differs, and its distance is not known; compare.tensors allows 2"
    )


def test_an_entry_whose_sketch_is_another_than_that_of_its_bytes_is_not_equal() -> None:
    edited = with_head(b"whole", HALF)
    assert row(decide(facts_of(baseline=edited, head=WHOLE))) == (Outcome.CODE_DRIFT, False)
    assert row(decide(facts_of(baseline=without_sketches(WHOLE), head=WHOLE))) == (
        Outcome.REPRODUCED,
        True,
    )


def test_without_any_tolerance_weights_must_be_equal() -> None:
    decision = decide(facts_of(baseline=evidence_of(weights=b"WEIGHTS")))
    assert row(decision) == (Outcome.CODE_DRIFT, False)
    assert decision.cause == (
        "differs from the baseline of this environment in 1 tensor at the end: weight"
    )


def test_drift_in_steps_alone_is_told_by_its_steps() -> None:
    steps = StepDigests.of(step.model_copy(update={"parameters": "sha256:0"}) for step in RUN.steps)
    decision = decide(facts_of(baseline=RUN.model_copy(update={"steps": steps})))
    assert decision.cause.endswith("from step 1 on: parameters")


def test_the_policy_may_want_equal_bits() -> None:
    rule = {"metric": "*", "absolute": 0.5}
    strict = settings_of(compare={"tolerances": (rule,)}, policy={"require_bitwise": True})
    decision = decide(facts_of(strict, baseline=NEAR))
    assert row(decision) == (Outcome.WITHIN_TOLERANCE, False)
    assert decision.cause.endswith("but the policy requires equal bits")


def test_a_comparable_environment_passes_within_tolerance() -> None:
    decision = decide(facts_of(TOLERANT, baseline=moved(NEAR, OTHER_CPU)))
    assert row(decision) == (Outcome.WITHIN_TOLERANCE, True)


def test_the_settings_say_which_parts_of_the_environment_may_move() -> None:
    rule = {"metric": "*", "absolute": 0.5}
    for parts, decides in ((("cpu",), True), ((), False), (("driver", "python"), False)):
        settings = settings_of(compare={"tolerances": (rule,), "comparable_environment": parts})
        decision = decide(facts_of(settings, baseline=moved(NEAR, OTHER_CPU)))
        assert (decision.outcome is Outcome.WITHIN_TOLERANCE) is decides
        assert decision.passes is decides


@pytest.mark.parametrize("parts", [OTHER_CPU, OTHER_TORCH])
def test_a_moved_environment_without_a_base_run_cannot_decide(parts: dict[str, str]) -> None:
    decision = decide(facts_of(TOLERANT, baseline=moved(FAR, parts)))
    assert row(decision) == (Outcome.ENVIRONMENT_DRIFT, False)


def test_a_base_run_that_agrees_decides_for_the_pull_request() -> None:
    decision = with_base(RUN)
    assert row(decision) == (Outcome.WITHIN_TOLERANCE, True)
    assert "equal to the base commit run on this machine" in decision.cause
    assert row(with_base(NEAR)) == (Outcome.WITHIN_TOLERANCE, True)


def test_a_base_run_that_disagrees_puts_it_on_the_code() -> None:
    decision = with_base(FAR)
    assert row(decision) == (Outcome.CODE_DRIFT, False)
    assert "the base commit run on this machine" in decision.cause


def test_another_number_of_ranks_is_judged_by_no_tolerance_and_no_base_run() -> None:
    facts = facts_of(TOLERANT, baseline=moved(NEAR, {**PARTS, "world_size": "4"}))
    base = compare(RUN, RUN, TOLERANT)
    decision = decide(replace(facts, base_run=base, base_repeat=base))
    assert row(decision) == (Outcome.ENVIRONMENT_DRIFT, False)
    assert decision.cause.startswith("trained with 1 rank, and the baseline with 4 ranks: ")
    assert decision.cause.endswith("; policy.level: statistical can judge it")
    assert facts.baseline is not None
    assert not needs_base_run(facts.baseline, TOLERANT)


def test_a_base_that_does_not_repeat_itself_decides_nothing() -> None:
    assert row(with_base(RUN, again=FAR)) == (Outcome.ENVIRONMENT_DRIFT, False)


def test_a_brought_baseline_that_is_reproduced_passes_by_policy() -> None:
    brought = compare(RUN, RUN, EXACT)
    assert row(decide(replace(facts_of(baseline=FAR), proposed=brought))) == (
        Outcome.BASELINE_CHANGE,
        True,
    )
    closed = settings_of(policy={"allow_baseline_change": False})
    decision = decide(replace(facts_of(closed, baseline=FAR), proposed=brought))
    assert row(decision) == (Outcome.BASELINE_CHANGE, False)
    assert decision.cause.endswith("the policy does not allow that")


def test_a_brought_baseline_that_is_not_reproduced_changes_nothing() -> None:
    brought = compare(FAR, RUN, EXACT)
    assert decide(replace(facts_of(), proposed=brought)).outcome is Outcome.REPRODUCED


@each_row(
    ("change", "cause"),
    [
        (
            {"not_finite": NotFinite(run="strict-1", name="loss", step=2, value="nan")},
            "metric loss is nan at step 2",
        ),
        (
            {"not_finite": NotFinite(run="strict-1", name="state/w", step=None, value="3 NaN")},
            "state/w holds 3 NaN in strict-1",
        ),
        ({"self_test": ()}, "the self-test did not run"),
        (
            {"self_test": (SelfTestProbe(name="one missing step", caught=False),)},
            "the self-test failed: not caught: one missing step",
        ),
        (
            {"repeat": compare(RUN, moved(RUN, OTHER_CPU), EXACT)},
            "the environment moved while the gate ran: cpu",
        ),
        (
            {"repeat": compare(RUN, RUN, EXACT).model_copy(update={"compared_tensors": 0})},
            "nothing was compared",
        ),
    ],
)
def test_what_could_not_be_checked_is_an_error(change: dict[str, object], cause: str) -> None:
    decision = decide(replace(facts_of(), **change))  # type: ignore[arg-type] # one field a row
    assert row(decision) == (Outcome.ERROR, False)
    assert decision.cause.startswith(cause)


@given(st.sampled_from([EXACT, TOLERANT, BITWISE]), RUNS, MAYBE, MAYBE, st.booleans())
def test_a_pass_always_rests_on_two_equal_runs_and_on_something_to_compare_with(
    settings: GateSettings,
    again: RunEvidence,
    baseline: RunEvidence | None,
    base: RunEvidence | None,
    same_training: bool,  # noqa: FBT001 - drawn by hypothesis
) -> None:
    facts = replace(
        facts_of(settings, baseline=baseline, again=again),
        same_training=same_training,
        base_run=compare(base, RUN, settings) if base else None,
        base_repeat=compare(base, base, settings) if base else None,
    )
    if decide(facts).passes:
        assert facts.repeat.numerically_equal
        assert facts.baseline is not None
        assert same_training


def test_another_number_of_steps_fails_in_every_wording_and_with_any_tolerance() -> None:
    """A pass once hung on a word of the sentence that told of it."""
    facts = facts_of(TOLERANT, baseline=NEAR)
    assert facts.baseline is not None
    fault = StepFault(kind=StepFaultKind.COUNT, message="3 steps in the baseline, 2 here")
    other = facts.baseline.model_copy(update={"steps_expected": 9, "step_faults": (fault,)})
    assert row(decide(replace(facts, baseline=other))) == (Outcome.NOT_COMPARABLE, False)


@given(st.text(max_size=20), st.sampled_from([RUN, NEAR, FAR, evidence_of(values=(2.5, 2.25))]))
def test_no_wording_decides(words: str, baseline: RunEvidence) -> None:
    facts = facts_of(TOLERANT, baseline=baseline)
    assert facts.baseline is not None
    reworded = facts.baseline.model_copy(
        update={
            "step_faults": tuple(
                fault.model_copy(update={"message": words}) for fault in facts.baseline.step_faults
            ),
            "series": tuple(
                fault.model_copy(update={"reason": words}) for fault in facts.baseline.series
            ),
        }
    )
    assert row(decide(facts)) == row(decide(replace(facts, baseline=reworded)))


@pytest.mark.parametrize(("dtype", "shape"), [("U8", (1, 7)), ("I8", (7,))])
def test_another_shape_or_type_is_outside_any_tolerance(dtype: str, shape: tuple[int, ...]) -> None:
    weight, *rest = NEAR.checkpoint.tensors[::-1]
    other = weight.model_copy(update={"dtype": dtype, "shape": shape})
    tensors = (*rest, other)
    baseline = NEAR.model_copy(
        update={"checkpoint": NEAR.checkpoint.model_copy(update={"tensors": tensors})}
    )
    decision = decide(facts_of(TOLERANT, baseline=baseline))
    assert row(decision) == (Outcome.CODE_DRIFT, False)
    assert decision.cause.endswith(f"weight is U8[7], expected {dtype}{list(shape)}")


def test_new_packages_that_the_base_ran_with_too_excuse_nothing() -> None:
    packages = {**PARTS, "packages": "b" * 64}
    facts = replace(
        facts_of(TOLERANT, baseline=moved(FAR, packages)),
        base_run=compare(RUN, RUN, TOLERANT),
        base_repeat=compare(RUN, RUN, TOLERANT),
    )
    decision = decide(facts)
    assert row(decision) == (Outcome.ENVIRONMENT_DRIFT, False)
    assert "the base commit gives the same result here" in decision.cause


def test_a_rare_fault_in_one_default_run_is_not_repeatable() -> None:
    struck = compare(RUN, FAR, EXACT).model_copy(update={"observed": "default-2"})
    decision = decide(replace(facts_of(), like_strict=(compare(RUN, RUN, EXACT), struck)))
    assert row(decision) == (Outcome.NONDETERMINISTIC, False)
    assert "default-2 differs from expected" in decision.cause


@given(st.sampled_from([EXACT, TOLERANT, BITWISE]), RUNS, MAYBE, MAYBE)
def test_a_verdict_that_fails_has_a_question_that_was_not_answered_well(
    settings: GateSettings,
    again: RunEvidence,
    baseline: RunEvidence | None,
    base: RunEvidence | None,
) -> None:
    facts = replace(
        facts_of(settings, baseline=baseline, again=again),
        base_run=compare(base, RUN, settings) if base else None,
        base_repeat=compare(base, base, settings) if base else None,
    )
    decision = decide(facts)
    answers = decision.answers
    if decision.passes:
        assert answers.repeat is Answer.EQUAL
        assert answers.baseline.good or answers.base_run.good
    elif decision.outcome is not Outcome.ERROR:
        assert not (answers.repeat.good and answers.baseline.good)


DRAW = EntropyDraw(call="os.urandom", place="train.py:4", code_place=None)


@given(st.sampled_from([EXACT, TOLERANT, BITWISE]), RUNS, MAYBE, MAYBE)
def test_what_draws_entropy_passes_by_equal_bits_alone(
    settings: GateSettings,
    again: RunEvidence,
    baseline: RunEvidence | None,
    base: RunEvidence | None,
) -> None:
    facts = facts_of(settings, baseline=baseline, again=again)
    if base is not None:
        facts = replace(
            facts,
            base_run=compare(base, RUN, settings),
            base_repeat=compare(base, base, settings),
        )
    seeded, drawn = decide(facts), decide(replace(facts, entropy=DRAW))
    assert row(drawn) == (seeded.outcome, seeded.passes and seeded.level == "numerical-bitwise")
    assert drawn.by_chance == (seeded.passes and not drawn.passes)


def test_a_draw_that_stops_a_pass_is_named() -> None:
    near = replace(facts_of(TOLERANT, baseline=NEAR), entropy=DRAW)
    assert row(decide(replace(near, entropy=None))) == (Outcome.WITHIN_TOLERANCE, True)
    decision = decide(near)
    assert row(decision) == (Outcome.WITHIN_TOLERANCE, False)
    assert decision.cause.endswith(
        "; but train.py:4 draws from os.urandom, which no seed sets: then only equal bits pass"
    )


def test_a_lower_level_does_not_pass_a_draw_either() -> None:
    bounds = {"loss": {"max": 9.0}}
    asked = settings_of(policy={"level": Level.FUNCTIONAL, "thresholds": bounds})
    met = (ThresholdResult(metric="loss", value="2", step=3, least=None, most=9.0, met=True),)
    facts = replace(facts_of(asked, baseline=FAR), thresholds=met)
    assert decide(facts).passes
    assert not decide(replace(facts, entropy=DRAW)).passes
