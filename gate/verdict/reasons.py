"""The one sentence that explains an outcome, made from the facts that decided it.

The pull request may control commands, variables and names. Such text is untrusted: it is shown as
one harmless line.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final

from gate.baseline.acceptance import ProvisionalEntry
from gate.comparison.differences import (
    Comparison,
    EnvironmentChange,
    Event,
    EventKind,
    MetricDelta,
    NotFinite,
    OtherSetting,
    TensorChange,
    TensorDelta,
    ThresholdResult,
    without_rank,
)
from gate.data.data_sets import DataMoves, move_sentence
from gate.diagnosis.diagnosis import CauseClass, Diagnosis
from gate.diagnosis.first_divergence import BY_CLAIM, DATA
from gate.evidence.trace import Claim, Phase, TraceFinding
from gate.settings.levels import Level, Quarantine
from gate.text.phrases import count, rank_words
from gate.text.untrusted_text import escaped_lines, safe_line
from gate.verdict.verdict import NotFiniteResult, Outcome


def concluded_class(diagnosis: Diagnosis, outcome: Outcome) -> CauseClass | None:
    """Return the final class of cause, now that the comparison and any traces are known.

    Traces of one commit prove a class where fingerprints left it open. They distinguish different
    data from a different order: an order needs tensors that other calls made, and no different real
    numbers. Code is named as the cause only where nothing else moved. Traces of two commits give
    the class of a step that has no fingerprints.
    """
    recorded = diagnosis.cause_class
    trace = diagnosis.trace
    if recorded is None and diagnosis.kind in DATA and trace is not None:
        # Other calls made these tensors: the same data in a different order.
        if trace.claim is Claim.OTHER_TENSORS:
            return CauseClass.DATA_ORDER
        if trace.real_numbers and outcome is not Outcome.NONDETERMINISTIC:
            return CauseClass.DATA
    # The digests of the data prove this, whatever the runs show.
    if outcome is Outcome.DATA_DRIFT:
        return CauseClass.DATA
    if outcome is Outcome.NONDETERMINISTIC:
        return recorded or _proved(trace)
    if recorded is None and trace is not None and diagnosis.begun_in_a_trace:
        recorded = _traced(trace) if outcome is Outcome.CODE_DRIFT else None
    if recorded is CauseClass.CODE:
        changed = CauseClass.PRECISION if trace is not None and trace.precision else recorded
        return changed if outcome is Outcome.CODE_DRIFT else None
    return recorded


def _traced(trace: TraceFinding) -> CauseClass | None:
    """Return the class of the first call at which the traces of two commits diverge.

    Fingerprints would have shown the same, if that step had any.
    """
    if trace.draws:
        return CauseClass.RANDOM_STATE
    # A batch of a different shape may mean different data or a different order.
    if trace.claim is Claim.CODE_PATH and trace.phase is Phase.DATA:
        return None
    if trace.claim is Claim.CODE_PATH:
        return CauseClass.OPTIMIZER if trace.phase is Phase.OPTIMIZER else CauseClass.CODE
    return BY_CLAIM.get(trace.claim)


def _proved(trace: TraceFinding | None) -> CauseClass | None:
    if trace is None:
        return None
    if trace.claim is Claim.NONDETERMINISTIC_OPERATOR:
        torchs = trace.operator.startswith("aten::")
        return CauseClass.OPERATOR if torchs else CauseClass.KERNEL
    return BY_CLAIM.get(trace.claim)


WORLD_SIZE: Final = "world_size"
SHOWN_SETTINGS: Final = 3
SHOWN_WORDS: Final = 6
MAX_WORD: Final = 60
# These keys have values worded by the gate itself, so they need no quoting.
UNQUOTED: Final = ("data.", "preprocess.")


def settings_words(settings: Sequence[OtherSetting]) -> str:
    """Return the first settings that differ, each with its changed words."""
    rest = len(settings) - SHOWN_SETTINGS
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(map(_setting, settings[:SHOWN_SETTINGS])) + more


def _setting(setting: OtherSetting) -> str:
    key = _shown(setting.key)
    differences = changed_words(setting)
    return f"{key} ({', '.join(differences)})" if differences else key


def changed_words(setting: OtherSetting) -> tuple[str, ...]:
    """Return what differs in a setting, such as `--lora_alpha 8 → 9`: first the option's name."""
    if setting.key.startswith(UNQUOTED):
        return ()
    before, after = _value(setting.before), _value(setting.after)
    if isinstance(before, list) and isinstance(after, list):
        words = tuple(_of_words([str(word) for word in before], [str(word) for word in after]))
        rest = len(words) - SHOWN_WORDS
        return (*words[:SHOWN_WORDS], *((f"{rest} more",) if rest > 0 else ()))
    return (f"{_word(before)} → {_word(after)}",)


