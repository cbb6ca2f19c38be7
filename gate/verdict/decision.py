"""The decision table: one row of facts in, one outcome out. Pure, ordered, without blind passes.

The questions are in the order of trust: is there anything to judge, can the comparators still see,
is the training repeatable, and only then what it is compared with. The first question that objects
decides. A later answer can therefore never hide an earlier objection.
"""

from __future__ import annotations

from dataclasses import replace

from gate.comparison.differences import Comparison
from gate.data.data_sets import unrepeated_data
from gate.settings.gate_settings import GateSettings
from gate.settings.levels import Quarantine, ReachedLevel
from gate.verdict import reached_level, reasons
from gate.verdict.facts import (
    Decision,
    Facts,
    agree,
    answer_of,
    failed,
    inside,
    passed,
    repeat_answer,
    within_tolerance,
)
from gate.verdict.reached_level import excusing
from gate.verdict.resume_verdict import stopped_by_resume, unrepeated_start
from gate.verdict.verdict import DRIFTS, Answer, Answers, Outcome

PAIR = 2


def decide(facts: Facts) -> Decision:
    """Return the decision for these facts, by the decision table in docs/architecture.md.

    Objections come before passes. The cost of determinism is checked last: it can stop a pass but
    never create one.
    """
    # Outcome and answers come from the same facts, through the same functions. A report can
    # therefore not contradict the outcome.
    decision = replace(_judge(facts), answers=_answers(facts))
    decision = _without_chance(_by_level(decision, facts), facts)
    return _priced(decision, facts) if decision.passes else decision


def _by_level(decision: Decision, facts: Facts) -> Decision:
    """Return the decision with the level that was reached, and whether the policy accepts it.

    A level below the numerical one excuses exactly one thing: a result that repeats but differs
    from the baseline's. A missed threshold stops a pass at every level.
    """
    policy = facts.settings.policy
    level = reached_level.reached(decision.outcome, facts.base_run, facts.thresholds, facts.judged)
    decision = replace(decision, level=level)
    if decision.outcome in DRIFTS:
        cause = f"{decision.cause}; {reached_level.why(policy.level, level, facts.judged)}"
        passes = reached_level.is_enough(level, policy.level)
        decision = replace(decision, passes=passes, cause=cause.removesuffix("; "))
    missed = [threshold for threshold in facts.thresholds if not threshold.met]
    if decision.passes and missed:
        cause = f"{decision.cause}; but {reasons.missed_threshold(missed[0])}"
        return replace(decision, passes=False, cause=cause, missed_threshold=True)
    return decision


def _without_chance(decision: Decision, facts: Facts) -> Decision:
    """Return the decision, failed if it passes by less than equal bits and the script drew entropy.

    Two runs that each draw and still agree have most likely shared a number. A tolerance would then
    accept whichever number that was.
    """
    exact = decision.level is ReachedLevel.BITWISE
    if not decision.passes or exact or facts.entropy is None:
        return decision
    cause = f"{decision.cause}; but {reasons.entropy(facts.entropy.call, facts.entropy.place)}"
    return replace(decision, passes=False, cause=cause, by_chance=True)


def _priced(decision: Decision, facts: Facts) -> Decision:
    settings, cost = facts.settings.cost, facts.cost
    # An unmeasured cost exceeds no budget: a noisy machine must not turn a pull request red.
    if cost is None or cost.low is None or settings.budget_percent is None:
        return decision
    if not settings.exceeded_by(cost.low, measured=cost.state.exceeds_noise):
        return decision
    cause = (
        f"{decision.cause}; but determinism costs at least {(cost.low - 1) * 100:.1f} % step "
        f"time, and cost.budget_percent allows {settings.budget_percent:g} %"
    )
    return replace(decision, passes=False, cause=cause, over_budget=True)


