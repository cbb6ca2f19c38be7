from __future__ import annotations

from dataclasses import replace

import pytest
from evidence_cases import PARTS, evidence_of, manifest_of, settings_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.compare import compare_results
from gate.records.comparison import Comparison, StepFault, StepFaultKind
from gate.records.observed.environment import Environment
from gate.records.observed.evidence import RunEvidence
from gate.records.settings import GateSettings
from gate.records.verdict import Answer, NotFinite, Outcome, SelfTestProbe
from gate.verdict.decision import Decision, Facts, decide

EXACT = settings_of()
TOLERANT = settings_of(compare={"tolerances": ({"metric": "*", "absolute": 0.5},)})
BITWISE = settings_of(
    compare={"tolerances": ({"metric": "*", "absolute": 0.5},)}, policy={"require_bitwise": True}
)
SEEN = (SelfTestProbe(name="one flipped bit", caught=True),)
RUN = evidence_of()
NEAR = evidence_of(values=(2.5, 2.25, 2.25), weights=b"WEIGHTS")
FAR = evidence_of(values=(2.5, 2.25, 9.0), weights=b"WEIGHTS")
OTHER_CPU = {**PARTS, "cpu": "two"}
OTHER_TORCH = {**PARTS, "torch": "9"}
OTHER_DRIVER = {**PARTS, "driver": "9"}


def _compare(expected: RunEvidence, observed: RunEvidence, settings: GateSettings) -> Comparison:
    return compare_results(expected, observed, settings.compare, ("expected", "observed"))


def _facts(
    settings: GateSettings = EXACT, *, baseline: RunEvidence | None = RUN, again: RunEvidence = RUN
) -> Facts:
    return Facts(
        settings=settings,
        repeat=_compare(RUN, again, settings),
        self_test=SEEN,
        baseline=_compare(baseline, RUN, settings) if baseline else None,
    )


def _moved(run: RunEvidence, parts: dict[str, str]) -> RunEvidence:
    return run.model_copy(update={"environment": Environment(parts=parts)})


def _row(decision: Decision) -> tuple[Outcome, bool]:
    return decision.outcome, decision.passes


def test_equal_runs_equal_to_the_baseline_reproduce_it() -> None:
    decision = decide(_facts())
    assert _row(decision) == (Outcome.REPRODUCED, True)
    assert decision.cause == "equal to the baseline, bit for bit"


def test_equal_bits_in_another_environment_are_equal_bits() -> None:
    assert _row(decide(_facts(baseline=_moved(RUN, OTHER_TORCH)))) == (Outcome.REPRODUCED, True)


def test_runs_that_differ_are_nondeterministic_whatever_the_baseline_says() -> None:
    decision = decide(_facts(again=FAR))
    assert _row(decision) == (Outcome.NONDETERMINISTIC, False)
    assert decision.cause == "two strict runs of the same commit differ from step 3 on: loss first"


def test_runs_of_different_length_are_nondeterministic() -> None:
    decision = decide(_facts(again=evidence_of(values=(2.5, 2.25))))
    assert _row(decision) == (Outcome.NONDETERMINISTIC, False)


def test_runs_that_differ_only_at_their_end_say_so() -> None:
    decision = decide(_facts(again=evidence_of(weights=b"WEIGHTS")))
    assert decision.cause == "two strict runs of the same commit end in different states"


def test_without_a_baseline_nothing_passes() -> None:
    assert _row(decide(_facts(baseline=None))) == (Outcome.NO_BASELINE, False)


def test_another_training_is_not_comparable() -> None:
    decision = decide(replace(_facts(), same_training=False))
    assert _row(decision) == (Outcome.NOT_COMPARABLE, False)


def test_a_missing_metric_or_tensor_is_not_comparable() -> None:
    renamed = RUN.model_copy(update={"checkpoint": manifest_of(weight=b"weights", other=b"")})
    decision = decide(_facts(baseline=renamed))
    assert _row(decision) == (Outcome.NOT_COMPARABLE, False)
    assert decision.cause == "tensor bias is not in the baseline"
    shorter = evidence_of(values=(2.5, 2.25))
    assert decide(_facts(baseline=shorter)).cause == "3 optimizer steps instead of the baseline's 2"


def test_other_step_counts_alone_are_not_comparable() -> None:
    fewer = RUN.model_copy(update={"steps": RUN.steps[:-1]})
    decision = decide(_facts(baseline=fewer))
    assert decision.cause == "3 optimizer steps instead of the baseline's 2"


def test_outside_tolerance_in_the_same_environment_is_code_drift() -> None:
    decision = decide(_facts(TOLERANT, baseline=FAR))
    assert _row(decision) == (Outcome.CODE_DRIFT, False)
    assert decision.cause == (
        "differs from the baseline of this environment: loss at step 3 is 2.125, expected 9.0"
    )


def test_inside_tolerance_passes_even_with_other_weights() -> None:
    assert _row(decide(_facts(TOLERANT, baseline=NEAR))) == (Outcome.WITHIN_TOLERANCE, True)