def _value(text: str) -> object:
    try:
        value: object = json.loads(text) if text else None
    except ValueError:
        # Only an entry that was written by hand contains something other than JSON here.
        return text
    return value


def _of_words(before: list[str], after: list[str]) -> Iterator[str]:
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for kind, first, last, start, end in matcher.get_opcodes():
        if kind == "equal":
            continue
        gone, new = _line(before[first:last]), _line(after[start:end])
        # The word after an option is its value. The value alone would mean nothing to a reader.
        option = after[start - 1] if start else ""
        named = f"{_shown(option)} " if option.startswith("-") and "=" not in option else ""
        # An option that was added or removed is not the value of the option before it.
        if kind == "replace" and not (gone + new).startswith("-"):
            yield f"{named}{gone} → {new}"
        elif kind == "replace":
            yield f"{gone} → {new}"
        else:
            yield f"{new} added" if kind == "insert" else f"{gone} removed"


def _line(words: list[str]) -> str:
    return _shown(" ".join(map(shlex.quote, words)))


def _word(value: object) -> str:
    if value is None:
        return "none"
    return _shown(value if isinstance(value, str) else json.dumps(value)) or "''"


def _shown(text: str) -> str:
    # Characters that no reader can distinguish, such as special spaces, are spelt out.
    line = escaped_lines(safe_line(text))
    return line if len(line) <= MAX_WORD else f"{line[:MAX_WORD]}…"


SHOWN_CHANGES = 3
PAIR = 2
ONE_SIDED = (TensorChange.MISSING, TensorChange.EXTRA)


def not_finite(number: NotFinite) -> str:
    """Return the sentence on a NaN or infinity, which can never pass."""
    if number.step is not None:
        return (
            f"metric {number.name} is {number.value} at step {number.step}: a number that is not "
            "finite never passes"
        )
    return f"{number.name} holds {number.value} in {number.run}: such a state never passes"


def not_finite_result(
    number: NotFinite,
    sides: tuple[Comparison | None, Comparison | None],
    *,
    comparable: bool,
    in_base: bool,
) -> NotFiniteResult:
    """Return the number that is not finite, with what the baseline or the base run has instead.

    `sides` are the comparisons with the entry and with the base commit. `comparable`: only the
    commit's own files moved since the entry was recorded; an entry never contains such a number.
    `in_base`: the base commit, run here, has one too.
    """
    baseline, base = sides
    # The base commit that ran here is asked first: it shares this machine and its packages.
    deltas = [delta for side in (base, baseline) if side is not None for delta in side.metrics]
    expected = next(
        (
            delta.expected
            for delta in deltas
            if (delta.metric, delta.step) == (number.name, number.step)
        ),
        "",
    )
    proven = comparable and baseline is not None and baseline.same_environment
    return NotFiniteResult(
        number=number,
        expected=expected,
        brought=not in_base and (proven or base is not None),
        in_base=in_base,
    )


