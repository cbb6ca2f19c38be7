"""The lattice: a row of facts in, one outcome out. Pure, ordered, and closed against blind passes.

The order of the questions is the order of trust: is there anything to judge, can the comparators
still see, is the training repeatable, and only then what it is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass

from gate.records.comparison import Comparison, CostState, DeterminismCost, TensorChange
from gate.records.settings import GateSettings
from gate.records.verdict import CanaryProbe, Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All that an outcome depends on.

    `baseline` compares the first strict run with the chosen entry; `proposed` compares it with the
    entry that the pull request itself brings; `base_run` and `base_repeat` compare head with base
    and base with base on this machine.
    """

    settings: GateSettings
    repeat: Comparison
    canary: tuple[CanaryProbe, ...]
    not_finite: tuple[str, int, str] | None = None
    baseline: Comparison | None = None
    same_training: bool = True
    proposed: Comparison | None = None
    base_run: Comparison | None = None
    base_repeat: Comparison | None = None
    cost: DeterminismCost | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """An outcome, whether it passes, and the one sentence that says why.

    `over_budget` tells that nothing but the price of determinism keeps it from passing.
    """

    outcome: Outcome
    passes: bool
    cause: str
    over_budget: bool = False


def decide(facts: Facts) -> Decision:
    """Walk the lattice of docs/architecture.md from its strongest objection to its pass.

    What determinism costs is asked last: it can stop a pass, and never turns into one.
    """
    decision = _judge(facts)
    return _priced(decision, facts) if decision.passes else decision


def _priced(decision: Decision, facts: Facts) -> Decision:
    settings, cost = facts.settings.cost, facts.cost
    if cost is None or cost.low is None or settings.budget_percent is None:
        return decision
    if not settings.exceeded_by(cost.low, measured=cost.state is CostState.MEASURED):
        return decision
    cause = (
        f"{decision.cause}; but determinism costs at least {(cost.low - 1) * 100:.1f} % step "
        f"time, and cost.budget_percent allows {settings.budget_percent:g} %"
    )
    return Decision(outcome=decision.outcome, passes=False, cause=cause, over_budget=True)


def _judge(facts: Facts) -> Decision:
    blocked = _error(facts)
    if blocked:
        return _fail(Outcome.ERROR, blocked)
    if not facts.repeat.numerically_equal:
        return _fail(Outcome.NONDETERMINISTIC, _where_runs_differ(facts.repeat))
    if facts.proposed is not None and facts.proposed.numerically_equal:
        return _baseline_change(facts)
    if facts.baseline is None:
        return _fail(
            Outcome.NO_BASELINE,
            "two strict runs are equal, but there is no baseline to compare them with",
        )
    if not facts.same_training:
        return _fail(
            Outcome.NOT_COMPARABLE,
            "the baseline was recorded with another command, seed, step or thread count",
        )
    return _against_baseline(facts, facts.baseline)


def _fail(outcome: Outcome, cause: str) -> Decision:
    return Decision(outcome=outcome, passes=False, cause=cause)


def _pass(outcome: Outcome, cause: str) -> Decision:
    return Decision(outcome=outcome, passes=True, cause=cause)


def _error(facts: Facts) -> str:
    """Why nothing can be said, or the empty text."""
    if facts.not_finite is not None:
        name, step, value = facts.not_finite
        return f"metric {name} is {value} at step {step}: such a number can never pass"
    if not facts.repeat.something_compared and not facts.repeat.differs:
        return "nothing was compared: the runs have no metric or no tensor in common"
    if not facts.canary:
        return "the canary did not run, so nothing shows that a difference would be seen"
    missed = [probe.name for probe in facts.canary if not probe.caught]
    if missed:
        return f"the canary failed: not caught: {', '.join(missed)}"
    if facts.repeat.numerically_equal and facts.repeat.environment:
        part = facts.repeat.environment[0].part
        return f"the environment moved while the gate ran: {part}"
    return ""


def _where_runs_differ(repeat: Comparison) -> str:
    if repeat.first_step is not None:
        return f"two strict runs of the same commit differ from step {repeat.first_step} on"
    return "two strict runs of the same commit end in different states"