def _judge(facts: Facts) -> Decision:
    # This comes first: with blind comparators, or nothing compared, no later answer means anything.
    blocked = _error(facts)
    if blocked:
        return failed(Outcome.ERROR, blocked)
    apart = _by_itself(facts)
    if apart is not None:
        return apart
    # This precedes the old baseline, which the pull request means to replace. The new one is more
    # than a claim because this run reproduces it bit for bit.
    if facts.proposed is not None and facts.proposed.numerically_equal:
        return _baseline_change(facts)
    # A provisional entry may not judge yet, even where the run gives the same bits.
    if facts.provisional is not None or facts.baseline is None:
        cause = reasons.no_baseline(facts.nearest, facts.provisional)
        return failed(Outcome.NO_BASELINE, cause)
    # A different command, seed or step count is a different experiment: its numbers need not be
    # near.
    if not facts.same_training:
        cause = reasons.other_settings(facts.other_settings)
        decision = failed(Outcome.NOT_COMPARABLE, cause, facts.baseline)
        return replace(decision, other_training=True)
    return _against_baseline(facts, facts.baseline)


def _by_itself(facts: Facts) -> Decision | None:
    # All trainings got the output of the second preprocessing run. That they agree does not show
    # that preprocessing repeats.
    if facts.unrepeated is not None:
        return failed(Outcome.NONDETERMINISTIC, unrepeated_data(facts.unrepeated))
    if facts.one_run is None and not facts.repeat.numerically_equal:
        return failed(Outcome.NONDETERMINISTIC, _runs_differ(facts), facts.repeat)
    # Two runs miss a fault that strikes one run in ten four times out of five. Every other run that
    # does the same work is therefore compared too.
    for other in facts.like_strict:
        if not other.numerically_equal:
            return failed(Outcome.NONDETERMINISTIC, reasons.one_run_differs(other), other)
    # Resuming, like repeating, is a property of the commit alone: no baseline can excuse it.
    return unrepeated_start(facts) or stopped_by_resume(facts)


def _runs_differ(facts: Facts) -> str:
    return reasons.runs_differ(facts.repeat, facts.unequal, facts.strict_runs)


def _error(facts: Facts) -> str:
    """Return why nothing can be judged, or "" if something can."""
    if facts.not_finite is not None:
        return reasons.not_finite(facts.not_finite)
    # A difference is an answer even if nothing was equal. No overlap at all is none (T4).
    compared = facts.repeat.something_compared or facts.repeat.differs
    if not compared and not _equals_recorded_runs(facts):
        return "nothing was compared: the runs have no metric or no tensor in common"
    if not facts.self_test:
        return "the self-test did not run, so nothing shows that a difference would be detected"
    missed = [probe.name for probe in facts.self_test if not probe.caught]
    # A comparator that misses one planted fault may miss a real one, so no later answer counts.
    if missed:
        return f"the self-test failed: not caught: {', '.join(missed)}"
    # The runs were equal by luck in two environments, and the result belongs to neither.
    if facts.repeat.numerically_equal and facts.repeat.environment:
        return f"the environment moved while the gate ran: {reasons.moved_parts(facts.repeat)}"
    return ""


def _equals_recorded_runs(facts: Facts) -> bool:
    """Return whether the call's only run equals the entry's runs; checked again, never assumed."""
    against = facts.baseline
    return (
        facts.one_run is not None
        and against is not None
        and facts.same_training
        and facts.provisional is None
        and against.same_environment
        and against.numerically_equal
    )


def _baseline_change(facts: Facts) -> Decision:
    cause = "the pull request includes a new baseline, and this run reproduces it bit for bit"
    passes = facts.settings.policy.allow_baseline_change
    if not passes:
        cause += "; the policy does not allow that"
    return Decision(
        outcome=Outcome.BASELINE_CHANGE, passes=passes, cause=cause, decided=facts.proposed
    )


def _against_baseline(facts: Facts, baseline: Comparison) -> Decision:
    # Equal bits settle the question: no change of the environment can make them less equal.
    if baseline.numerically_equal:
        cause = "equal to the baseline, bit for bit"
        if facts.one_run is not None:
            cause = f"{cause}: {facts.one_run.described}"
        return passed(Outcome.REPRODUCED, cause, baseline)
    if facts.data_moved:
        return _data_moved(facts, baseline)
    if facts.own_environments and facts.base_run is not None:
        return _environment_brought(facts, baseline, facts.base_run)
    usual = _judged_by_entry(facts, baseline)
    rule = None if usual.passes else excusing(baseline, facts.quarantine, facts.settings)
    return usual if rule is None else _in_quarantine(facts, baseline, usual, rule)