def no_baseline(
    nearest: tuple[EnvironmentChange, ...], unconfirmed: ProvisionalEntry | None = None
) -> str:
    """Return why two equal runs are compared with nothing."""
    if unconfirmed is not None:
        return provisional(unconfirmed)
    if not nearest:
        return "the strict runs are equal, but there is no baseline to compare them with"
    parts = ", ".join(words for change in nearest[:SHOWN_CHANGES] for words in change.described)
    return (
        "the strict runs are equal, but no entry of the baseline was recorded on this kind of "
        f"machine: {parts}"
    )


def provisional(entry: ProvisionalEntry) -> str:
    """Return why an entry that exists does not judge yet."""
    whose = "the pull request's entry" if entry.brought else "the entry"
    again = (
        "this run gives the same bits: accept it to confirm"
        if entry.repeated
        else "this run gives a different result than it does"
    )
    return (
        f"{whose} of this environment is far from its peers, those of other environments "
        f"({entry.far.described}): record it again to confirm; {again}"
    )


def quarantined(rule: Quarantine) -> str:
    """Return until when, and why, an entry does not judge."""
    what = (
        f"{', '.join(rule.metrics[:SHOWN_CHANGES])} of the baseline"
        if rule.metrics
        else ("the baseline's entry")
    )
    return f"{what} is in quarantine until {rule.until} ({rule.reason})"


def runs_differ(repeat: Comparison, unequal: int, runs: int) -> str:
    """Return where two strict runs of one commit first differ, and how many of `runs` differ."""
    words = f"two strict runs of the same commit {_how(repeat)}"
    if runs == PAIR:
        return words
    return f"{words} ({unequal} of {runs} differ from {repeat.expected}, {repeat.observed} first)"


def one_run_differs(unlike: Comparison) -> str:
    """Return where a run differs that does the same work as the equal strict runs."""
    return (
        f"{unlike.observed} differs from {unlike.expected}, although strict and default mode "
        f"compute the same here: the runs {_how(unlike)}, which the strict runs alone did "
        "not show"
    )


def missed_threshold(missed: ThresholdResult) -> str:
    """Return which bound a metric's last value violates."""
    bounds = (("at least", missed.least), ("at most", missed.most))
    bound_words = " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)
    if missed.step is None:
        return f"there is no metric {missed.metric}, which policy.thresholds wants {bound_words}"
    return (
        f"{missed.metric} is {missed.value} at its last step {missed.step}, and policy.thresholds "
        f"wants {bound_words}"
    )


def entropy(call: str, place: str) -> str:
    """Return why a result within tolerance is not enough."""
    return f"{place} draws from {call}, which no seed sets: then only equal bits pass"


def _how(comparison: Comparison) -> str:
    first = comparison.first
    if first is None or first.kind is EventKind.STATE:
        return "end in different states"
    if first.kind is EventKind.STEPS:
        return (
            f"take different numbers of optimizer steps: {comparison.steps_expected} and "
            f"{comparison.steps_observed}"
        )
    if first.kind is EventKind.METRIC_MISSING:
        return f"do not report the same metrics: {first.name} {_one_sided(comparison, first)}"
    if first.step is None:
        return f"differ: {first.name} {first.where}"
    ranks = comparison.first_ranks
    of_ranks = f" of {rank_words(ranks)}" if ranks else ""
    return f"differ from step {first.step} on: {without_rank(first.name)}{of_ranks} first"


def _one_sided(comparison: Comparison, first: Event) -> str:
    reason = next(
        (fault.reason for fault in comparison.series if fault.metric == first.name), "differs"
    )
    return f"{first.where}: {reason}"


def other_settings(settings: tuple[OtherSetting, ...]) -> str:
    """Return the settings for which the baseline has a different value."""
    if not settings:
        return "the baseline was recorded under different settings"
    return f"the baseline was recorded with a different {settings_words(settings)}"


