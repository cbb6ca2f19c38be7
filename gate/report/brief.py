"""The first answers of every report: what happened, and whether this pull request caused it.

The third answer, what to do now, is the verdict's list of next steps. All words come from the
verdict's typed facts. `_ANSWERS` at the end maps each outcome to its two functions.
"""

from __future__ import annotations

from collections.abc import Callable

from gate.comparison.differences import Comparison, EventKind, MetricDelta
from gate.diagnosis.diagnosis import Diagnosis, SuspectKind
from gate.report.diagnosis_sections import change_words, traced_words, tried_sentence
from gate.report.entry_words import (
    delta_words,
    movement_words,
    numbers_words,
    provisional_words,
    quarantine_sentence,
    tensor_words,
    worst_words,
)
from gate.report.judged import data_change_words, data_drift_words, level_sentence, unrepeated_words
from gate.report.layout import Brief
from gate.report.wording import (
    CAUSE_TITLES,
    PAIR,
    TWO,
    missed_words,
    moved_words,
    not_finite_words,
    paired_words,
    percent,
    percentage,
    setting_words,
    strict_runs,
    suspect_words,
    threshold_words,
)
from gate.settings.levels import ReachedLevel
from gate.text.phrases import rank_words
from gate.training.runs import Commit
from gate.verdict.verdict import (
    Answer,
    NotFiniteResult,
    Outcome,
    RecordedPass,
    Verdict,
    led_by_settings,
)

MAX_PARTS_NAMED = 3


def brief_of(verdict: Verdict) -> Brief:
    """Return both answers for any verdict."""
    happened, this_change = _ANSWERS[verdict.outcome]
    answer = (
        # First, because an entry in quarantine judged nothing.
        quarantine_sentence(verdict),
        happened(verdict),
        level_sentence(verdict),
        _over_budget(verdict),
        _thresholds(verdict),
    )
    return Brief(
        answer=" ".join(filter(None, answer)),
        cause=_cause(verdict),
        more=" ".join(filter(None, (_traced(verdict), tried_sentence(verdict)))),
        this_change=this_change(verdict),
        change=change_words(verdict.change),
        names_line=verdict.diagnosis is not None and bool(verdict.diagnosis.likely),
    )


def short_reason(verdict: Verdict) -> str:
    """Return the reason of a failure in one line, the cause if it is known; empty for a pass."""
    if verdict.passes:
        return ""
    return _cause(verdict) or brief_of(verdict).happened


def _sentence(text: str) -> str:
    """Return text as a sentence; a file's name or a command keeps its first letter."""
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


def _thresholds(verdict: Verdict) -> str:
    """Say what thresholds changed about the answer; empty if they changed nothing."""
    missed = [threshold for threshold in verdict.thresholds if not threshold.met]
    if missed and verdict.outcome is not Outcome.ERROR:
        but = "But a" if verdict.missed_threshold else "A"
        return f"{but} threshold is missed: {threshold_words(missed[0])}."
    if verdict.passes and verdict.level is ReachedLevel.FUNCTIONAL:
        met = ", ".join(map(threshold_words, verdict.thresholds[:MAX_PARTS_NAMED]))
        return f"It passes at the functional level: {met}."
    return ""


def _cause(verdict: Verdict) -> str:
    diagnosis = verdict.diagnosis
    # The answer already says if the environment moved or the number of steps differs, so no cause
    # repeats it.
    said = {EventKind.ENVIRONMENT, EventKind.STEPS}
    if diagnosis is None or verdict.passes or (diagnosis.kind in said and not diagnosis.likely):
        return ""
    if verdict.outcome is Outcome.NONDETERMINISTIC:
        diagnosis = _where_said(diagnosis)
    return f"Cause: {_rank_of_cause(diagnosis)}{cause_words(diagnosis)}."


