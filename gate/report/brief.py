"""What stands first in every report: what happened, and whether it is this change.

What to do now are the verdict's next steps. All of it comes from the verdict's typed facts.
"""

from __future__ import annotations

from collections.abc import Callable

from gate.records.comparison import Comparison, EventKind, MetricDelta
from gate.records.verdict import Answer, Diagnosis, Outcome, Verdict
from gate.report.differences import worst_first
from gate.report.environment_words import moved_words
from gate.report.layout import Brief
from gate.report.wording import (
    CAUSE_TITLES,
    pair,
    percent,
    share,
    suspect_words,
)

MAX_PARTS_NAMED = 3


def brief_of(verdict: Verdict) -> Brief:
    """Both answers for any verdict."""
    happened, this_change = _ANSWERS[verdict.outcome]
    sentences = (happened(verdict), _over_budget(verdict), _cause(verdict))
    return Brief(
        happened=" ".join(sentence for sentence in sentences if sentence),
        this_change=this_change(verdict),
    )


def _sentence(text: str) -> str:
    """Words as a sentence of their own; a file's name or a command keeps its first letter."""
    first = text.partition(" ")[0].removesuffix(":")
    begin = text[:1].upper() if first.isascii() and first.isalpha() else text[:1]
    return f"{begin}{text[1:]}{'' if text.endswith(('.', '!', '?', ':')) else '.'}"


def _over_budget(verdict: Verdict) -> str:
    if not verdict.over_budget or verdict.cost is None or verdict.cost.low is None:
        return ""
    return (
        f"But determinism costs at least {percent(verdict.cost.low)} time, more than "
        "cost.budget_percent allows."
    )


def _cause(verdict: Verdict) -> str:
    diagnosis = verdict.diagnosis
    # what moved, and another number of steps, have been said: they are what happened
    said = {EventKind.ENVIRONMENT, EventKind.STEPS}
    if diagnosis is None or diagnosis.kind in said or verdict.passes:
        return ""
    return f"Cause: {cause_words(diagnosis)}."


def cause_words(diagnosis: Diagnosis) -> str:
    """The cause in one line: the line or the setting that is known to differ, else its class."""
    if diagnosis.suspects:
        return suspect_words(diagnosis.suspects[0])
    if diagnosis.optimizer_settings:
        return "; ".join(
            f"optimizer {change.optimizer}, {change.name} {change.before} → {change.after}"
            if change.before and change.after
            else f"optimizer {change.optimizer}, {change.name} changed"
            for change in diagnosis.optimizer_settings
        )
    return diagnosis.cause


def _reproduced(verdict: Verdict) -> str:
    words = "Every step, value and tensor equals the baseline, bit for bit."
    moved = _moved(verdict.baseline)
    return f"{words} Since it was recorded: {moved}." if moved else words


def _within(verdict: Verdict) -> str:
    """By the baseline, or by the base commit that ran here; the policy may refuse either."""
    if verdict.base_run is not None:
        moved = _moved(verdict.baseline)
        how = "the same result, bit for bit"
        if verdict.answers.base_run is not Answer.EQUAL:
            how = f"the same result within tolerance{_worst(verdict.base_run)}"
        words = f"Since the baseline was recorded: {moved}. The base commit, run here, gives {how}."
    else:
        words = f"The result is within tolerance of the baseline{_worst(verdict.baseline)}."
    if not verdict.passes and not verdict.over_budget:
        words += " But policy.require_bitwise asks for equal bits."
    return words


def _code_drift(verdict: Verdict) -> str:
    if verdict.base_run is not None:
        moved = _moved(verdict.baseline)
        return (
            f"{_numbers(verdict.base_run)} That is against the base commit run here. Since the "
            f"baseline was recorded: {moved}."
        )
    return _numbers(verdict.baseline)


def _environment_drift(verdict: Verdict) -> str:
    return (
        f"Since the baseline was recorded: {_moved(verdict.baseline)}. {_numbers(verdict.baseline)}"
    )


def _baseline_change(verdict: Verdict) -> str:
    words = "This pull request brings a new baseline, and this run reproduces it bit for bit."
    if not verdict.passes and not verdict.over_budget:
        return f"{words} But policy.allow_baseline_change is false."
    last = _last_of_main(verdict)
    return f"{words} {_delta(last, 'the last')}." if last is not None else words


def _last_of_main(verdict: Verdict) -> MetricDelta | None:
    """The last number of the main metric, where it differs from the old baseline."""
    main = verdict.main_series
    if main is None or verdict.baseline is None:
        return None
    deltas = [delta for delta in verdict.baseline.metrics if delta.metric == main.name]
    return max(deltas, key=lambda delta: delta.step, default=None)


def _no_baseline(_: Verdict) -> str:
    return (
        "Two runs of this commit are identical. The baseline file has no entry for this kind of "
        "machine yet, so there is nothing to compare them with."
    )


def _as_decided(verdict: Verdict) -> str:
    return _sentence(verdict.cause)