def not_common(comparison: Comparison) -> str:
    """Return why two results do not contain the same metrics, steps or tensors."""
    if comparison.steps_expected != comparison.steps_observed:
        return (
            f"{comparison.steps_observed} optimizer steps instead of the baseline's "
            f"{comparison.steps_expected}"
        )
    if comparison.series:
        fault = comparison.series[0]
        return f"metric {fault.metric}: {fault.reason}"
    one_sided = [delta for delta in comparison.tensors if delta.kind in ONE_SIDED]
    renamed, pairs = _renamed(one_sided)
    words = _other_names(len(renamed) // PAIR, pairs) if renamed else ""
    for delta in one_sided:
        if delta not in renamed:
            word = "missing" if delta.kind is TensorChange.MISSING else "not in the baseline"
            return f"tensor {delta.name} is {word}{f'; {words}' if words else ''}"
    only = "only names differ: " if only_renamed(comparison) else ""
    return f"{only}{words}" if words else "nothing in common"


def only_renamed(comparison: Comparison) -> int:
    """Return how many tensors were renamed if nothing but names differs, else 0."""
    if comparison.steps_expected != comparison.steps_observed or comparison.series:
        return 0
    one_sided = [delta for delta in comparison.tensors if delta.kind in ONE_SIDED]
    renamed, _ = _renamed(one_sided)
    return len(renamed) // PAIR if len(renamed) == len(comparison.tensors) else 0


def _renamed(
    one_sided: Sequence[TensorDelta],
) -> tuple[list[TensorDelta], list[tuple[TensorDelta, TensorDelta]]]:
    """Return all renamed tensors, and the pairs of them that are certain.

    Both sides of a rename have the same type, shape, digest and kind of state. Where several
    tensors have the same content, it is not known which one became which.
    """
    by_content: dict[tuple[str, str], tuple[list[TensorDelta], list[TensorDelta]]] = {}
    for delta in one_sided:
        gone = delta.kind is TensorChange.MISSING
        content = delta.expected if gone else delta.observed
        # A plain value has no shape. Equal ones are common, so they prove no rename.
        if "[" in content:
            state, slash, _ = delta.name.partition("/")
            sides = by_content.setdefault((state if slash else "", content), ([], []))
            sides[not gone].append(delta)
    # Unequal numbers on the two sides mean that tensors were added or removed, too.
    groups = [sides for sides in by_content.values() if len(sides[0]) == len(sides[1])]
    every = [delta for sides in groups for side in sides for delta in side]
    return every, [(gone[0], new[0]) for gone, new in groups if len(gone) == 1]


def _other_names(number: int, pairs: Sequence[tuple[TensorDelta, TensorDelta]]) -> str:
    named = [f"{gone.name} is now {new.name}" for gone, new in pairs[:SHOWN_CHANGES]]
    listed = f": {', '.join(named)}" if named else ""
    rest = number - len(named)
    more = f", and {rest:,} more" if named and rest else ""
    has = "has" if number == 1 else "have"
    other = "another name" if number == 1 else "other names"
    return f"{count(number, 'tensor')} {has} the same content under {other}{listed}{more}"


def drift(comparison: Comparison, against: str) -> str:
    """Return where a result leaves what it is compared with, and the first number that shows it."""
    before = f"differs from {against}"
    if comparison.retyped:
        tensor = comparison.retyped[0]
        return (
            f"{before}: {tensor.name} is {_form(tensor.observed)}, expected "
            f"{_form(tensor.expected)}"
        )
    first, outside = comparison.first, comparison.first_outside
    beyond = comparison.first_tensor_beyond
    # Metrics are within tolerance, so the tensor that exceeds its limit is the reason.
    if outside is None and beyond is not None and beyond.limit:
        return f"{before}: {tensor_distance(beyond)}; compare.tensors allows {beyond.limit:g}"
    if first is None:
        return before
    if outside is not None and outside.metric == first.name:
        return f"{before}: {_number(outside)}"
    sentence = f"{before} from {first.where.removeprefix('at ')} on: {first.name}"
    if first.kind is EventKind.STATE:
        sentence = (
            f"{before} in {count(len(comparison.tensors), 'tensor')} at the end: {first.name}"
        )
    return f"{sentence}; {_number(outside)}" if outside is not None else sentence


def tensor_distance(delta: TensorDelta) -> str:
    """Return how far a tensor moved, as an estimate, or that the distance is not known."""
    if delta.distance is None:
        return f"{delta.name} differs, and its distance is not known"
    return f"{delta.name} differs by about {delta.distance:.2g} of its size"


def _form(described: str) -> str:
    """Return type and shape of a described tensor, without its digest."""
    return described.rpartition(" ")[0]


def _number(delta: MetricDelta) -> str:
    words = f"{delta.metric} at step {delta.step} is {delta.observed}, expected {delta.expected}"
    # The commit did not fail, so nobody should look for a regression.
    return f"{words}: better, but still outside the tolerance" if delta.better else words


def nearness(comparison: Comparison) -> str:
    """Return `equal to`, or which values are within tolerance.

    `metrics within tolerance of` makes no claim about tensors without a limit of their own.
    """
    if comparison.numerically_equal:
        return "equal to"
    bounded = all(delta.limit is not None for delta in comparison.tensors if delta.weight)
    return f"{'' if bounded else 'metrics '}within tolerance of"


def worst(comparison: Comparison) -> str:
    """Return how far the worst metric is off, as the end of a sentence; "" for an unknown size."""
    sized = [delta for delta in comparison.metrics if delta.relative is not None]
    if not sized:
        return ""
    farthest = max(sized, key=lambda delta: delta.relative or 0.0)
    off_by = f"{(farthest.relative or 0.0) * 100:.3g} %"
    return f": {farthest.metric} is off by {off_by} at step {farthest.step}"


def moved_parts(baseline: Comparison) -> str:
    """Return the parts that moved, each with its first package by name."""
    return ", ".join(
        f"{change.part}: {change.details[0]}{' and more' if len(change.details) > 1 else ''}"
        if change.details
        else change.part
        for change in baseline.environment
    )


def other_ranks(baseline: Comparison, level: Level) -> str:
    """Return why an entry of a different number of ranks cannot judge bits or tolerances.

    "" where the number is the same, or the settings allow it to move.
    """
    moved = next((part for part in baseline.environment if part.part == WORLD_SIZE), None)
    if moved is None or moved.comparable:
        return ""
    here, then = (
        count(int(number) if number.isdecimal() else 1, "rank")
        for number in (moved.observed, moved.expected)
    )
    why = (
        f"trained with {here}, and the baseline with {then}: another number of ranks splits "
        "batches and adds gradients differently, so neither bits nor tolerances show whether this "
        "change moved the result"
    )
    return why if level is Level.STATISTICAL else f"{why}; policy.level: statistical can judge it"


def software_moved(baseline: Comparison, moved: str) -> str:
    """Return why a base run with the same new packages does not excuse what these changed."""
    return (
        f"the environment moved ({moved}) and the result with it: the base commit gives the same "
        "result here, so the cause is the software it runs with, not this change's code; "
        f"{drift(baseline, 'the baseline')}"
    )


def same_code(baseline: Comparison) -> str:
    """Return why the change cannot have caused the different result."""
    return (
        "same code, same environment, a different result: data outside the repository, or the "
        f"hardware; {drift(baseline, 'the baseline')}"
    )


def moved_data_reason(moves: DataMoves, *, by_change: bool) -> str:
    """Return which declared data differs from the baseline's; `by_change`: the change moved it."""
    rest = len(moves) - SHOWN_CHANGES
    more = f"; and {rest} more" if rest > 0 else ""
    named = "; ".join(move_sentence(move) for move in moves[:SHOWN_CHANGES])
    whose = "the change selects other data" if by_change else "the declared data moved"
    return f"{whose} ({named}{more})"


def dependency_drift(base: Comparison, *, alone: bool) -> str:
    """Return how the change's environment moves the result; `alone`: even without its code."""
    whose = (
        "the environment that the change installs changes the result"
        if alone
        else "the change uses another environment, which changes the result, as may its code"
    )
    return f"{whose}; {drift(base, 'the base commit in its own environment')}"
