"""Words and numbers as a reader sees them: titles, causes, percentages, durations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gate.comparison.differences import (
    Comparison,
    EventKind,
    MetricDelta,
    OptimizerSettingChange,
    ThresholdResult,
)
from gate.diagnosis.diagnosis import CauseClass, Suspect, SuspectKind
from gate.report.escape import NOTHING, clean_name
from gate.settings.levels import ReachedLevel
from gate.text.phrases import count
from gate.verdict.verdict import (
    DRIFTS,
    Answer,
    EqualRuns,
    NotFiniteResult,
    NotRun,
    Outcome,
    RunPurpose,
    Verdict,
    WhyNotRun,
    led_by_settings,
)

SHORT_DIGEST = 12
# A number with more digits was computed, not typed by somebody.
MANY_DIGITS = 10
# the length of a commit as git shows it
SHORT_COMMIT = 7
SHORT_NAME = 60
# Only a whole digest is shortened: an image's name or a version must stay readable.
SHA256 = re.compile(r"[0-9a-f]{64}")
GOOD, BAD, WATCH, NEUTRAL = "✅", "❌", "🔶", "⚪"
PAIR, TWO = 2, "Two"
# the name of this commit's runs in a drawing or a picture
THIS_CHANGE = "this change"
# Names of metrics that are fractions. A percentage of a fraction would be misleading, so they are
# given in points.
FRACTION = re.compile(
    r"(?:^|[^a-z])(?:acc|accuracy|auc|auroc|f1|recall|precision|iou|dice|map|top[-_]?[0-9]+)"
    r"(?:$|[^a-z])",
    re.IGNORECASE | re.ASCII,
)
STOPPED = "⛔"
# ONE_MESSAGE waits for a message, not a result. MAKERS create a generator; all other calls seed an
# existing one.
ONE_MESSAGE = frozenset(("torch.distributed.isend", "torch.distributed.irecv"))
MAKERS = frozenset(("random.Random", "numpy.random.default_rng", "numpy.random.RandomState"))


# outcomes that can pass although the result is not the committed baseline's
ANOTHER = frozenset((Outcome.BASELINE_CHANGE, Outcome.CODE_DRIFT, Outcome.ENVIRONMENT_DRIFT))
OTHER_RESULT = "a different result, which meets every threshold"
# for levels that several seeds decide
OTHER_RESULTS: Mapping[ReachedLevel, str] = MappingProxyType(
    {
        ReachedLevel.STATISTICAL: "a different result, equivalent over the seeds",
        ReachedLevel.SCIENTIFIC: "a different result, and the variants rank as before",
    }
)
# The title of a passing and of a failing verdict for each outcome. `verdict.json` has the outcome's
# own word.
TITLES: Mapping[Outcome, tuple[str, str]] = MappingProxyType(
    {
        Outcome.REPRODUCED: ("same result, bit for bit", "determinism costs too much"),
        Outcome.WITHIN_TOLERANCE: ("same result, within tolerance", "equal bits are required"),
        Outcome.CODE_DRIFT: (OTHER_RESULT, "this change moves the result"),
        Outcome.ENVIRONMENT_DRIFT: (OTHER_RESULT, "environment and result both changed"),
        Outcome.DEPENDENCY_DRIFT: (OTHER_RESULT, "the new environment changes the result"),
        Outcome.DATA_DRIFT: (OTHER_RESULT, "data and result both changed"),
        Outcome.BASELINE_CHANGE: ("new baseline", "a new baseline is not allowed here"),
        Outcome.NO_BASELINE: ("", "repeatable; no baseline yet"),
        Outcome.NOT_COMPARABLE: ("", "not comparable with the baseline"),
        Outcome.NONDETERMINISTIC: ("", "two runs of this commit gave different results"),
        Outcome.RESUME_DIFFERS: ("", "a resumed run gives a different result"),
        Outcome.ERROR: ("", "could not check"),
    }
)


TORN_TITLE = "a kill inside the save leaves no complete checkpoint"
CAUSE_TITLES: Mapping[EventKind, str] = MappingProxyType(
    {
        EventKind.ENVIRONMENT: "environment",
        EventKind.STEPS: "number of steps",
        EventKind.SAMPLES: "samples per step",
        EventKind.ROWS: "rows of input per step",
        EventKind.TURNS: "turns of the optimizers",
        EventKind.PASSES: "backward passes per step",
        EventKind.STRUCTURE: "optimizer parameters",
        EventKind.INITIAL: "initial weights",
        EventKind.RANDOM: "random state",
        EventKind.BATCH: "data",
        EventKind.INPUT: "model's input",
        EventKind.WEIGHTS: "weights that a pass uses",
        EventKind.LOSS: "forward pass",
        EventKind.BACKWARD: "backward pass",
        EventKind.GRADIENTS: "gradients before the update",
        EventKind.PARAMETERS: "weight update",
        EventKind.OPTIMIZER: "optimizer state",
        EventKind.METRIC: "metric",
        EventKind.METRIC_MISSING: "metric on one side only",
        EventKind.STATE: "final state",
    }
)


PARTS: Mapping[RunPurpose, str] = MappingProxyType(
    {
        RunPurpose.DEFAULT_RUNS: "default run",
        RunPurpose.STRICT_RUNS: "strict run",
        RunPurpose.SEEDS: "seed run",
        RunPurpose.OPERATOR_AUDIT: "operator audit",
    }
)


def icon(verdict: Verdict) -> str:
    """Return one character for the outcome; a different result that passes needs attention."""
    if verdict.outcome is Outcome.ERROR:
        return STOPPED if verdict.not_finite is None else BAD
    if verdict.nothing_to_compare:
        return NEUTRAL
    if not verdict.passes:
        return BAD
    return WATCH if verdict.excused or verdict.outcome in ANOTHER else GOOD


def headline(verdict: Verdict) -> str:
    """Return the verdict in a few words, to follow the gate's name: `failed: new baseline`."""
    rule = verdict.quarantine
    until = f" (baseline in quarantine until {rule.until})" if rule is not None else ""
    return f"{_headline(verdict)}{until}"


