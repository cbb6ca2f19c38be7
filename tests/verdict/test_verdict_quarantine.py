"""An entry in quarantine does not judge: the base commit does, and nothing passes unverified."""

from __future__ import annotations

from dataclasses import replace

from decision_cases import EXACT, FAR, OTHER_TORCH, RUN, TOLERANT, compare, facts_of, moved, row
from each_row import each_row
from evidence_cases import COMMIT, CREATED_AT, evidence_of, settings_of
from hypothesis import given
from hypothesis import strategies as st

from gate.baseline.entry import BaselineEntry
from gate.evidence.run_evidence import RunEvidence
from gate.settings.levels import Quarantine
from gate.verdict.decision import decide, needs_base_run
from gate.verdict.facts import Decision
from gate.verdict.reached_level import in_force, quarantine_findings
from gate.verdict.verdict import Answer, Outcome

RULE = Quarantine(reason="one runner is broken", since="2026-01-01", until="2026-01-20")
LOSS = RULE.model_copy(update={"metrics": ("loss",)})
OTHER = RULE.model_copy(update={"metrics": ("accuracy",)})
# the loss alone is another one, as from another formula of what is reported
LOSS_ALONE = RUN.model_copy(update={"metrics": FAR.metrics})
ENTRY = BaselineEntry(
    commit=COMMIT,
    recorded_at=CREATED_AT,
    training={},
    environment=RUN.environment,
    metrics=RUN.metrics,
    steps=RUN.steps,
    checkpoint=RUN.checkpoint,
)


def _decide(
    entry: RunEvidence,
    *rules: Quarantine,
    base: RunEvidence | None = RUN,
    again: RunEvidence | None = None,
) -> Decision:
    facts = replace(facts_of(baseline=entry), quarantine=rules)
    if base is not None:
        ran = compare(base, RUN, EXACT)
        facts = replace(facts, base_run=ran, base_repeat=compare(base, again or base, EXACT))
    return decide(facts)


def test_what_the_base_commit_gives_here_too_passes_and_is_not_reproduced() -> None:
    decision = _decide(FAR, RULE)
    assert row(decision) == (Outcome.WITHIN_TOLERANCE, True)
    assert decision.excused
    assert decision.answers.baseline is Answer.OUTSIDE
    assert decision.cause == (
        "the baseline's entry is in quarantine until 2026-01-20 (one runner is broken); equal to "
        "the base commit run on this machine"
    )


def test_without_a_rule_the_entry_judges() -> None:
    assert row(_decide(FAR)) == (Outcome.CODE_DRIFT, False)


def test_a_change_that_moves_the_result_fails_all_the_same() -> None:
    decision = _decide(RUN, RULE, base=FAR)
    # equal to the entry: nothing is excused, and nothing has to be
    assert row(decision) == (Outcome.REPRODUCED, True)
    other = evidence_of(values=(2.5, 2.25, 4.0), weights=b"OTHER")
    decision = _decide(FAR, RULE, base=other)
    assert row(decision) == (Outcome.CODE_DRIFT, False)
    assert "differs from the base commit run on this machine" in decision.cause


def test_without_a_run_of_the_base_commit_nothing_is_excused() -> None:
    decision = _decide(FAR, RULE, base=None)
    assert row(decision) == (Outcome.CODE_DRIFT, False)
    assert decision.cause.endswith("which excuses nothing without a run of the base commit here")


def test_a_base_commit_that_does_not_repeat_judges_nothing() -> None:
    decision = _decide(FAR, RULE, again=FAR)
    assert row(decision) == (Outcome.ENVIRONMENT_DRIFT, False)
    assert decision.cause.endswith("and two runs of the base commit differ here")


def test_a_rule_for_a_metric_covers_that_metric_alone() -> None:
    assert row(_decide(LOSS_ALONE, LOSS)) == (Outcome.WITHIN_TOLERANCE, True)
    assert row(_decide(LOSS_ALONE, OTHER)) == (Outcome.CODE_DRIFT, False)
    # the weights are others too: that is no matter of how a loss is reported
    assert row(_decide(FAR, LOSS)) == (Outcome.CODE_DRIFT, False)


