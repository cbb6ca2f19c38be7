"""Equality of results that were observed at different steps."""

from __future__ import annotations

from evidence_cases import evidence_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.compare import compare_steps, distinct_results, equal_results
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.step_columns import StepDigests

observed_steps = st.sets(st.integers(1, 3))


def seen_at(steps: set[int], run: RunEvidence | None = None) -> RunEvidence:
    """The run as one that observed these steps alone would have it."""
    run = run or evidence_of()
    kept = StepDigests.of(
        step if step.step in steps else step.model_copy(update={"parameters": ""})
        for step in run.steps
    )
    return run.model_copy(update={"steps": kept})


def with_other_weights_at(step: int) -> RunEvidence:
    other = StepDigests.of(
        one.model_copy(update={"parameters": "sha256:0"}) if one.step == step else one
        for one in evidence_of().steps
    )
    return evidence_of().model_copy(update={"steps": other})


@given(observed_steps, observed_steps)
def test_equal_runs_are_equal_where_both_looked_and_never_where_only_one_did(
    one: set[int], other: set[int]
) -> None:
    nobody_looked = not one and not other
    assert equal_results(seen_at(one), seen_at(other)) == (bool(one & other) or nobody_looked)


@given(observed_steps, observed_steps, st.integers(1, 3))
def test_a_difference_counts_when_both_saw_it(one: set[int], other: set[int], step: int) -> None:
    first, second = seen_at(one | {1}), seen_at(other | {1}, with_other_weights_at(step))
    seen = step in (one | {1}) & (other | {1})
    assert equal_results(first, second) == (not seen)
    assert distinct_results((first, second)) == 1 + seen


def test_two_runs_that_differ_are_two_results_whatever_a_third_did_not_see() -> None:
    """The third equals both: it looked at neither of their steps."""
    blind, first, second = seen_at({1}), evidence_of(), with_other_weights_at(2)
    for order in ((blind, first, second), (first, blind, second), (first, second, blind)):
        assert distinct_results(order) == 2


def test_nothing_observed_in_common_is_a_fault_that_names_itself() -> None:
    (fault,), compared = compare_steps(seen_at({1}).steps, seen_at({2}).steps)
    assert fault.message == "no optimizer step was observed on both sides"
    assert compared == 0


def test_a_result_without_numbers_or_tensors_equals_nothing() -> None:
    empty = evidence_of().model_copy(update={"metrics": ()})
    assert not equal_results(empty, empty)


def test_runs_that_end_in_other_weights_differ_though_all_numbers_are_equal() -> None:
    assert not equal_results(evidence_of(), evidence_of(weights=b"others"))
    assert distinct_results((evidence_of(), evidence_of(weights=b"others"))) == 2
