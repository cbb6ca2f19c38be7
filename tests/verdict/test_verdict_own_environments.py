"""Base and head, each in its own environment; an environment that moved; code that did not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from decision_cases import (
    BITWISE,
    EXACT,
    FAR,
    MAYBE,
    NEAR,
    OTHER_CPU,
    OTHER_DRIVER,
    OTHER_TORCH,
    RUN,
    RUNS,
    TOLERANT,
    compare,
    facts_of,
    moved,
    row,
    with_base,
)
from evidence_cases import evidence_of, settings_of
from hypothesis import given
from hypothesis import strategies as st

from gate.evidence.run_evidence import RunEvidence
from gate.settings.gate_settings import GateSettings
from gate.verdict.decision import decide
from gate.verdict.facts import Decision
from gate.verdict.verdict import Outcome


def _brought(
    base: RunEvidence,
    here: RunEvidence | None = None,
    settings: GateSettings = TOLERANT,
    again: RunEvidence | None = None,
) -> Decision:
    """Head against a base that ran in its own environment; `here`: the base in head's."""
    facts = facts_of(settings, baseline=moved(FAR, OTHER_TORCH))
    return decide(
        replace(
            facts,
            own_environments=True,
            base_run=compare(base, RUN, settings),
            base_repeat=compare(base, again or base, settings),
            base_here=compare(here, RUN, settings) if here else None,
            base_moved=compare(base, here, settings) if here else None,
        )
    )


def test_a_new_environment_that_moves_the_result_is_dependency_drift() -> None:
    decision = _brought(FAR, here=RUN)
    assert row(decision) == (Outcome.DEPENDENCY_DRIFT, False)
    assert decision.cause == (
        "the environment that the change installs changes the result; differs from the base commit "
        "in its own environment: loss at step 3 is 2.125, expected 9.0"
    )


def test_code_that_moves_it_in_both_environments_is_code_drift() -> None:
    decision = _brought(FAR, here=FAR)
    assert row(decision) == (Outcome.CODE_DRIFT, False)
    assert decision.cause.startswith(
        "differs from the base commit, which gives one result in both environments: loss"
    )


@pytest.mark.parametrize("here", [None, evidence_of(values=(2.5, 5.25, 5.0), weights=b"WEIGHTs")])
def test_where_both_may_move_it_both_are_named(here: RunEvidence | None) -> None:
    decision = _brought(FAR, here=here)
    assert row(decision) == (Outcome.DEPENDENCY_DRIFT, False)
    assert "which changes the result, as may its code" in decision.cause


def test_a_new_environment_that_moves_nothing_passes() -> None:
    decision = _brought(RUN)
    assert row(decision) == (Outcome.WITHIN_TOLERANCE, True)
    assert decision.cause == (
        "the change uses another environment; equal to the base commit in its own"
    )
    assert row(_brought(NEAR)) == (Outcome.WITHIN_TOLERANCE, True)


def test_a_base_that_does_not_repeat_in_its_own_environment_decides_nothing() -> None:
    assert row(_brought(RUN, again=FAR)) == (Outcome.ENVIRONMENT_DRIFT, False)


def test_the_policy_may_refuse_an_environment_that_moved() -> None:
    rule = {"metric": "*", "absolute": 0.5}
    strict = settings_of(compare={"tolerances": (rule,)}, policy={"environment_drift": "fail"})
    for decision in (with_base(RUN, settings=strict), _brought(RUN, settings=strict)):
        assert row(decision) == (Outcome.ENVIRONMENT_DRIFT, False)
        assert decision.cause.endswith("but policy.environment_drift is fail")
    # nothing to refuse where the baseline itself decides
    assert decide(facts_of(strict, baseline=moved(NEAR, OTHER_CPU))).passes


def test_the_same_code_in_the_same_environment_is_not_called_code_drift() -> None:
    decision = decide(replace(facts_of(baseline=FAR), same_code=True))
    assert row(decision) == (Outcome.ENVIRONMENT_DRIFT, False)
    assert decision.cause == (
        "same code, same environment, a different result: data outside the repository, or the "
        "hardware; differs from the baseline: loss at step 3 is 2.125, expected 9.0"
    )


def test_the_same_code_on_another_machine_is_not_said_to_have_moved_nothing() -> None:
    facts = replace(facts_of(baseline=moved(FAR, OTHER_DRIVER)), same_code=True)
    assert not facts.nothing_moved
    decision = decide(facts)
    assert row(decision) == (Outcome.ENVIRONMENT_DRIFT, False)
    assert "same code" not in decision.cause


@given(st.sampled_from([EXACT, TOLERANT, BITWISE]), RUNS, RUNS, MAYBE, st.booleans())
def test_no_pass_where_head_and_base_differ_in_their_own_environments(
    settings: GateSettings,
    baseline: RunEvidence,
    base: RunEvidence,
    here: RunEvidence | None,
    same_code: bool,  # noqa: FBT001 - drawn by hypothesis
) -> None:
    facts = replace(
        facts_of(settings, baseline=baseline),
        own_environments=True,
        base_run=compare(base, RUN, settings),
        base_repeat=compare(base, base, settings),
        base_here=compare(here, RUN, settings) if here else None,
        base_moved=compare(base, here, settings) if here else None,
        same_code=same_code,
    )
    decision = decide(facts)
    if decision.passes and decision.outcome is not Outcome.REPRODUCED:
        assert decision.answers.base_run.good
    # a change of nothing is never called a change of the code
    if same_code and base is RUN:
        assert decision.outcome is not Outcome.CODE_DRIFT
