"""The one sentence that says why an outcome is what it is, made of the facts that decided it.

A command and a variable are the text of whoever wrote the settings: shown as one harmless line.
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
from gate.data.data_sets import DataMoves, UnrepeatedData, move_sentence
from gate.diagnosis.diagnosis import CauseClass, Diagnosis
from gate.diagnosis.first_divergence import BY_CLAIM, DATA
from gate.evidence.trace import Claim, Phase, TraceFinding
from gate.settings.levels import Level, Quarantine
from gate.text.phrases import count, rank_words
from gate.text.untrusted_text import escaped_lines, safe_line
from gate.verdict.verdict import NotFiniteResult, Outcome


def concluded_class(diagnosis: Diagnosis, outcome: Outcome) -> CauseClass | None:
    """The class once it is known what was compared, and what two traced runs showed.

    Traces of one commit prove a class where fingerprints left it open. They tell other data from
    another order: that takes tensors that other calls made, and no other real numbers. That the
    commit's code is the cause is said only where nothing else moved. Traces of two commits give the
    class of a step without fingerprints.
    """
    recorded = diagnosis.cause_class
    trace = diagnosis.trace
    if recorded is None and diagnosis.kind in DATA and trace is not None:
        if trace.claim is Claim.OTHER_TENSORS:
            return CauseClass.DATA_ORDER
        if trace.real_numbers and outcome is not Outcome.NONDETERMINISTIC:
            return CauseClass.DATA
    # known from the digests, whatever the runs show
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
    """What the first call is of at which the traces of two commits part.

    Fingerprints would have told the same, had they been recorded at that step.
    """
    if trace.draws:
        return CauseClass.RANDOM_STATE
    # other shapes of a batch are of other data as well as of another order
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
# which data sets there are, in words of ours
UNQUOTED: Final = ("data.", "preprocess.")


def settings_words(settings: Sequence[OtherSetting]) -> str:
    """The first settings that differ, each with what of it does."""
    rest = len(settings) - SHOWN_SETTINGS
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(map(_setting, settings[:SHOWN_SETTINGS])) + more


def _setting(setting: OtherSetting) -> str:
    key = _shown(setting.key)
    differences = changed_words(setting)
    return f"{key} ({', '.join(differences)})" if differences else key


def changed_words(setting: OtherSetting) -> tuple[str, ...]:
    """`--lora_alpha 8 → 9`: what of a setting differs, an option's name before its word."""
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
        # only an entry that was written by hand holds no JSON here
        return text
    return value


def _of_words(before: list[str], after: list[str]) -> Iterator[str]:
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for kind, first, last, start, end in matcher.get_opcodes():
        if kind == "equal":
            continue
        gone, new = _line(before[first:last]), _line(after[start:end])
        # what follows an option is its word: the number alone says nothing
        option = after[start - 1] if start else ""
        named = f"{_shown(option)} " if option.startswith("-") and "=" not in option else ""
        # an option that comes or goes belongs to no other
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
    # a space that is none, and what else no reader tells from another, is spelt out
    line = escaped_lines(safe_line(text))
    return line if len(line) <= MAX_WORD else f"{line[:MAX_WORD]}…"


SHOWN_CHANGES = 3
PAIR = 2
ONE_SIDED = (TensorChange.MISSING, TensorChange.EXTRA)


def not_finite(number: NotFinite) -> str:
    """A number that can never pass."""
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
    """What the baseline, or the base commit that ran here, has in the place of the number.

    `sides` are the comparisons with the two; `comparable`: nothing but the commit's own files moved
    since the entry was recorded, which holds no number that is not finite. `in_base` is what the
    base commit has here, where it ran.
    """
    baseline, base = sides
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
    """Why two equal runs are compared with nothing."""
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
    """Why an entry that is there does not judge yet."""
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
    """Until when and why an entry does not judge."""
    what = (
        f"{', '.join(rule.metrics[:SHOWN_CHANGES])} of the baseline"
        if rule.metrics
        else ("the baseline's entry")
    )
    return f"{what} is in quarantine until {rule.until} ({rule.reason})"


def runs_differ(repeat: Comparison, unequal: int, runs: int) -> str:
    """Where two strict runs of one commit first differ; so many of all do from the first one."""
    words = f"two strict runs of the same commit {_how(repeat)}"
    if runs == PAIR:
        return words
    return f"{words} ({unequal} of {runs} differ from {repeat.expected}, {repeat.observed} first)"


def one_run_differs(unlike: Comparison) -> str:
    """Where a run differs that does the same work as the strict runs, which are equal."""
    return (
        f"{unlike.observed} differs from {unlike.expected}, although strict and default mode "
        f"compute the same here: the runs {_how(unlike)}, which the strict runs alone did "
        "not show"
    )


def missed_threshold(missed: ThresholdResult) -> str:
    """The bound that a metric's last value does not keep."""
    bounds = (("at least", missed.least), ("at most", missed.most))
    bound_words = " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)
    if missed.step is None:
        return f"there is no metric {missed.metric}, which policy.thresholds wants {bound_words}"
    return (
        f"{missed.metric} is {missed.value} at its last step {missed.step}, and policy.thresholds "
        f"wants {bound_words}"
    )


def entropy(call: str, place: str) -> str:
    """Why a result inside a tolerance is not enough."""
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
    """The settings that the baseline was recorded with a different value of."""
    if not settings:
        return "the baseline was recorded under different settings"
    return f"the baseline was recorded with a different {settings_words(settings)}"