def _where_said(diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis without a line's first use if the answer has named that step already."""
    said = f"step {diagnosis.first_step}'s "
    suspects = tuple(
        suspect.model_copy(update={"used": ""}) if suspect.used.startswith(said) else suspect
        for suspect in diagnosis.suspects
    )
    return diagnosis.model_copy(update={"suspects": suspects})


def _rank_of_cause(diagnosis: Diagnosis) -> str:
    """Return `rank 1: ` if only some ranks differ first; for a known line, the rank that ran it."""
    if not diagnosis.ranks:
        return ""
    ranks = (diagnosis.likely[0].rank,) if diagnosis.likely else diagnosis.ranks
    return f"{rank_words(ranks)}: "


def _traced(verdict: Verdict) -> str:
    """Say what two traced runs add to the cause; empty if a line or a setting is certain.

    A trace that failed says why. Traces that agree are not a failure, so they say nothing.
    """
    diagnosis = verdict.diagnosis
    trace = diagnosis.trace if diagnosis is not None else None
    if diagnosis is None or trace is None or verdict.passes:
        return ""
    drift = verdict.outcome is not Outcome.NONDETERMINISTIC
    if trace.failed:
        return f"No operator is named: {trace.sentence}."
    certain = diagnosis.likely or diagnosis.optimizer_settings or verdict.change is not None
    if not trace.names_a_call or diagnosis.traced or (certain and (drift or diagnosis.likely)):
        return ""
    return f"{traced_words(trace, drift=drift)}."


# A thread that draws random numbers and a queue that collects results: either may be what differs.
RACING = frozenset((SuspectKind.COMPLETION, SuspectKind.DRAW))


def cause_words(diagnosis: Diagnosis) -> str:
    """Return the cause in one line: what is known to differ in each run, or else what happened.

    If two lines fit, both are named.
    """
    likely = diagnosis.likely
    if likely:
        pair = map(paired_words, likely[:PAIR])
        named = pair if diagnosis.decides else [suspect_words(likely[0])]
        return "; or ".join((*named, *map(setting_words, diagnosis.optimizer_settings)))
    if diagnosis.optimizer_settings:
        return "; ".join(map(setting_words, diagnosis.optimizer_settings))
    if diagnosis.suspects:
        suspect = diagnosis.suspects[0]
        other = diagnosis.ranks and suspect.rank not in diagnosis.ranks
        of_rank = f"{rank_words((suspect.rank,))}: " if other else ""
        if {item.kind for item in diagnosis.suspects[:PAIR]} == RACING:
            both = "; or ".join(map(paired_words, diagnosis.suspects[:PAIR]))
            return f"{diagnosis.cause}. Possibly: {of_rank}{both}"
        return f"{diagnosis.cause}. Possibly: {of_rank}{suspect_words(suspect)}"
    changed = "; ".join(map(setting_words, diagnosis.settings_beside))
    return f"{diagnosis.cause}. Also changed: {changed}" if changed else diagnosis.cause


def _reproduced(verdict: Verdict) -> str:
    if verdict.unaffected is not None:
        return _unaffected(verdict.unaffected)
    words = "Every step, value and tensor equals the baseline, bit for bit."
    if verdict.one_run is not None:
        words = f"{words} {verdict.one_run.described}; no second run was made."
    moved = _moved(verdict.baseline)
    return f"{words} Since it was recorded: {moved}." if moved else words


def _unaffected(recorded: RecordedPass) -> str:
    sealed = f" It was accepted from the package {recorded.package_sha256[:12]}."
    return (
        "Nothing was run. Every file that the training gets, its settings, data and environment "
        f"are those of the baseline's entry {recorded.entry}: {recorded.described}."
        f"{sealed if recorded.package_sha256 else ''}"
    )


def _within(verdict: Verdict) -> str:
    """Say that the result is within tolerance, of the baseline or of the base commit run here."""
    if verdict.base_run is not None and verdict.excused:
        how = "bit for bit"
        if verdict.answers.base_run is not Answer.EQUAL:
            how = f"within tolerance{worst_words(verdict.base_run)}"
        words = (
            f"The result differs from it. {numbers_words(verdict.baseline)} The base commit, run "
            f"here, gives the result of this commit, {how}."
        )
    elif verdict.base_run is not None:
        how = "the same result, bit for bit"
        if verdict.answers.base_run is not Answer.EQUAL:
            how = f"the same result within tolerance{worst_words(verdict.base_run)}"
        words = (
            f"The committed baseline {_why_not_applied(verdict, 'no longer applies')}. "
            f"The base commit, run here{_in_its_own(verdict)}, gives {how}."
        )
    else:
        words = _within_of_baseline(verdict.baseline)
    if not verdict.passes and not verdict.held_back:
        words += " But policy.require_bitwise asks for equal bits."
    return words


def _within_of_baseline(comparison: Comparison | None) -> str:
    """Describe metrics and tensors separately: a metric's tolerance does not limit tensors."""
    if comparison is None:
        return "The result is within tolerance of the baseline."
    metrics = "Every metric equals the baseline."
    if comparison.metrics:
        metrics = f"Every metric is within tolerance of the baseline{worst_words(comparison)}."
    if not comparison.tensors:
        return metrics
    farthest = comparison.farthest_tensor
    if farthest is None or farthest.distance is None:
        return (
            f"{metrics} {len(comparison.tensors):,} of {comparison.compared_tensors:,} tensors "
            "differ after the last step, and no tolerance bounds them."
        )
    allowed = "nothing limits that"
    if farthest.limit is not None:
        allowed = f"compare.tensors allows {percentage(farthest.limit)}"
    return f"{metrics} Of the weights and buffers, {tensor_words(farthest)}, at most; {allowed}."


def _code_drift(verdict: Verdict) -> str:
    if verdict.base_run is not None and _base_gives_the_entry(verdict):
        return (
            f"{numbers_words(verdict.base_run)} The base commit, run here{_in_its_own(verdict)}, "
            "gives the committed baseline's result, so it is this change that moves it."
        )
    if verdict.base_run is not None:
        why = f": the committed baseline {_why_not_applied(verdict)}" if verdict.baseline else ""
        return (
            f"{numbers_words(verdict.base_run)} That is against the base commit run here"
            f"{_in_its_own(verdict)}{why}."
        )
    return numbers_words(verdict.baseline)


def _why_not_applied(verdict: Verdict, words: str = "does not apply") -> str:
    """Say why the committed baseline does not apply: other data, or another machine."""
    if not verdict.data_moved:
        return f"{words} on this machine{_since(verdict.baseline)}"
    moved = _moved(verdict.baseline)
    return f"{words}, since the declared data changed{f', and {moved}' if moved else ''}"


def _base_gives_the_entry(verdict: Verdict) -> bool:
    """Return whether the base commit, run here, reproduces the baseline's entry exactly.

    The head is compared with both. If a number of the base run differed from the entry's, the
    head's number would differ from at least one of them. The two lists would then have different
    expected values.
    """
    entry, base = verdict.baseline, verdict.base_run
    if entry is None or base is None or not base.differs:
        return False
    return (
        (entry.metrics, entry.tensors, entry.series, entry.step_faults)
        == (base.metrics, base.tensors, base.series, base.step_faults)
        and entry.compared_points <= base.compared_points
        and entry.compared_tensors <= base.compared_tensors
    )


def _environment_drift(verdict: Verdict) -> str:
    if verdict.nothing_moved:
        return (
            "Code and environment match the baseline: data outside the repository changed, or the "
            f"hardware. {numbers_words(verdict.baseline)}"
        )
    moved = _moved(verdict.baseline)
    if led_by_settings(verdict.outcome, verdict.diagnosis):
        return (
            f"{numbers_words(verdict.baseline)} A setting of the run is different, and since the "
            f"baseline was recorded the environment moved too: {moved}."
        )
    return f"Since the baseline was recorded: {moved}. {numbers_words(verdict.baseline)}"


def _dependency_drift(verdict: Verdict) -> str:
    moved = _moved(verdict.baseline)
    named = f": {moved}" if moved else ""
    return (
        f"This change uses another {_what_is_brought(verdict)}{named}. "
        f"{numbers_words(verdict.base_run)}"
    )


def _data_drift(verdict: Verdict) -> str:
    return data_drift_words(verdict, numbers_words(verdict.baseline or verdict.base_run))


def _what_is_brought(verdict: Verdict) -> str:
    if verdict.brought.another_image:
        return "image"
    files = ", ".join(verdict.brought.files[:MAX_PARTS_NAMED])
    return f"environment ({files})" if files else "environment"


def _in_its_own(verdict: Verdict) -> str:
    """Return words that follow a run of the base commit if its environment was not the head's."""
    own = any(run.environment is Commit.BASE for run in verdict.runs)
    return " in its own environment" if own else ""


def _since(comparison: Comparison | None) -> str:
    """Return the parts of the environment that moved since the recording, or the empty text."""
    moved = _moved(comparison)
    return f": {moved}" if moved else ""


def _baseline_change(verdict: Verdict) -> str:
    words = "This pull request includes a new baseline, and this run reproduces it bit for bit."
    if not verdict.passes and not verdict.held_back:
        return f"{words} But policy.allow_baseline_change is false."
    last = _last_of_main(verdict)
    moved = f" At most: {movement_words(verdict.movement)}." if verdict.movement else ""
    return (
        f"{words} {delta_words(last, 'the last')}.{moved}"
        if last is not None
        else f"{words}{moved}"
    )


def _last_of_main(verdict: Verdict) -> MetricDelta | None:
    """Return the main metric's last difference from the old baseline, or None."""
    main = verdict.main_series
    if main is None or verdict.baseline is None:
        return None
    deltas = [delta for delta in verdict.baseline.metrics if delta.metric == main.name]
    return max(deltas, key=lambda delta: delta.step, default=None)


def _no_baseline(verdict: Verdict) -> str:
    same = f"{strict_runs(verdict)} runs of this commit are identical."
    if verdict.provisional is not None:
        return f"{same} {provisional_words(verdict.provisional)}"
    moved = _named(tuple(words for change in verdict.nearest_entry for words in change.described))
    if not moved:
        return f"{same} There is no baseline yet to compare them with."
    return (
        f"{same} No entry of the baseline was recorded on this kind of machine. "
        f"The nearest entry differs in: {moved}."
    )


def _stopped(verdict: Verdict) -> str:
    """Say why nothing passes: a number that is not finite, or what kept the gate from checking."""
    not_finite = verdict.not_finite
    if not_finite is None:
        return _as_decided(verdict)
    number = not_finite.number
    first = _sentence(not_finite_words(not_finite))
    starts = " Two runs start from different weights." if not_finite.starts_differ else ""
    origin = f" {not_finite.origin}." if not_finite.origin else ""
    return f"{first}{origin}{starts} NaN and infinity never pass. Seen first in run {number.run}."


def _as_decided(verdict: Verdict) -> str:
    return _sentence(verdict.cause)


def _resume_differs(verdict: Verdict) -> str:
    """Say what the resume changed. A drift comes first: the cause follows the resume."""
    words = _as_decided(verdict)
    if verdict.answers.baseline is not Answer.OUTSIDE:
        return words
    drift = "Apart from the resume, the result differs from the baseline."
    return f"{drift} {numbers_words(verdict.baseline)} {words}"


def _nondeterministic(verdict: Verdict) -> str:
    diagnosis, repeat = verdict.diagnosis, verdict.repeat
    whose = "Two runs of this commit"
    if repeat is not None and strict_runs(verdict) != TWO:
        whose += f" ({repeat.expected} and {repeat.observed} of {verdict.strict_runs})"
    if repeat is not None and repeat.numerically_equal:
        whose = "The strict runs are identical, but a default run of the same work is not: they"
    if verdict.unrepeated is not None:
        return unrepeated_words(verdict.unrepeated)
    if diagnosis is None:
        return f"{whose} differ."
    if diagnosis.kind is EventKind.STEPS:
        return _sentence(verdict.cause)
    where = "at the end" if diagnosis.first_step is None else f"from step {diagnosis.first_step} on"
    ranks = f" of {rank_words(diagnosis.ranks)}" if diagnosis.ranks else ""
    name = f" {diagnosis.subject}" if diagnosis.kind is EventKind.METRIC else ""
    return f"{whose} differ {where}, first in the {CAUSE_TITLES[diagnosis.kind]}{name}{ranks}."


def _moved(comparison: Comparison | None) -> str:
    return moved_words(comparison, MAX_PARTS_NAMED)


def _named(moved: tuple[str, ...]) -> str:
    rest = len(moved) - MAX_PARTS_NAMED
    return ", ".join(moved[:MAX_PARTS_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _unmoved(verdict: Verdict) -> str:
    if verdict.unaffected is not None:
        return "No. It changes nothing that the training gets."
    if verdict.untried_settings:
        return f"{_untried(verdict)} With those, the result is unchanged."
    if not verdict.compared_all:
        return "No change in what was compared. The findings list what was not compared."
    changes = verdict.configuration_changes
    if changes:
        more = f" and {len(changes) - 1:,} more" if len(changes) > 1 else ""
        return (
            "No change in what was compared. But the training was given values that differ from "
            f"the baseline's: {changes[0].place}{more}."
        )
    return "No change in the result."


def _untried(verdict: Verdict) -> str:
    """Say what no run of this call can show: the change is in the training's own settings."""
    return (
        f"Not known. It changes {_named(verdict.untried_settings)}, but the gate ran the base "
        "commit's settings."
    )


def _within_change(verdict: Verdict) -> str:
    if verdict.untried_settings:
        return f"{_untried(verdict)} With those, the result stays within tolerance."
    if verdict.base_run is not None:
        return "No. The base commit gives the same result here."
    if verdict.baseline is not None and not verdict.baseline.metrics:
        return "Yes. It changes weights or buffers, but no metric."
    return "It changes each metric by less than its tolerance."


def _drift_change(verdict: Verdict) -> str:
    if verdict.quarantine is not None and verdict.base_run is None:
        return "Not known. The entry is in quarantine, and the base commit was not run here."
    if verdict.base_run is not None:
        where = _in_its_own(verdict) or ", with the same packages,"
        return f"Yes. The base commit on this machine{where} gives a different result."
    return "Yes. Same machine and packages as the baseline."


def _environment_change(verdict: Verdict) -> str:
    if verdict.nothing_moved:
        return "No. Its files are exactly those that the baseline was recorded from."
    if verdict.base_run is None:
        return "Not known. The base commit was not run here, so the change could be the cause too."
    if not verdict.answers.base_repeat.good:
        return "Not known. Two runs of the base commit differ on this machine."
    if not verdict.baseline or not verdict.baseline.software_moved:
        return "No. The base commit gives the same result here; policy.environment_drift is fail."
    if verdict.brought.files:
        files = ", ".join(verdict.brought.files[:MAX_PARTS_NAMED])
        return f"Its code, no: the base commit gives the same result here. But it changes {files}."
    return (
        "Not its code: the base commit gives the same result here. It is this change only if it "
        "installs the new software."
    )


def _dependency_change(verdict: Verdict) -> str:
    if verdict.answers.base_here.good:
        return "Yes, but not its code: the base commit's result moves with the packages too."
    return "Yes. The base commit in its own environment gives a different result."


def _baseline_is_change(_: Verdict) -> str:
    return "Yes, on purpose. The new result is part of it."


def _nothing_wrong(verdict: Verdict) -> str:
    if verdict.provisional is not None:
        return "Not known. Nothing judged it."
    if verdict.equal_runs is None:
        return "Not known. Nothing judged it."
    return f"Nothing to judge it by yet. So far: {missed_words(verdict.equal_runs)}."


def _not_comparable_change(verdict: Verdict) -> str:
    baseline = verdict.baseline
    if baseline is None or baseline.comparable:
        if verdict.other_settings and verdict.settings_from == "base":
            return "No. The base branch's settings count; its baseline was recorded with others."
        if verdict.other_settings and verdict.settings_from == "head":
            return "Yes. It adds the settings; the baseline was recorded with others."
        return "Only if it changes the settings; the machine does not matter here."
    if verdict.nothing_moved:
        return "No. Its files are exactly those that the baseline was recorded from."
    if baseline.same_environment:
        return "Yes. Same machine and packages as the baseline."
    return f"Most likely. Of the environment, only {_moved(baseline)}."


def _not_repeating_change(verdict: Verdict) -> str:
    if verdict.unrepeated is not None:
        return "Not known. The base commit's preprocessing may not be repeatable either."
    facts, diagnosis = verdict.baseline_facts, verdict.diagnosis
    rests = f"the baseline rests on {facts.equal_runs} equal runs" if facts else ""
    if verdict.change is not None:
        also = f", and {rests}" if rests else ""
        return f"Most likely: {verdict.change.places} is changed in this pull request{also}."
    # A line can differ because of a change elsewhere, such as a seed that is no longer set.
    if verdict.named_unchanged and diagnosis is not None and diagnosis.likely:
        but = f", but {rests}" if rests else "; the base commit may not be repeatable either"
        return f"Not known. It does not change {diagnosis.likely[0].place}{but}."
    return "Not known. Only this commit was run; the base commit may not be repeatable either."


def _not_finite_change(verdict: Verdict, not_finite: NotFiniteResult) -> str:
    if not_finite.in_base:
        return "No. The base commit's result here is not finite either."
    if not_finite.brought and verdict.base_run is not None:
        return "Yes. The base commit, run on this machine, is finite."
    if not_finite.brought:
        return "Yes. Same machine and packages as the baseline, which is finite."
    if verdict.baseline is None:
        return "Not known. There is no baseline and no run of the base commit to compare with."
    return "Not known. More than this pull request changed since the baseline was recorded."


def _not_judged(verdict: Verdict) -> str:
    if verdict.not_finite is not None:
        return _not_finite_change(verdict, verdict.not_finite)
    if verdict.change is not None:
        return (
            f"Most likely: {verdict.change.places}, which raised, is changed in this pull request."
        )
    return "Not known. Nothing was judged."


def _resume_change(verdict: Verdict) -> str:
    if verdict.torn_alone:
        return "Not known. Only this commit was killed inside its save."
    return (
        "Not known. Only this commit was interrupted and resumed, so the base commit may differ "
        "after a resume too."
    )


Words = Callable[[Verdict], str]
_ANSWERS: dict[Outcome, tuple[Words, Words]] = {
    Outcome.REPRODUCED: (_reproduced, _unmoved),
    Outcome.WITHIN_TOLERANCE: (_within, _within_change),
    Outcome.CODE_DRIFT: (_code_drift, _drift_change),
    Outcome.ENVIRONMENT_DRIFT: (_environment_drift, _environment_change),
    Outcome.DEPENDENCY_DRIFT: (_dependency_drift, _dependency_change),
    Outcome.DATA_DRIFT: (_data_drift, data_change_words),
    Outcome.BASELINE_CHANGE: (_baseline_change, _baseline_is_change),
    Outcome.NO_BASELINE: (_no_baseline, _nothing_wrong),
    Outcome.NOT_COMPARABLE: (_as_decided, _not_comparable_change),
    Outcome.NONDETERMINISTIC: (_nondeterministic, _not_repeating_change),
    Outcome.RESUME_DIFFERS: (_resume_differs, _resume_change),
    Outcome.ERROR: (_stopped, _not_judged),
}
