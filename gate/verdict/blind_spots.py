"""Findings about what a comparison cannot see: wide tolerances, empty sources, rare faults.

Each function answers the question in its docstring.
"""

from __future__ import annotations

from gate.comparison.compare import missed_share
from gate.comparison.differences import TensorDelta, ToleranceUse
from gate.evidence.run_evidence import MetricSource, RunEvidence, WhyPassedOver
from gate.settings.gate_settings import GateSettings, NotFiniteAllowed
from gate.text.phrases import count
from gate.verdict import reasons
from gate.verdict.facts import Facts
from gate.verdict.findings import warning
from gate.verdict.verdict import EqualRuns, Finding, Outcome, Severity

SHOWN = 5
# The distance is a share of a tensor's size: a halved weight has moved by 0.5.
FAR_SHARE = 0.1
# A gate should catch at least a change of one per cent.
BLIND_SHARE = 0.01
# Counted metrics such as an accuracy move in whole steps. Beyond this share, that is no excuse.
WIDE_SHARE = 0.05
EMPTY = {"train.metrics.file": "the script wrote no number there"}
SHOWN_CONSTANTS = 3
# A fault in one run of ten is rare enough that nobody notices it by hand.
RARE = 0.1


def tolerances(uses: tuple[ToleranceUse, ...], run: RunEvidence) -> tuple[Finding, ...]:
    """Does each tolerance apply to a metric, and is it tight enough to catch a regression?"""
    metrics = tuple(series.name for series in run.metrics)
    # A wide tolerance matters less if a different metric would show the same regression.
    blind = {name for use in uses if _is_blind(use, BLIND_SHARE) for name in use.metrics}
    sharp = bool(set(metrics) - blind)
    return tuple(finding for use in uses for finding in _tolerance(use, metrics, sharp=sharp))


def _is_blind(use: ToleranceUse, share: float) -> bool:
    return use.least is not None and use.least.share >= share


def _tolerance(use: ToleranceUse, metrics: tuple[str, ...], *, sharp: bool) -> tuple[Finding, ...]:
    """Check one tolerance; `sharp`: another metric would catch what this one lets through."""
    if not use.metrics:
        return warning(
            "tolerance-unused",
            message=f"compare.tolerances: {use.pattern} applies to no metric: "
            f"{_why_unused(use, metrics)}",
            remedy="A metric without a tolerance must be equal bit for bit. Correct the "
            "pattern or the steps, or remove it.",
        )
    return (*_misfit(use), *_wide(use, sharp=sharp))


def _why_unused(use: ToleranceUse, metrics: tuple[str, ...]) -> str:
    if use.shadowed:
        return "earlier ones decide all that it matches"
    if use.named:
        return f"none has a step in {use.steps}"
    return f"the metrics are {', '.join(metrics[:SHOWN])}{', ...' if len(metrics) > SHOWN else ''}"


def _misfit(use: ToleranceUse) -> tuple[Finding, ...]:
    """Was the limit edited after it was derived?"""
    if not use.misfit:
        return ()
    return warning(
        "tolerance-edited",
        message=f"compare.tolerances: {use.pattern} (steps: {use.steps}) is not what it "
        f"was derived to be: {use.misfit}",
        remedy="Measure it again with `repro-gate baseline calibrate`, or remove `derived` and "
        "answer for the number yourself.",
    )


def _wide(use: ToleranceUse, *, sharp: bool) -> tuple[Finding, ...]:
    """Could it catch a regression of one percent?"""
    # None means that all values are zero, and a share of zero means nothing.
    if use.least is None or use.least.share < BLIND_SHARE:
        return ()
    # A different metric still catches a regression, and a counted one moves by whole steps.
    minor = sharp and not _is_blind(use, WIDE_SHARE)
    names = ", ".join(use.metrics[:SHOWN])
    return (
        Finding(
            code="tolerance-wide",
            severity=Severity.NOTICE if minor else Severity.WARNING,
            message=f"compare.tolerances: {use.pattern} lets {names} move by "
            f"{_percent(use.least.share)} at every step it applies to: a regression of 1 % goes "
            "unnoticed",
            remedy="Run `repro-gate baseline calibrate` to measure how much results vary here, "
            "and use the tolerance that it derives.",
        ),
    )


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"