def _data_moved(facts: Facts, baseline: Comparison) -> Decision:
    """Decide where the declared data moved, so that the entry cannot judge the code.

    The base commit, run here with the current data, shows whether the change also moves the result.
    Where the change itself moved the data, the base trains with its own data and shows nothing.
    """
    differs = reasons.drift(baseline, "the baseline")
    moved = reasons.moved_data_reason(facts.data_moved, by_change=facts.data_brought)
    base = facts.base_run
    if base is None or facts.data_brought or not _base_repeats(facts):
        return _data_drift(facts, baseline, f"{moved}, and the result {differs}")
    if not agree(base, facts.settings):
        against = "the base commit, run here with the same data"
        return failed(Outcome.CODE_DRIFT, f"{moved}; {reasons.drift(base, against)}", base)
    how = "the same result" if base.numerically_equal else "the result within tolerance"
    cause = f"{moved}, and the result {differs}; with this data the base commit gives {how} here"
    return _data_drift(facts, baseline, cause)


def _data_drift(facts: Facts, baseline: Comparison, cause: str) -> Decision:
    may_pass = facts.settings.policy.data_drift == "pass"
    near = baseline.comparable_environment and baseline.comparable
    if may_pass and near and inside(baseline, facts.settings):
        return within_tolerance(facts, f"{cause}, within tolerance, and policy.data_drift is pass")
    return failed(Outcome.DATA_DRIFT, cause, baseline)


def _base_repeats(facts: Facts) -> bool:
    """Return whether two runs of the base commit agree.

    If they do not, the base commit measures this machine instead of the change.
    """
    return repeat_answer(facts.base_repeat) is Answer.EQUAL


def _judged_by_entry(facts: Facts, baseline: Comparison) -> Decision:
    ranks = reasons.other_ranks(baseline, facts.settings.policy.level)
    if ranks:
        return _environment_drift(ranks, baseline)
    if needs_base_run(baseline, facts.settings):
        return _environment_moved(facts, baseline)
    if baseline.comparable_environment and not baseline.comparable:
        return failed(Outcome.NOT_COMPARABLE, reasons.not_common(baseline), baseline)
    if baseline.comparable_environment and inside(baseline, facts.settings):
        return within_tolerance(
            facts, f"{reasons.nearness(baseline)} the baseline{reasons.worst(baseline)}"
        )
    return _outside(facts, baseline)


def _outside(facts: Facts, baseline: Comparison) -> Decision:
    # Code and environment are unchanged. The cause must be something that neither of them contains.
    if facts.nothing_moved:
        return _environment_drift(reasons.same_code(baseline), baseline)
    cause = reasons.drift(baseline, "the baseline of this environment")
    return failed(Outcome.CODE_DRIFT, cause, baseline)


def _in_quarantine(
    facts: Facts, baseline: Comparison, usual: Decision, rule: Quarantine
) -> Decision:
    """Let the base commit, run here, judge instead of the entry: no pass is unverified (T4)."""
    words, base = reasons.quarantined(rule), facts.base_run
    if base is None:
        return replace(usual, cause=f"{usual.cause}; {words}, which excuses nothing without a run "
                       "of the base commit here")  # fmt: skip
    if not _base_repeats(facts):
        cause = f"{words}, and two runs of the base commit differ here"
        return _environment_drift(cause, baseline)
    if not agree(base, facts.settings):
        cause = reasons.drift(base, "the base commit run on this machine")
        return failed(Outcome.CODE_DRIFT, f"{words}; {cause}", base)
    cause = f"{words}; {reasons.nearness(base)} the base commit run on this machine"
    return replace(within_tolerance(facts, cause), excused=True)


def _environment_moved(facts: Facts, baseline: Comparison) -> Decision:
    """Decide where the environment moved: the base commit on this machine judges as far as it can.

    It cannot judge software that moved and that a pull request may install. The base ran here with
    the same new packages, so its agreement with the head does not show what they changed.
    """
    moved = reasons.moved_parts(baseline)
    base = facts.base_run
    if base is None:
        return _environment_drift(
            f"differs from the baseline, and so does the environment ({moved}): without a run of "
            "the base commit here, either could be the cause",
            baseline,
        )
    # A base that does not repeat its own result here measures this machine, not the change.
    if not _base_repeats(facts):
        return _environment_drift(
            f"the environment moved ({moved}) and two runs of the base commit differ here",
            baseline,
        )
    if not agree(base, facts.settings):
        cause = reasons.drift(base, "the base commit run on this machine")
        return failed(Outcome.CODE_DRIFT, cause, base)
    if baseline.software_moved:
        return _environment_drift(reasons.software_moved(baseline, moved), baseline)
    how = reasons.nearness(base)
    cause = f"the environment moved ({moved}); {how} the base commit run on this machine"
    return _held_by_base(facts, cause, baseline)