def test_packages_that_moved_are_covered_by_a_rule_of_the_whole_entry() -> None:
    entry = moved(FAR, OTHER_TORCH)
    assert row(_decide(entry)) == (Outcome.ENVIRONMENT_DRIFT, False)
    assert row(_decide(entry, RULE)) == (Outcome.WITHIN_TOLERANCE, True)


def test_equal_bits_are_still_asked_for_where_the_policy_does() -> None:
    facts = replace(
        facts_of(settings_of(policy={"require_bitwise": True}), baseline=FAR), quarantine=(RULE,)
    )
    ran = compare(RUN, RUN, EXACT)
    decision = decide(replace(facts, base_run=ran, base_repeat=ran))
    assert row(decision) == (Outcome.WITHIN_TOLERANCE, False)


@given(st.sampled_from([RUN, FAR, LOSS_ALONE]), st.sampled_from([RUN, FAR, None]))
def test_a_rule_never_lets_pass_what_neither_the_entry_nor_the_base_gives(
    entry: RunEvidence, base: RunEvidence | None
) -> None:
    decision = _decide(entry, RULE, base=base)
    assert decision.passes is (entry is RUN or base is RUN)


def test_runs_that_differ_are_not_excused() -> None:
    facts = replace(facts_of(baseline=FAR, again=FAR), quarantine=(RULE,))
    assert decide(facts).outcome is Outcome.NONDETERMINISTIC


def test_the_base_commit_is_run_only_where_the_rule_covers_what_differs() -> None:
    def needed(entry: RunEvidence, *rules: Quarantine) -> bool:
        return needs_base_run(compare(entry, RUN, TOLERANT), TOLERANT, quarantine=rules)

    assert needed(FAR, RULE)
    assert not needed(FAR)
    assert not needed(RUN, RULE)


@each_row(
    ("now", "holds"),
    [
        ("2025-12-31T23:59:59+00:00", False),
        ("2026-01-01T00:00:00+00:00", True),
        ("2026-01-20T23:59:59+00:00", True),
        ("2026-01-21T00:00:00+00:00", False),
        # the days are those of UTC, whatever zone a clock is in
        ("2026-01-21T00:30:00+02:00", True),
    ],
)
def test_a_rule_holds_from_its_first_day_to_its_last(now: str, holds: bool) -> None:  # noqa: FBT001 - a column
    assert bool(in_force((RULE,), ENTRY, now)) is holds


def test_a_rule_is_about_the_entries_whose_parts_fit() -> None:
    def holds(**parts: str) -> bool:
        rule = RULE.model_copy(update={"environment": parts})
        return bool(in_force((rule,), ENTRY, CREATED_AT))

    assert holds(cpu="o*", device="cpu")
    assert not holds(cpu="o*", device="NVIDIA*")
    assert holds(driver="none")
    assert in_force((RULE,), None, CREATED_AT) == ()


def _told(now: str, *, holds: bool = False, excused: bool = False) -> list[tuple[str, str]]:
    found = quarantine_findings((RULE,), ENTRY, now, holds=holds, excused=excused)
    return [(finding.code, finding.message) for finding in found]


def test_a_reader_is_told_what_a_rule_did() -> None:
    ((code, told),) = _told(CREATED_AT, excused=True)
    assert code == "quarantine"
    assert told == (
        "the baseline is in quarantine until 2026-01-20: one runner is broken; the base commit, "
        "run here, judged instead"
    )
    assert _told(CREATED_AT)[0][1].endswith("one runner is broken; it excused nothing")
    assert _told(CREATED_AT, holds=True)[0][0] == "quarantine-not-needed"


def test_a_rule_whose_time_is_over_is_told_as_that() -> None:
    ((code, told),) = _told("2026-01-21T10:00:00+00:00")
    assert code == "quarantine-expired"
    assert told == (
        "the quarantine of the baseline ended on 2026-01-20 and no longer applies: one "
        "runner is broken"
    )
