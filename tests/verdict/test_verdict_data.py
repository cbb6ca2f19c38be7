"""Declared data that is not the baseline's: what becomes of each difference."""

from __future__ import annotations

from dataclasses import replace

import pytest
from data_cases import set_of
from decision_cases import (
    EXACT,
    FAR,
    MAYBE,
    NEAR,
    RUN,
    RUNS,
    TOLERANT,
    compare,
    facts_of,
    row,
)
from evidence_cases import settings_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.data_moves import data_moves
from gate.comparison.differences import Comparison
from gate.data.data_sets import UnrepeatedData
from gate.evidence.run_evidence import RunEvidence
from gate.settings.gate_settings import GateSettings
from gate.verdict.decision import decide, needs_base_run
from gate.verdict.facts import Facts
from gate.verdict.findings import moved_data as findings_of
from gate.verdict.verdict import Outcome

BEFORE, AFTER = (set_of({"a": b"1"}),), (set_of({"a": b"2"}),)
MOVES = data_moves(BEFORE, AFTER)
LENIENT = settings_of(
    compare={"tolerances": ({"metric": "*", "absolute": 0.5},)}, policy={"data_drift": "pass"}
)


def facts(
    settings: GateSettings,
    baseline: RunEvidence,
    base: RunEvidence | None = None,
    *,
    brought: bool = False,
) -> Facts:
    made = replace(facts_of(settings, baseline=baseline), data_moved=MOVES, data_brought=brought)
    if base is None:
        return made
    return replace(
        made,
        base_run=compare(base, RUN, settings),
        base_repeat=compare(base, base, settings),
    )


@pytest.mark.parametrize("settings", [EXACT, TOLERANT])
@pytest.mark.parametrize("baseline", [NEAR, FAR])
def test_other_bits_with_other_data_are_data_drift(
    settings: GateSettings, baseline: RunEvidence
) -> None:
    assert row(decide(facts(settings, baseline))) == (Outcome.DATA_DRIFT, False)


def test_equal_bits_are_the_answer_whatever_moved() -> None:
    assert row(decide(facts(EXACT, RUN))) == (Outcome.REPRODUCED, True)


def test_the_policy_lets_a_result_within_tolerance_pass_and_no_other() -> None:
    assert row(decide(facts(LENIENT, NEAR))) == (Outcome.WITHIN_TOLERANCE, True)
    assert row(decide(facts(LENIENT, FAR))) == (Outcome.DATA_DRIFT, False)


def test_a_base_commit_with_the_same_data_tells_code_from_data() -> None:
    same, other = decide(facts(TOLERANT, FAR, RUN)), decide(facts(TOLERANT, FAR, FAR))
    assert (same.outcome, other.outcome) == (Outcome.DATA_DRIFT, Outcome.CODE_DRIFT)
    assert "with this data the base commit gives the same result here" in same.cause


def test_a_base_commit_with_its_own_data_says_nothing_of_the_code() -> None:
    decision = decide(facts(TOLERANT, FAR, FAR, brought=True))
    assert decision.outcome is Outcome.DATA_DRIFT
    assert decision.cause.startswith("the change selects other data (mini, 1 of 1 file")


def test_the_base_commit_is_run_where_it_can_tell() -> None:
    far = compare(FAR, RUN, TOLERANT)
    assert needs_base_run(far, TOLERANT, data_moved=True)
    assert not needs_base_run(far, TOLERANT)
    assert not needs_base_run(compare(RUN, RUN, TOLERANT), TOLERANT, data_moved=True)


def test_preprocessing_that_differs_comes_before_every_comparison() -> None:
    unrepeated = UnrepeatedData(command="python p.py", move=MOVES[0])
    decision = decide(replace(facts_of(), unrepeated=unrepeated))
    assert row(decision) == (Outcome.NONDETERMINISTIC, False)
    assert decision.cause.startswith("the preprocessing is not repeatable: two runs of python p.py")


@given(RUNS, MAYBE, st.booleans(), st.sampled_from([EXACT, TOLERANT]))
def test_moved_data_never_makes_a_pass_of_other_bits(
    baseline: RunEvidence,
    base: RunEvidence | None,
    brought: bool,  # noqa: FBT001 - drawn
    settings: GateSettings,
) -> None:
    decision = decide(facts(settings, baseline, base, brought=brought))
    equal: Comparison = compare(baseline, RUN, settings)
    assert decision.passes == equal.numerically_equal


def test_each_set_that_moved_is_a_finding() -> None:
    (finding,) = findings_of(facts(EXACT, RUN))
    assert (finding.code, finding.message) == ("data-moved", "mini, 1 of 1 file (first: a)")
    assert finding.remedy.startswith("Every commit trains on it now")
    (brought,) = findings_of(facts(EXACT, RUN, brought=True))
    assert brought.remedy.startswith("This change introduces it")