def unused_settings(run: RunEvidence, allowed: tuple[NotFiniteAllowed, ...]) -> tuple[Finding, ...]:
    """Does a setting name something that the run does not have?"""
    keys = [(setting.key, setting.value) for setting in run.unused_settings]
    if not run.not_finite and not run.constant_infinities:
        keys += [("compare.allow_not_finite", rule.pattern) for rule in allowed]
    return tuple(
        Finding(
            code="setting-unused",
            severity=Severity.WARNING,
            message=f"{key} is {value}, but "
            f"{EMPTY.get(key, 'it matches nothing in this training')}",
            remedy="Nothing was compared for it. Correct the setting, or remove it."
            if key in EMPTY
            else "Correct the setting, or remove it.",
        )
        for key, value in keys
    )


def constant_infinities(run: RunEvidence) -> tuple[Finding, ...]:
    """Which buffers contain an infinity that the script itself wrote there?"""
    names = run.constant_infinities
    if not names:
        return ()
    rest = len(names) - SHOWN_CONSTANTS
    more = f" and {rest} more" if rest > 0 else ""
    return (
        Finding(
            code="constant-infinity",
            severity=Severity.NOTICE,
            message=f"{', '.join(names[:SHOWN_CONSTANTS])}{more}: infinite before the first "
            "forward pass, and unchanged at the end",
            remedy="No action needed: a bound or a mask is such a constant.",
        ),
    )


def admitted_by_settings(run: RunEvidence, settings: GateSettings) -> tuple[Finding, ...]:
    """What do the settings exclude from the comparison, or allow in it, and why?"""
    unused = {(setting.key, setting.value) for setting in run.unused_settings}
    messages = [
        f"train.checkpoint_exclude leaves {rule.pattern} out of the comparison: {rule.reason}"
        for rule in settings.train.checkpoint_exclude
        if ("train.checkpoint_exclude", rule.pattern) not in unused
    ]
    if run.not_finite:
        messages += [
            f"compare.allow_not_finite lets {rule.pattern} hold NaN or infinity: {rule.reason}"
            for rule in settings.compare.allow_not_finite
        ]
    return tuple(
        Finding(
            code="admitted-by-settings",
            severity=Severity.NOTICE,
            message=message,
            remedy="No action needed if this is intended.",
        )
        for message in messages
    )


def left_out(run: RunEvidence) -> tuple[Finding, ...]:
    """Was there anything to compare that could not be read?"""
    if not run.left_out:
        return ()
    more = len(run.left_out) - SHOWN
    rest = f"; and {more} more" if more > 0 else ""
    return warning(
        "left-out",
        message=f"not everything could be compared: {'; '.join(run.left_out[:SHOWN])}{rest}",
        remedy="A change there shows only in the loss and the other tensors. Let the script save "
        "these values as plain tensors in train.checkpoint; a tensor subclass of your own can have "
        "a __tensor_flatten__ method instead.",
    )


def only_printed(run: RunEvidence) -> tuple[Finding, ...]:
    """Does the script print numbers that no metric has?"""
    known = {series.name.rpartition("/")[2].lower() for series in run.metrics}
    names = [
        passed.name
        for passed in run.passed_over
        if passed.why is WhyPassedOver.PRINTED and passed.name.lower() not in known
    ]
    if not names:
        return ()
    return (
        Finding(
            code="printed-not-compared",
            severity=Severity.NOTICE,
            message=f"the script prints numbers that are not compared: {', '.join(names)}",
            remedy="To compare them, match them with train.metrics.stdout_pattern, or write them "
            "to a file for train.metrics.file.",
        ),
    )