def _environment_title(verdict: Verdict) -> str:
    if verdict.nothing_moved:
        return "a different result from the same code"
    if led_by_settings(verdict.outcome, verdict.diagnosis):
        return "a setting of the run is different, and the environment moved"
    return TITLES[Outcome.ENVIRONMENT_DRIFT][1]


def _headline(verdict: Verdict) -> str:
    if verdict.unaffected is not None:
        return "passed: nothing that the training gets has changed"
    return _judged_headline(verdict)


def _judged_headline(verdict: Verdict) -> str:
    passing, failing = TITLES[verdict.outcome]
    failing = TORN_TITLE if verdict.torn_alone else failing
    if verdict.outcome is Outcome.ERROR:
        not_finite = verdict.not_finite
        return failing if not_finite is None else f"failed: {not_finite_words(not_finite)}"
    if verdict.nothing_to_compare:
        return "repeatable; no baseline for this machine yet" if verdict.nearest_entry else failing
    if verdict.missed_threshold:
        return "failed: a threshold is missed"
    if verdict.unrepeated is not None:
        return "failed: the preprocessing is not repeatable"
    if verdict.over_budget:
        return f"failed: {TITLES[Outcome.REPRODUCED][1]}"
    if verdict.provisional is not None and verdict.outcome is Outcome.NO_BASELINE:
        failing = "the baseline's entry is far from its peers"
    if verdict.outcome is Outcome.ENVIRONMENT_DRIFT:
        failing = _environment_title(verdict)
    if verdict.passes and verdict.answers.base_run is Answer.EQUAL:
        passing = "same result as the base commit"
    if verdict.outcome in DRIFTS and verdict.level is not None:
        passing = OTHER_RESULTS.get(verdict.level, passing)
    return f"passed: {passing}" if verdict.passes else f"failed: {failing}"