def _nondeterministic(verdict: Verdict) -> str:
    diagnosis, repeat = verdict.diagnosis, verdict.repeat
    whose = "Two runs of this commit with the same seed"
    if repeat is not None and repeat.numerically_equal:
        whose = "Two strict runs are identical, but a default run of the same work is not: they"
    if diagnosis is None:
        return f"{whose} differ."
    if diagnosis.kind is EventKind.STEPS:
        return _sentence(verdict.cause)
    where = "at the end" if diagnosis.first_step is None else f"from step {diagnosis.first_step} on"
    return f"{whose} differ {where}, first in the {CAUSE_TITLES[diagnosis.kind]}."


def _numbers(comparison: Comparison | None) -> str:
    """The first number outside, and the worst of all when it is farther off."""
    if comparison is None:
        return ""
    if comparison.retyped:
        tensor = comparison.retyped[0]
        expected, observed = (
            form.rpartition(" ")[0] for form in (tensor.expected, tensor.observed)
        )
        return f"Tensor {tensor.name} is {observed} instead of {expected}."
    delta = comparison.first_outside
    if delta is None:
        return (
            f"{len(comparison.tensors):,} of {comparison.compared_tensors:,} tensors differ at the "
            "end; every metric is equal or within tolerance."
        )
    words = _delta(delta, f"at step {delta.step}")
    worst = next(iter(worst_first(comparison.metrics)), None)
    if worst is not None and (worst.relative or 0) > (delta.relative or 0) * 1.01:
        words += f"; up to {share(worst.relative)} later ({worst.metric} at step {worst.step})"
    return f"{words}."


def _delta(delta: MetricDelta, which: str) -> str:
    """`Loss at step 7: 1.338 instead of 1.336 (+0.2 %)`."""
    expected, observed = pair(delta.expected, delta.observed)
    # a metric's own name stays as it is
    name = "Loss" if delta.metric == "loss" else delta.metric
    if which == "the last":
        name, which = f"Last {delta.metric}", ""
    signed = ""
    if delta.relative is not None:
        signed = f" ({'-' if _falls(delta) else '+'}{share(delta.relative)})"
    return f"{f'{name} {which}'.rstrip()}: {observed} instead of {expected}{signed}"


def _falls(delta: MetricDelta) -> bool:
    try:
        return float(delta.observed) < float(delta.expected)
    except ValueError:
        return False


def _worst(comparison: Comparison | None) -> str:
    """How far the worst metric is off, to be put behind a sentence's last word."""
    worst = next(iter(worst_first(comparison.metrics if comparison else ())), None)
    if worst is None or worst.relative is None:
        return ""
    return f": {worst.metric} is off by {share(worst.relative)} at step {worst.step}, at most"


def _moved(comparison: Comparison | None) -> str:
    return moved_words(comparison, MAX_PARTS_NAMED)


def _unmoved(_: Verdict) -> str:
    return "It does not move the result."


def _within_change(verdict: Verdict) -> str:
    if verdict.base_run is not None:
        return "No. The base commit gives the same result here."
    return "It moves the result by less than the tolerance."


def _drift_change(verdict: Verdict) -> str:
    if verdict.base_run is not None:
        return "Yes. The base commit on this machine, with the same packages, gives another result."
    return "Yes. The machine and the packages are the baseline's."


def _environment_change(verdict: Verdict) -> str:
    if verdict.base_run is None:
        return "Not known. The base commit was not run here, so the change could be the cause too."
    if not verdict.answers.base_repeat.good:
        return "Not known. Two runs of the base commit differ on this machine."
    return (
        "Not its code: the base commit gives the same result here. It is this change only if it "
        "brings the new software."
    )


def _baseline_is_change(_: Verdict) -> str:
    return "Yes, on purpose. The new result is part of it."


def _nothing_wrong(_: Verdict) -> str:
    return "No. Nothing is wrong with it."


def _not_comparable_change(verdict: Verdict) -> str:
    baseline = verdict.baseline
    if baseline is None or baseline.comparable:
        return "Only if it changes the settings; the machine does not matter here."
    if baseline.same_environment:
        return "Yes. The machine and the packages are the baseline's."
    return f"Most likely. Of the environment, only {_moved(baseline)}."


def _not_repeating_change(_: Verdict) -> str:
    return "Not known. Only this commit was run; the base commit may not repeat either."


def _not_judged(_: Verdict) -> str:
    return "Not known. Nothing was judged."


Words = Callable[[Verdict], str]
_ANSWERS: dict[Outcome, tuple[Words, Words]] = {
    Outcome.REPRODUCED: (_reproduced, _unmoved),
    Outcome.WITHIN_TOLERANCE: (_within, _within_change),
    Outcome.CODE_DRIFT: (_code_drift, _drift_change),
    Outcome.ENVIRONMENT_DRIFT: (_environment_drift, _environment_change),
    Outcome.BASELINE_CHANGE: (_baseline_change, _baseline_is_change),
    Outcome.NO_BASELINE: (_no_baseline, _nothing_wrong),
    Outcome.NOT_COMPARABLE: (_as_decided, _not_comparable_change),
    Outcome.NONDETERMINISTIC: (_nondeterministic, _not_repeating_change),
    Outcome.ERROR: (_as_decided, _not_judged),
}
