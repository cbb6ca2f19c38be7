"""Words and numbers as a reader sees them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gate.records.comparison import EventKind
from gate.records.verdict import Answer, Diagnosis, Outcome, Suspect, SuspectKind, Verdict
from gate.report.escape import NOTHING

SHORT_DIGEST = 12
# Only a whole digest is shortened: an image's name or a version must stay readable.
SHA256 = re.compile(r"[0-9a-f]{64}")
GOOD, BAD, WATCH, NEUTRAL = "✅", "❌", "🔶", "⚪"
STOPPED = "⛔"


@dataclass(frozen=True, slots=True)
class OutcomeWords:
    """An outcome in plain words: its title and what it means."""

    title: str
    meaning: str


WORDS: Mapping[Outcome, OutcomeWords] = MappingProxyType(
    {
        Outcome.REPRODUCED: OutcomeWords(
            "reproduced", "The strict runs and the baseline are equal, bit for bit."
        ),
        Outcome.WITHIN_TOLERANCE: OutcomeWords(
            "within tolerance", "The strict runs are equal and every metric is within tolerance."
        ),
        Outcome.CODE_DRIFT: OutcomeWords(
            "code drift",
            "The strict runs are equal and the environment is the baseline's, but the result "
            "differs.",
        ),
        Outcome.ENVIRONMENT_DRIFT: OutcomeWords(
            "environment drift",
            "The strict runs are equal, but the environment moved and the result with it.",
        ),
        Outcome.BASELINE_CHANGE: OutcomeWords(
            "baseline change",
            "The pull request brings a new baseline, and its own run reproduces it exactly.",
        ),
        Outcome.NO_BASELINE: OutcomeWords(
            "no baseline", "The strict runs are equal, but there is nothing to compare them with."
        ),
        Outcome.NOT_COMPARABLE: OutcomeWords(
            "not comparable",
            "The baseline was recorded with different steps, metrics, tensors or settings.",
        ),
        Outcome.NONDETERMINISTIC: OutcomeWords(
            "not deterministic", "Two strict runs of the same code gave different results."
        ),
        Outcome.ERROR: OutcomeWords(
            "error", "Nothing can be said about reproducibility: the check itself did not finish."
        ),
    }
)


CAUSE_TITLES: Mapping[EventKind, str] = MappingProxyType(
    {
        EventKind.ENVIRONMENT: "environment",
        EventKind.STEPS: "number of steps",
        EventKind.STRUCTURE: "optimizer parameters",
        EventKind.INITIAL: "initial weights",
        EventKind.RANDOM: "random state",
        EventKind.BATCH: "data",
        EventKind.LOSS: "forward pass",
        EventKind.GRADIENTS: "backward pass",
        EventKind.PARAMETERS: "weight update",
        EventKind.OPTIMIZER: "optimizer state",
        EventKind.METRIC: "metric",
        EventKind.METRIC_MISSING: "metric on one side only",
        EventKind.STATE: "final state",
    }
)


def icon(verdict: Verdict) -> str:
    """One character for the outcome; a new baseline passes, but wants to be looked at."""
    if verdict.outcome is Outcome.ERROR:
        return STOPPED
    if not verdict.passes:
        return BAD
    return WATCH if verdict.outcome is Outcome.BASELINE_CHANGE else GOOD


def headline(verdict: Verdict) -> str:
    """The verdict in a few words, to be read after the gate's name: `failed: code drift`."""
    if verdict.outcome is Outcome.ERROR:
        return "could not check"
    title = WORDS[verdict.outcome].title
    if verdict.outcome is Outcome.WITHIN_TOLERANCE and verdict.answers.base_run is Answer.EQUAL:
        title = "same as the base commit"
    return f"{'passed' if verdict.passes else 'failed'}: {title}"


def why_words(diagnosis: Diagnosis | None) -> str:
    """The cause in one line: what differs first, at which step, by which line, or nothing."""
    if diagnosis is None:
        return ""
    step = "at the end" if diagnosis.first_step is None else f"at step {diagnosis.first_step}"
    cause_words = f"{CAUSE_TITLES[diagnosis.kind]}, {step}"
    if diagnosis.subject != diagnosis.kind:
        cause_words += f" ({diagnosis.subject})"
    if diagnosis.optimizer_settings:
        cause_words += f"; the optimizer's {', '.join(diagnosis.optimizer_settings)} changed"
    if diagnosis.suspects:
        cause_words += f"; {suspect_words(diagnosis.suspects[0])}"
    return f"{cause_words}: {diagnosis.cause.partition('. ')[0]}"


def suspect_words(suspect: Suspect) -> str:
    """A line that would explain a difference."""
    if suspect.kind is SuspectKind.SETTING:
        turned = f"{suspect.call} from {suspect.before} to {suspect.after}"
        return f"{suspect.place} changed {turned} (step {suspect.step})"
    return f"{suspect.place} draws from or seeds {suspect.call} (step {suspect.step})"


def percent(ratio: float) -> str:
    """A ratio as a signed change: 1.042 is `+4.2 %`."""
    if not math.isfinite(ratio):
        return "not a number"
    # adding zero turns a rounded -0.0 into 0.0
    return f"{round((ratio - 1) * 100, 1) + 0.0:+.1f} %"


def interval(low: float | None, high: float | None) -> str:
    """The bounds of a ratio as `[+1.0 %, +7.5 %]`, or nothing when there are none."""
    if low is None or high is None:
        return ""
    return f"[{percent(low)}, {percent(high)}]"


def share(relative: float | None) -> str:
    """A relative difference as a percentage, or a dash when it does not exist."""
    if relative is None or not math.isfinite(relative):
        return NOTHING
    return f"{relative * 100:.3g} %"


def magnitude(number: float | None) -> str:
    """A difference, or a dash when it does not exist."""
    return NOTHING if number is None or not math.isfinite(number) else f"{number:.3g}"


def duration(seconds: float | None) -> str:
    """Seconds, or milliseconds below one; nothing when unknown."""
    if seconds is None:
        return ""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.4g} s"


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 tensor`, `2,048 tensors`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def sentences(message: str, remedy: str) -> str:
    """What is the matter and what to do about it, as two sentences."""
    if not remedy:
        return message
    return f"{message}{'' if message.endswith(('.', '!', '?', ':')) else '.'} {remedy}"


def short(digest: str) -> str:
    """The head of a commit or digest, enough to recognise it."""
    return digest[:SHORT_DIGEST]


def short_if_digest(value: str) -> str:
    """The value, but a SHA-256 by its head: nobody compares 64 digits by eye."""
    return short(value) if SHA256.fullmatch(value) else value