def setting_words(change: OptimizerSettingChange) -> str:
    """Describe an optimizer's changed setting: `lr 0.001 → 0.002`, or with `optimizer 1, ` before.

    For a setting that changes from step to step it gives the proportion, because no single number
    of it is in the code.
    """
    number = change.optimizer
    which = "" if change.alone else f"optimizer {number}, "
    if change.name == "class":
        whose = "the optimizer" if change.alone else f"optimizer {number}"
        return f"{whose} is {change.after} instead of {change.before}"
    if change.scheduled and change.factor:
        name = "the learning rate" if change.name == "lr" else change.name
        ends = {1: "at every step", None: "at the end"}
        when = ends.get(change.step, f"from step {change.step} on")
        whose = f"{name}{change.of_optimizer}{change.in_groups}"
        return f"{whose} is {change.factor} × the baseline's {when}"
    if not change.before or not change.after:
        return f"{which}{change.name} changed"
    before, after = change.before, change.after
    if len(before) > MANY_DIGITS or len(after) > MANY_DIGITS:
        before, after = pair(before, after)
    words = f"{change.name} {before} → {after}"
    if change.scheduled:
        when = "at the end" if change.step is None else f"at step {change.step}"
        return f"{which}another schedule: {words} {when}{change.in_groups}"
    late = f" from step {change.step} on" if change.step is not None and change.step > 1 else ""
    where = f" ({change.configured})" if change.configured else ""
    return f"{which}{words}{late}{change.in_groups}{where}"


def not_finite_words(result: NotFiniteResult) -> str:
    """Return `the loss is NaN from step 1 on (baseline: 2.321)`, or what a tensor contains."""
    number = result.number
    # A training chose the name, and a headline is shown in many places.
    name = clean_name(number.name, SHORT_NAME)
    if number.step is None:
        return f"{name} holds {number.value}"
    value = "infinite" if number.infinite else "NaN"
    when = f"from step {number.step} on" if number.lasting else f"at step {number.step}"
    was = f" (baseline: {four_digits(result.expected)})" if result.expected else ""
    return f"{'the loss' if name == 'loss' else name} is {value} {when}{was}"


def four_digits(decimal: str) -> str:
    """Return a decimal number with four digits; any other text is cleaned and kept."""
    try:
        return f"{float(decimal):.4g}"
    except ValueError:
        return clean_name(decimal, SHORT_NAME)


def paired_words(suspect: Suspect) -> str:
    """Name one of two lines that fit, in few words because both are in one sentence."""
    if suspect.kind is SuspectKind.ENTROPY:
        return f"{suspect.place} draws from {suspect.call}()"
    if suspect.kind is SuspectKind.COMPLETION:
        return f"{suspect.place} takes results from {suspect.call}() as they complete"
    if suspect.kind is SuspectKind.DRAW:
        return f"{suspect.place} draws from {suspect.call}() in a thread"
    return suspect_words(suspect)


def suspect_words(suspect: Suspect) -> str:
    """Describe a line that would explain a difference, and where the difference shows first."""
    used = f", first used in {suspect.used}" if suspect.used else ""
    if suspect.kind in {SuspectKind.SETTING, SuspectKind.PRECISION}:
        turned = f"{suspect.call} from {suspect.before} to {suspect.after}"
        return f"{suspect.place} changed {turned} (step {suspect.step})"
    if suspect.kind is SuspectKind.CHILD:
        return f"{suspect.place} starts `{suspect.call}`, which is not set up as the training is"
    if suspect.kind is SuspectKind.CLOCK:
        return f"{suspect.place} reads the time by {suspect.call}()"
    return f"{suspect.place} {_does(suspect)}{used}"


def _thread_words(suspect: Suspect) -> str:
    if suspect.call.startswith("asyncio."):
        return f"hands work to threads by {suspect.call}()"
    if suspect.call.startswith("torch.distributed."):
        what = "message" if suspect.call in ONE_MESSAGE else "result"
        return f"does not wait for the {what} of {suspect.call}() before the update"
    return "starts a thread"


# With the generators in equal states, both possibilities explain why the training gets different
# values.
DRAW_OPEN = ": what each thread draws, or the order in which it arrives, may differ"