def passed_over(run: RunEvidence) -> tuple[Finding, ...]:
    """Did the script log anything that is no metric?"""
    logged = [metric for metric in run.passed_over if metric.source is not MetricSource.STDOUT]
    lines = sum(metric.why is WhyPassedOver.LINE for metric in run.passed_over)
    messages = [f"{metric.name} {metric.why}" for metric in logged]
    if len(messages) > SHOWN:
        messages[SHOWN:] = [f"and {len(messages) - SHOWN} more"]
    if lines:
        messages.append(f"{count(lines, 'printed line')} above 1,000 bytes not searched")
    if not messages:
        return ()
    # A phase or a time in words is a label, and a picture shows numbers. Anything else may be a
    # result.
    shown_only = {WhyPassedOver.TEXT, WhyPassedOver.MEDIA}
    labels = all(passed.why in shown_only for passed in run.passed_over)
    return (
        Finding(
            code="metric-not-compared",
            severity=Severity.NOTICE if labels else Severity.WARNING,
            message=f"the script logs values that were not compared: {', '.join(messages)}",
            remedy="No action needed if these only label or show results."
            if labels
            else "Log each result as a number of its own, under a short name.",
        ),
    )


def unbounded_tensors(facts: Facts, outcome: Outcome) -> tuple[Finding, ...]:
    """Does the result pass by its metrics, although tensors moved that no metric follows?"""
    against = facts.base_run or facts.baseline
    if outcome is not Outcome.WITHIN_TOLERANCE or against is None:
        return ()
    farthest = against.farthest_tensor
    if farthest is None or (against.metrics and not _is_far(farthest)):
        return ()
    moved = sum(delta.weight for delta in against.tensors)
    metrics = "is within tolerance of" if against.metrics else "equals"
    expected = "the base commit" if facts.base_run else "the baseline"
    return (
        Finding(
            code="tensors-unbounded",
            severity=Severity.WARNING if farthest.limit is None else Severity.NOTICE,
            message=f"every metric {metrics} {expected}, but {count(moved, 'tensor')} of the model "
            f"{'differs' if moved == 1 else 'differ'} after the last step; most of all, "
            f"{reasons.tensor_distance(farthest)}",
            remedy=_remedy(farthest),
        ),
    )


def _is_far(delta: TensorDelta) -> bool:
    """Return whether a tensor moved further than metrics within tolerance explain."""
    return delta.limit is None and delta.distance is not None and delta.distance >= FAR_SHARE


def _remedy(delta: TensorDelta) -> str:
    if delta.limit is not None:
        return "No action needed if this is intended: compare.tensors allows it."
    limit = "Limit it with `compare: {tensors: {relative: 0.01}}`"
    if delta.distance is None:
        # The entry was recorded before sketches existed, or the type has none.
        limit += ", and record the baseline again, so that it keeps what distances are taken from"
    return f"If unintended: find what writes to it. {limit}."


def rare_faults(facts: Facts) -> tuple[str, ...]:
    """Return a sentence on how often equal runs miss a rare fault, () where they are not equal."""
    if facts.one_run is not None:
        sentence = (
            "rare faults: of those that affect one run in ten, one run that equals the baseline "
            f"misses {_missed_by_one() * 100:.0f} %; that two runs of this commit are equal was "
            "not shown"
        )
        return (sentence,)
    if not facts.repeat.numerically_equal:
        return ()
    strict, every = facts.strict_runs, facts.strict_runs + len(facts.like_strict)
    few = "two" if strict == 2 else str(strict)  # noqa: PLR2004 - as a word
    missed = f"{few} runs miss {missed_share(strict, RARE) * 100:.0f} %"
    sentence = f"rare faults: of those that affect one run in ten, {missed}"
    if facts.like_strict:
        share = missed_share(every, RARE)
        sentence += f", and the {every} equal runs of this call {share * 100:.0f} %"
    return (sentence,)


def equal_runs(facts: Facts) -> EqualRuns | None:
    """Return how many runs of the same work are equal, and the share of rare faults they miss.

    None where two of them differ.
    """
    if facts.one_run is not None:
        return EqualRuns(runs=1, missed=round(_missed_by_one(), 4))
    if not all(comparison.numerically_equal for comparison in (facts.repeat, *facts.like_strict)):
        return None
    runs = facts.strict_runs + len(facts.like_strict)
    return EqualRuns(runs=runs, missed=round(missed_share(runs, RARE), 4))


def _missed_by_one() -> float:
    """Return how often one run is unaffected by the fault; an affected one has different bits."""
    return 1 - RARE