def test_the_settings_may_want_equal_tensors_where_metrics_may_move() -> None:
    rule = {"metric": "*", "absolute": 0.5}
    exact = settings_of(compare={"tolerances": (rule,), "tensors_within_tolerance": False})
    assert _row(decide(_facts(exact, baseline=NEAR))) == (Outcome.CODE_DRIFT, False)
    assert decide(_facts(TOLERANT, baseline=NEAR)).outcome is Outcome.WITHIN_TOLERANCE


def test_without_any_tolerance_weights_must_be_equal() -> None:
    decision = decide(_facts(baseline=evidence_of(weights=b"WEIGHTS")))
    assert _row(decision) == (Outcome.CODE_DRIFT, False)
    assert decision.cause == (
        "differs from the baseline of this environment in 1 tensor(s) at the end: weight"
    )


def test_drift_in_steps_alone_is_told_by_its_steps() -> None:
    steps = tuple(step.model_copy(update={"parameters": "sha256:0"}) for step in RUN.steps)
    decision = decide(_facts(baseline=RUN.model_copy(update={"steps": steps})))
    assert decision.cause.endswith("from step 1 on: parameters")


def test_the_policy_may_want_equal_bits() -> None:
    decision = decide(_facts(BITWISE, baseline=NEAR))
    assert _row(decision) == (Outcome.WITHIN_TOLERANCE, False)
    assert decision.cause.endswith("but the policy requires equal bits")


def test_a_comparable_environment_passes_within_tolerance() -> None:
    decision = decide(_facts(TOLERANT, baseline=_moved(NEAR, OTHER_CPU)))
    assert _row(decision) == (Outcome.WITHIN_TOLERANCE, True)


def test_the_settings_say_which_parts_of_the_environment_may_move() -> None:
    rule = {"metric": "*", "absolute": 0.5}
    for parts, decides in ((("cpu",), True), ((), False), (("driver", "python"), False)):
        settings = settings_of(compare={"tolerances": (rule,), "comparable_environment": parts})
        decision = decide(_facts(settings, baseline=_moved(NEAR, OTHER_CPU)))
        assert (decision.outcome is Outcome.WITHIN_TOLERANCE) is decides
        assert decision.passes is decides


@pytest.mark.parametrize("parts", [OTHER_CPU, OTHER_TORCH])
def test_a_moved_environment_without_a_base_run_cannot_decide(parts: dict[str, str]) -> None:
    decision = decide(_facts(TOLERANT, baseline=_moved(FAR, parts)))
    assert _row(decision) == (Outcome.ENVIRONMENT_DRIFT, False)


def _with_base(
    base: RunEvidence, again: RunEvidence | None = None, settings: GateSettings = TOLERANT
) -> Decision:
    facts = _facts(settings, baseline=_moved(FAR, OTHER_DRIVER))
    return decide(
        replace(
            facts,
            base_run=_compare(base, RUN, settings),
            base_repeat=_compare(base, again or base, settings),
        )
    )


def test_a_base_run_that_agrees_decides_for_the_pull_request() -> None:
    decision = _with_base(RUN)
    assert _row(decision) == (Outcome.WITHIN_TOLERANCE, True)
    assert "equal to the base commit run on this machine" in decision.cause
    assert _row(_with_base(NEAR)) == (Outcome.WITHIN_TOLERANCE, True)


def test_a_base_run_that_disagrees_puts_it_on_the_code() -> None:
    decision = _with_base(FAR)
    assert _row(decision) == (Outcome.CODE_DRIFT, False)
    assert "the base commit run on this machine" in decision.cause


def test_a_base_that_does_not_repeat_itself_decides_nothing() -> None:
    assert _row(_with_base(RUN, again=FAR)) == (Outcome.ENVIRONMENT_DRIFT, False)


def test_a_brought_baseline_that_is_reproduced_passes_by_policy() -> None:
    brought = _compare(RUN, RUN, EXACT)
    assert _row(decide(replace(_facts(baseline=FAR), proposed=brought))) == (
        Outcome.BASELINE_CHANGE,
        True,
    )
    closed = settings_of(policy={"allow_baseline_change": False})
    decision = decide(replace(_facts(closed, baseline=FAR), proposed=brought))
    assert _row(decision) == (Outcome.BASELINE_CHANGE, False)
    assert decision.cause.endswith("the policy does not allow that")


def test_a_brought_baseline_that_is_not_reproduced_changes_nothing() -> None:
    brought = _compare(FAR, RUN, EXACT)
    assert decide(replace(_facts(), proposed=brought)).outcome is Outcome.REPRODUCED