def _baseline_change(facts: Facts) -> Decision:
    cause = "the pull request brings a new baseline, and this run reproduces it bit for bit"
    passes = facts.settings.policy.allow_baseline_change
    if not passes:
        cause += "; the policy does not let that pass"
    return Decision(outcome=Outcome.BASELINE_CHANGE, passes=passes, cause=cause)


def _against_baseline(facts: Facts, baseline: Comparison) -> Decision:
    if baseline.numerically_equal:
        return _pass(Outcome.REPRODUCED, "equal to the baseline, bit for bit")
    if baseline.comparable_environment and not _same_things(baseline):
        return _fail(Outcome.NOT_COMPARABLE, _what_is_not_common(baseline))
    if baseline.comparable_environment and _inside(baseline, facts.settings):
        return _within(facts, "inside the tolerance of the baseline")
    if baseline.same_environment:
        return _fail(Outcome.CODE_DRIFT, _drift(baseline, "the baseline of this environment"))
    return _environment_moved(facts, baseline)


def _environment_moved(facts: Facts, baseline: Comparison) -> Decision:
    """The baseline cannot decide; the base commit on this very machine can."""
    moved = ", ".join(change.part for change in baseline.environment)
    if facts.base_run is None:
        return _fail(
            Outcome.ENVIRONMENT_DRIFT,
            f"differs from the baseline, and so does the environment ({moved}): without a run of "
            "the base commit here nobody can tell which of the two did it",
        )
    if facts.base_repeat is None or not facts.base_repeat.numerically_equal:
        return _fail(
            Outcome.ENVIRONMENT_DRIFT,
            f"the environment moved ({moved}) and the base commit does not repeat itself here",
        )
    if facts.base_run.numerically_equal:
        return _within(
            facts, f"the environment moved ({moved}); equal to the base commit run on this machine"
        )
    if _same_things(facts.base_run) and _inside(facts.base_run, facts.settings):
        return _within(
            facts,
            f"the environment moved ({moved}); inside tolerance of the base commit run here",
        )
    return _fail(Outcome.CODE_DRIFT, _drift(facts.base_run, "the base commit run on this machine"))


def _within(facts: Facts, cause: str) -> Decision:
    if facts.settings.policy.require_bitwise:
        return _fail(Outcome.WITHIN_TOLERANCE, f"{cause}, but the policy wants equal bits")
    return _pass(Outcome.WITHIN_TOLERANCE, cause)


def _same_things(comparison: Comparison) -> bool:
    steps_alike = not any("expected" in fault for fault in comparison.step_faults)
    return comparison.comparable and steps_alike


def _inside(comparison: Comparison, settings: GateSettings) -> bool:
    """Metrics within tolerance; tensors too, unless a tolerance was given and the settings agree.

    Weights cannot stay equal where metrics may move, but a gate without any tolerance is exact.
    """
    compare = settings.compare
    tensors_may_differ = bool(compare.tolerances) and compare.tensors_within_tolerance
    tensors_differ = bool(comparison.tensors or comparison.step_faults)
    return comparison.within_tolerance and (tensors_may_differ or not tensors_differ)


def _what_is_not_common(comparison: Comparison) -> str:
    if comparison.series:
        fault = comparison.series[0]
        return f"metric {fault.metric}: {fault.reason}"
    for delta in comparison.tensors:
        if delta.kind is not TensorChange.CHANGED:
            word = "missing" if delta.kind is TensorChange.MISSING else "not in the baseline"
            return f"tensor {delta.name} is {word}"
    return next(iter(comparison.step_faults), "nothing in common")


def _drift(comparison: Comparison, against: str) -> str:
    outside = [delta for delta in comparison.metrics if not delta.within]
    if outside:
        first = min(outside, key=lambda delta: delta.step)
        return (
            f"differs from {against}: {first.metric} at step {first.step} is {first.observed}, "
            f"expected {first.expected}"
        )
    if comparison.tensors:
        return f"differs from {against} in {len(comparison.tensors)} tensor(s)"
    return f"differs from {against}: {next(iter(comparison.step_faults), '')}"