def _held_by_base(facts: Facts, cause: str, baseline: Comparison) -> Decision:
    """Decide where the base commit gives the same result here, unlike the committed baseline."""
    if facts.settings.policy.environment_drift == "fail":
        return _environment_drift(f"{cause}, but policy.environment_drift is fail", baseline)
    return within_tolerance(facts, cause)


def _environment_brought(facts: Facts, baseline: Comparison, base: Comparison) -> Decision:
    """Decide where base and head each ran here in their own environment.

    A difference between them then comes with the change: from its environment or from its code.
    """
    if not _base_repeats(facts):
        return _environment_drift(
            "the change uses another environment, and two runs of the base commit differ here",
            baseline,
        )
    if agree(base, facts.settings):
        how = reasons.nearness(base)
        cause = f"the change uses another environment; {how} the base commit in its own"
        return _held_by_base(facts, cause, baseline)
    # The base commit in the new environment separates the environment's effect from the code's.
    here, moved = facts.base_here, facts.base_moved
    code = moved is not None and agree(moved, facts.settings)
    if code:
        cause = reasons.drift(base, "the base commit, which gives one result in both environments")
        return failed(Outcome.CODE_DRIFT, cause, base)
    alone = here is not None and agree(here, facts.settings)
    return failed(Outcome.DEPENDENCY_DRIFT, reasons.dependency_drift(base, alone=alone), base)


def needs_base_run(
    baseline: Comparison,
    settings: GateSettings,
    *,
    own_environments: bool = False,
    quarantine: tuple[Quarantine, ...] = (),
    data_moved: bool = False,
) -> bool:
    """Return whether the outcome depends on a run of the base commit.

    `data_moved`: the declared data moved, but not by this change. The base commit then shows
    whether the change also moves the result. `own_environments`: the change installs a different
    environment, whatever parts of it differ. `quarantine`: the rules in force for the entry; the
    base commit judges what they cover.
    """
    if not answer_of(baseline, settings).good and excusing(baseline, quarantine, settings):
        return True
    if data_moved and not baseline.numerically_equal:
        return True
    # The base commit runs with the head's number of ranks, so it says nothing about the entry's.
    if reasons.other_ranks(baseline, settings.policy.level) and not own_environments:
        return False
    # Settled in both cases: equal bits need no base, and in one environment only the code can
    # differ.
    if baseline.numerically_equal or (baseline.same_environment and not own_environments):
        return False
    decided = not baseline.comparable or inside(baseline, settings)
    return not (baseline.comparable_environment and decided)


def _environment_drift(cause: str, baseline: Comparison) -> Decision:
    return failed(Outcome.ENVIRONMENT_DRIFT, cause, baseline)


def _answers(facts: Facts) -> Answers:
    """Return the answer to each question, by the same rules as the decision; reports show these."""
    settings = facts.settings
    if _equals_recorded_runs(facts):
        # Only one run was made, so there is no answer on repeating.
        return Answers(baseline=Answer.EQUAL)
    if facts.strict_runs < PAIR:
        return Answers()
    repeats = facts.repeat.numerically_equal and all(
        comparison.numerically_equal for comparison in facts.like_strict
    )
    if not repeats:
        # One of two different results may well equal the baseline. That would prove nothing.
        return Answers(repeat=Answer.OUTSIDE)
    against = facts.baseline
    if facts.proposed is not None and facts.proposed.numerically_equal:
        against = facts.proposed
    baseline = answer_of(against, settings)
    if against is facts.baseline and not facts.same_training and against is not None:
        baseline = Answer.NOT_COMPARABLE
    return Answers(
        repeat=Answer.EQUAL,
        baseline=baseline,
        base_run=answer_of(facts.base_run, settings),
        base_repeat=repeat_answer(facts.base_repeat),
        base_here=answer_of(facts.base_here, settings),
    )