def not_common(comparison: Comparison) -> str:
    """Why two results have not the same things in them."""
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
    """How many tensors have other names, where nothing but names differs; else 0."""
    if comparison.steps_expected != comparison.steps_observed or comparison.series:
        return 0
    one_sided = [delta for delta in comparison.tensors if delta.kind in ONE_SIDED]
    renamed, _ = _renamed(one_sided)
    return len(renamed) // PAIR if len(renamed) == len(comparison.tensors) else 0


def _renamed(
    one_sided: Sequence[TensorDelta],
) -> tuple[list[TensorDelta], list[tuple[TensorDelta, TensorDelta]]]:
    """Tensors that are the same ones under other names; the pairs of those that are unmistakable.

    Type, shape and digest are equal, and so is the kind of state that they are in. Of several with
    one content, none is known to be another's.
    """
    by_content: dict[tuple[str, str], tuple[list[TensorDelta], list[TensorDelta]]] = {}
    for delta in one_sided:
        gone = delta.kind is TensorChange.MISSING
        content = delta.expected if gone else delta.observed
        # a plain value has no shape, and its equal is soon found
        if "[" in content:
            state, slash, _ = delta.name.partition("/")
            sides = by_content.setdefault((state if slash else "", content), ([], []))
            sides[not gone].append(delta)
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
    """Where a result leaves what it is compared with, and the first number that shows it."""
    before = f"differs from {against}"
    if comparison.retyped:
        tensor = comparison.retyped[0]
        return (
            f"{before}: {tensor.name} is {_form(tensor.observed)}, expected "
            f"{_form(tensor.expected)}"
        )
    first, outside = comparison.first, comparison.first_outside
    beyond = comparison.first_tensor_beyond
    # metrics are within their tolerances: what fails is what to name
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
    """How far a tensor moved, as an estimate, or that it is not known."""
    if delta.distance is None:
        return f"{delta.name} differs, and its distance is not known"
    return f"{delta.name} differs by about {delta.distance:.2g} of its size"


def _form(described: str) -> str:
    """Type and shape of a tensor without its digest."""
    return described.rpartition(" ")[0]


def _number(delta: MetricDelta) -> str:
    words = f"{delta.metric} at step {delta.step} is {delta.observed}, expected {delta.expected}"
    # it did not fail for being bad, and whoever reads this should not look for a regression
    return f"{words}: better, but still outside the tolerance" if delta.better else words


def nearness(comparison: Comparison) -> str:
    """`equal to`, or what is within tolerance of: one of metrics says nothing of a tensor."""
    if comparison.numerically_equal:
        return "equal to"
    bounded = all(delta.limit is not None for delta in comparison.tensors if delta.weight)
    return f"{'' if bounded else 'metrics '}within tolerance of"


def worst(comparison: Comparison) -> str:
    """How far the worst metric is off, where that has a size; to be put behind a sentence."""
    sized = [delta for delta in comparison.metrics if delta.relative is not None]
    if not sized:
        return ""
    farthest = max(sized, key=lambda delta: delta.relative or 0.0)
    off_by = f"{(farthest.relative or 0.0) * 100:.3g} %"
    return f": {farthest.metric} is off by {off_by} at step {farthest.step}"


def moved_parts(baseline: Comparison) -> str:
    """The parts that moved, the first package of many by its name."""
    return ", ".join(
        f"{change.part}: {change.details[0]}{' and more' if len(change.details) > 1 else ''}"
        if change.details
        else change.part
        for change in baseline.environment
    )


def other_ranks(baseline: Comparison, level: Level) -> str:
    """Why an entry of another number of ranks cannot judge bits or tolerances, or nothing."""
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
    """Why a base run in the same new packages does not excuse what they moved."""
    return (
        f"the environment moved ({moved}) and the result with it: the base commit gives the same "
        "result here, so the cause is the software it runs with, not this change's code; "
        f"{drift(baseline, 'the baseline')}"
    )


def same_code(baseline: Comparison) -> str:
    """Why a result that moved is nothing that the change could have done."""
    return (
        "same code, same environment, a different result: data outside the repository, or the "
        f"hardware; {drift(baseline, 'the baseline')}"
    )


def moved_data_reason(moves: DataMoves, *, by_change: bool) -> str:
    """Which declared data is not the baseline's, the first by name; `by_change`: it moved them."""
    rest = len(moves) - SHOWN_CHANGES
    more = f"; and {rest} more" if rest > 0 else ""
    named = "; ".join(move_sentence(move) for move in moves[:SHOWN_CHANGES])
    whose = "the change selects other data" if by_change else "the declared data moved"
    return f"{whose} ({named}{more})"


def unrepeated_data(data: UnrepeatedData) -> str:
    """What the preprocessing command wrote differently when it ran again."""
    where = f", {data.where}" if data.where else ""
    return (
        f"the preprocessing is not repeatable: two runs of {data.command} wrote different data "
        f"({move_sentence(data.move)}{where})"
    )


def dependency_drift(base: Comparison, *, alone: bool) -> str:
    """What the environment that a change brings does to the result; `alone`: without its code."""
    whose = (
        "the environment that the change installs changes the result"
        if alone
        else "the change uses another environment, which changes the result, as may its code"
    )
    return f"{whose}; {drift(base, 'the base commit in its own environment')}"