def _does(suspect: Suspect) -> str:
    call = f"{suspect.call}()"
    instead = f", {suspect.after} instead of {suspect.before}" if suspect.after else " in each run"
    if suspect.kind is SuspectKind.UNSEEDED and suspect.before:
        return f"seeds {suspect.call} with the time"
    if suspect.kind is SuspectKind.UNSEEDED and suspect.call not in MAKERS:
        return f"takes a seed from the machine by {call}"
    return {
        SuspectKind.UNSEEDED: f"draws from {call} without a seed",
        SuspectKind.SEED: f"gives {suspect.call} a different seed{instead}",
        SuspectKind.ENTROPY: f"draws from {call}, which no seed sets",
        SuspectKind.DRAW: f"draws from {call} in a thread{DRAW_OPEN if suspect.possible else ''}",
        SuspectKind.COMPLETION: f"takes results from {call} as they complete, in a different order",
        SuspectKind.ORDER: f"takes names from {call} in the file system's order",
        SuspectKind.PROCESS: f"uses {call}, a different number in each run",
        SuspectKind.ADDRESS: f"makes a {suspect.call}, whose order may differ in each run"
        if suspect.call in {"set", "frozenset"}
        else f"uses {call}, which may be a different number in each run",
        SuspectKind.THREAD: _thread_words(suspect),
        SuspectKind.READ: f"reads {suspect.call}, which {_read_unlike(suspect)}",
    }[suspect.kind]


def _read_unlike(suspect: Suspect) -> str:
    return "changed between the runs" if suspect.changed_file else "only one of the runs read"


def class_words(cause_class: CauseClass) -> str:
    """Return the name of a cause class for a reader."""
    return cause_class.value.replace("-", " ")


def percent(ratio: float) -> str:
    """Return a ratio as a signed change: 1.042 gives `+4.2 %`."""
    if not math.isfinite(ratio):
        return "not a number"
    # Adding zero turns a rounded -0.0 into 0.0.
    return f"{round((ratio - 1) * 100, 1) + 0.0:+.1f} %"


def interval(low: float | None, high: float | None) -> str:
    """Return a ratio's bounds as `[+1.0 %, +7.5 %]`, or empty text without bounds."""
    if low is None or high is None:
        return ""
    return f"[{percent(low)}, {percent(high)}]"


def percentage(relative: float | None) -> str:
    """Return a relative difference as a percentage, or a dash if there is none."""
    if relative is None or not math.isfinite(relative):
        return NOTHING
    return f"{relative * 100:.3g} %"


def points_words(metric: str, expected: str, observed: str) -> str:
    """Return the distance of two fractions such as `17 points`; empty for anything else."""
    if not FRACTION.search(metric):
        return ""
    try:
        before, after = float(expected), float(observed)
    except ValueError:
        return ""
    if not (0 <= before <= 1 and 0 <= after <= 1):
        return ""
    return f"{abs(after - before) * 100:.3g} points"


def pair(expected: str, observed: str) -> tuple[str, str]:
    """Return two decimal numbers with as few digits as tell them apart, at least four.

    Text that is not a number stays unchanged.
    """
    try:
        numbers = float(expected), float(observed)
    except ValueError:
        return expected, observed
    for digits in range(4, 18):
        left, right = (f"{number:.{digits}g}" for number in numbers)
        if left != right:
            return left, right
    return expected, observed


def magnitude(number: float | None) -> str:
    """Return a difference with three digits, or a dash if it does not exist."""
    return NOTHING if number is None or not math.isfinite(number) else f"{number:.3g}"


def duration(seconds: float | None) -> str:
    """Return a duration in seconds, or in milliseconds below one second; empty if unknown."""
    if seconds is None:
        return ""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.4g} s"


def strict_runs(verdict: Verdict) -> str:
    """Return the number of strict runs, to begin a sentence; without any, the usual `Two`."""
    if verdict.one_run is not None:
        return "1"
    return str(verdict.strict_runs) if verdict.strict_runs > PAIR else TWO


def not_run_words(not_run: tuple[NotRun, ...]) -> str:
    """List the runs that were skipped because two strict runs differ: `1 default run`."""
    asked = {
        *(WhyNotRun.NOT_PRICED, WhyNotRun.NOT_NIGHTLY),
        *(WhyNotRun.REPRODUCED, WhyNotRun.UNAFFECTED),
    }
    left_out = [left_part for left_part in not_run if left_part.why not in asked]
    return ", ".join(
        "interrupted and resumed run"
        if left_part.part is RunPurpose.RESUME
        else count(left_part.runs, PARTS[left_part.part])
        for left_part in left_out
    )


def why_not_run(not_run: tuple[NotRun, ...]) -> str:
    """Say why runs were skipped that could not turn the result into a pass."""
    finite = all(left_part.why is not WhyNotRun.NOT_FINITE for left_part in not_run)
    return "two strict runs differ" if finite else "a number is not finite"