@pytest.mark.parametrize(
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
            {"repeat": _compare(RUN, _moved(RUN, OTHER_CPU), EXACT)},
            "the environment moved while the gate ran: cpu",
        ),
        (
            {"repeat": _compare(RUN, RUN, EXACT).model_copy(update={"compared_tensors": 0})},
            "nothing was compared",
        ),
    ],
)
def test_what_could_not_be_checked_is_an_error(change: dict[str, object], cause: str) -> None:
    decision = decide(replace(_facts(), **change))  # type: ignore[arg-type] # one field a row
    assert _row(decision) == (Outcome.ERROR, False)
    assert decision.cause.startswith(cause)


RUNS = st.sampled_from([RUN, NEAR, FAR, _moved(RUN, OTHER_CPU), _moved(FAR, OTHER_TORCH)])
MAYBE = st.none() | RUNS


@given(st.sampled_from([EXACT, TOLERANT, BITWISE]), RUNS, MAYBE, MAYBE, st.booleans())
def test_a_pass_always_rests_on_two_equal_runs_and_on_something_to_compare_with(
    settings: GateSettings,
    again: RunEvidence,
    baseline: RunEvidence | None,
    base: RunEvidence | None,
    same_training: bool,  # noqa: FBT001 - drawn by hypothesis
) -> None:
    facts = replace(
        _facts(settings, baseline=baseline, again=again),
        same_training=same_training,
        base_run=_compare(base, RUN, settings) if base else None,
        base_repeat=_compare(base, base, settings) if base else None,
    )
    if decide(facts).passes:
        assert facts.repeat.numerically_equal
        assert facts.baseline is not None
        assert same_training


def test_another_number_of_steps_fails_in_every_wording_and_with_any_tolerance() -> None:
    """A pass once hung on a word of the sentence that told of it."""
    facts = _facts(TOLERANT, baseline=NEAR)
    assert facts.baseline is not None
    fault = StepFault(kind=StepFaultKind.COUNT, message="3 steps in the baseline, 2 here")
    other = facts.baseline.model_copy(update={"steps_expected": 9, "step_faults": (fault,)})
    assert _row(decide(replace(facts, baseline=other))) == (Outcome.NOT_COMPARABLE, False)


@given(st.text(max_size=20), st.sampled_from([RUN, NEAR, FAR, evidence_of(values=(2.5, 2.25))]))
def test_no_wording_decides(words: str, baseline: RunEvidence) -> None:
    facts = _facts(TOLERANT, baseline=baseline)
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
    assert _row(decide(facts)) == _row(decide(replace(facts, baseline=reworded)))


@pytest.mark.parametrize(("dtype", "shape"), [("U8", (1, 7)), ("I8", (7,))])
def test_another_shape_or_type_is_outside_any_tolerance(dtype: str, shape: tuple[int, ...]) -> None:
    weight, *rest = NEAR.checkpoint.tensors[::-1]
    other = weight.model_copy(update={"dtype": dtype, "shape": shape})
    tensors = (*rest, other)
    baseline = NEAR.model_copy(
        update={"checkpoint": NEAR.checkpoint.model_copy(update={"tensors": tensors})}
    )
    decision = decide(_facts(TOLERANT, baseline=baseline))
    assert _row(decision) == (Outcome.CODE_DRIFT, False)
    assert decision.cause.endswith(f"weight is U8[7], expected {dtype}{list(shape)}")


def test_new_packages_that_the_base_ran_with_too_excuse_nothing() -> None:
    packages = {**PARTS, "packages": "b" * 64}
    facts = replace(
        _facts(TOLERANT, baseline=_moved(FAR, packages)),
        base_run=_compare(RUN, RUN, TOLERANT),
        base_repeat=_compare(RUN, RUN, TOLERANT),
    )
    decision = decide(facts)
    assert _row(decision) == (Outcome.ENVIRONMENT_DRIFT, False)
    assert "the base commit gives the same result here" in decision.cause


def test_a_rare_fault_in_one_default_run_is_not_repeatable() -> None:
    struck = _compare(RUN, FAR, EXACT).model_copy(update={"observed": "default-2"})
    decision = decide(replace(_facts(), like_strict=(_compare(RUN, RUN, EXACT), struck)))
    assert _row(decision) == (Outcome.NONDETERMINISTIC, False)
    assert "default-2 differs from expected" in decision.cause


@given(st.sampled_from([EXACT, TOLERANT, BITWISE]), RUNS, MAYBE, MAYBE)
def test_a_verdict_that_fails_has_a_question_that_was_not_answered_well(
    settings: GateSettings,
    again: RunEvidence,
    baseline: RunEvidence | None,
    base: RunEvidence | None,
) -> None:
    facts = replace(
        _facts(settings, baseline=baseline, again=again),
        base_run=_compare(base, RUN, settings) if base else None,
        base_repeat=_compare(base, base, settings) if base else None,
    )
    decision = decide(facts)
    answers = decision.answers
    if decision.passes:
        assert answers.repeat is Answer.EQUAL
        assert answers.baseline.good or answers.base_run.good
    elif decision.outcome is not Outcome.ERROR:
        assert not (answers.repeat.good and answers.baseline.good)
