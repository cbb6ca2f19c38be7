"""An entry of the baseline for a reader: how far it moved, what it rests on, who took it over."""

from __future__ import annotations

import math

from gate.baseline.acceptance import Movement, ProvisionalEntry
from gate.report.wording import pair, points_words, share
from gate.verdict.verdict import Verdict

FEW_ULP = 1_000_000
WHOLE = 10
SHOWN_PATTERNS = 3


def movement_words(moved: Movement) -> str:
    """The worst of what moved: `loss at step 7: 1.3 → 1.4, moved by 8 % (12 times ...); ...`."""
    weights = "weights equal" if moved.weights_equal else "weights differ"
    if moved.structure:
        weights = f"other metrics, steps or tensors; {weights}"
    if not moved.metric:
        return f"no number moved; {weights}"
    before, after = pair(moved.before, moved.after)
    return f"{moved.where}: {before} → {after}, moved by {_how_far(moved)}; {weights}"


def _how_far(moved: Movement) -> str:
    size = "more than can be said" if moved.relative is None else share(moved.relative)
    size = points_words(moved.metric, moved.before, moved.after) or size
    return f"{size} ({_scale(moved)})"


def _scale(moved: Movement) -> str:
    """In multiples of the tolerance, else in units in the last place: what a reader can weigh."""
    if moved.tolerances is not None and math.isfinite(moved.tolerances):
        if moved.tolerances <= 1:
            return "within its tolerance"
        return f"{magnitude_of(moved.tolerances)} times the tolerance"
    if moved.ulp is not None and moved.ulp < FEW_ULP:
        return f"{moved.ulp:,} ULP, no tolerance"
    return "no tolerance"


def magnitude_of(times: float) -> str:
    """A factor in two digits, or whole where it is larger than that."""
    return f"{times:.2g}" if times < WHOLE else f"{times:,.0f}"


def provisional_words(entry: ProvisionalEntry) -> str:
    """Why an entry that is there judges nothing yet, and whether this run confirms it."""
    whose = "the entry that this pull request brings" if entry.brought else "the baseline's entry"
    again = "gives its bits again" if entry.repeated else "does not give its bits again"
    return (
        f"But {whose} is far from its peers, the entries of other environments: "
        f"{entry.far.described}. It judges nothing until it is recorded again. This run {again}."
    )


def quarantine_sentence(verdict: Verdict) -> str:
    """Said first, since what is in quarantine judged nothing; empty where nothing is."""
    rule = verdict.quarantine
    if rule is None:
        return ""
    what = f"{', '.join(rule.metrics[:SHOWN_PATTERNS])} of the" if rule.metrics else "the"
    words = f"In quarantine until {rule.until}: {what} baseline ({rule.reason})."
    if verdict.base_run is None:
        words += " That excuses nothing here: the base commit was not run, which would judge."
    return words