def threshold_words(result: ThresholdResult) -> str:
    """Return a metric's last value and its bounds: `file.accuracy is 0.93 (at least 0.9)`."""
    bounds = (("at least", result.least), ("at most", result.most))
    bound_words = " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)
    value_words = (
        f"{result.metric} is {result.value}" if result.value else f"{result.metric} is missing"
    )
    return f"{value_words} ({bound_words})"


def repeat_words(equal_runs: int, missed_faults: float, recordings: int) -> str:
    """Say how many equal runs an entry is based on, and how rare a fault they would miss."""
    calls = f", recorded by {count(recordings, 'call')} with equal bits" if recordings > 1 else ""
    return f"{_identical(equal_runs, missed_faults)}{calls}"


def missed_words(equal: EqualRuns) -> str:
    """Return text such as `4 identical runs (a 1-in-10 fault is missed 66 % of the time)`."""
    return _identical(equal.runs, equal.missed)


def _identical(runs: int, missed: float) -> str:
    share = f"{missed * 100:.0f} %"
    # a single run is identical to the baseline's runs
    what = f"{runs} identical runs" if runs > 1 else "1 run"
    return f"{what} (a 1-in-10 fault is missed {share} of the time)"


def sentences(message: str, remedy: str) -> str:
    """Join a message and its remedy as two sentences."""
    if not remedy:
        return message
    return f"{message}{'' if message.endswith(('.', '!', '?', ':')) else '.'} {remedy}"


def short(digest: str) -> str:
    """Return the beginning of a commit or digest, enough to recognise it."""
    return digest[:SHORT_DIGEST]


def short_if_digest(value: str) -> str:
    """Return the value, or only the beginning of a SHA-256: nobody compares 64 digits by eye."""
    return short(value) if SHA256.fullmatch(value) else value


def severity(delta: MetricDelta) -> tuple[bool, float]:
    """Return a sort key for how bad a difference is: outside its tolerance, then relative size.

    A difference without a finite size (NaN, or a baseline of zero) counts as the largest.
    """
    return not delta.within, _relative_size(delta)


def _relative_size(delta: MetricDelta) -> float:
    relative = delta.relative
    known = relative is not None and math.isfinite(relative)
    # Without a finite size the distance is unknown, so it must not end up last in the list.
    return relative if known and relative is not None else math.inf


def printed_size(delta: MetricDelta) -> float:
    """Return the number that is printed for a difference: a fraction's distance, else a share."""
    if points_words(delta.metric, delta.expected, delta.observed):
        return abs(float(delta.observed) - float(delta.expected))
    return _relative_size(delta)


def farthest(deltas: Sequence[MetricDelta]) -> MetricDelta | None:
    """Return the worst metric's largest printed difference, or None without a finite size."""
    worst = max(deltas, key=_relative_size, default=None)
    same = (delta for delta in deltas if worst is not None and delta.metric == worst.metric)
    farthest_delta = max(same, key=printed_size, default=None)
    return (
        farthest_delta
        if farthest_delta is not None and math.isfinite(printed_size(farthest_delta))
        else None
    )


def worst_first(deltas: tuple[MetricDelta, ...]) -> list[MetricDelta]:
    """Return the differences with the worst first; equally bad ones keep their order."""
    return sorted(deltas, key=severity, reverse=True)


def moved_words(comparison: Comparison | None, most: int) -> str:
    """Return the first `most` changes by name, and how many packages changed in total.

    Packages come last, so that their number follows them. A change that a part and a package
    describe alike is listed once.
    """
    if comparison is None:
        return ""
    changes = sorted(comparison.environment, key=lambda change: bool(change.details))
    packages = {words for change in changes for words in change.details}
    parts = (words for change in changes if not change.details for words in change.described)
    named = [
        *(words for words in dict.fromkeys(parts) if words not in packages),
        *(words for change in changes for words in change.details),
    ]
    rest = len(named) - most
    text = ", ".join(named[:most]) + (f" and {rest} more" if rest > 0 else "")
    shares = "; ".join(change.share for change in changes if change.share)
    return f"{text} ({shares})" if shares else text
