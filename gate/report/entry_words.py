"""Sentences and rows about numbers that differ, baseline entries and earlier runs."""

from __future__ import annotations

import math
from datetime import datetime

from gate.baseline.acceptance import Movement, ProvisionalEntry
from gate.comparison.differences import Comparison, MetricDelta, TensorDelta
from gate.report.layout import Cell, Limits, Row, Section, sparkline, table_of
from gate.report.wording import (
    BAD,
    GOOD,
    SHORT_COMMIT,
    STOPPED,
    farthest,
    pair,
    percent,
    percentage,
    points_words,
    printed_size,
)
from gate.text.phrases import count
from gate.verdict.history_lines import HistoryLine
from gate.verdict.verdict import Outcome, Verdict


def numbers_words(comparison: Comparison | None) -> str:
    """Describe the first number outside its tolerance, and a later one if that is worse."""
    if comparison is None:
        return ""
    if comparison.retyped:
        tensor = comparison.retyped[0]
        expected, observed = (
            form.rpartition(" ")[0] for form in (tensor.expected, tensor.observed)
        )
        return f"Tensor {tensor.name} is {observed} instead of {expected}."
    delta = comparison.first_outside
    beyond = comparison.first_tensor_beyond
    if delta is None and beyond is not None and beyond.limit:
        return (
            f"Tensor {tensor_words(beyond)}. compare.tensors allows "
            f"{percentage(beyond.limit)}. Every metric is equal or within tolerance."
        )
    if delta is None:
        return (
            f"{len(comparison.tensors):,} of {comparison.compared_tensors:,} tensors differ at the "
            "end; every metric is equal or within tolerance."
        )
    # Only of the metric that was named: another metric with small numbers may move by hundreds of
    # percent.
    after = tuple(
        metric
        for metric in comparison.metrics
        if metric.metric == delta.metric and metric.step > delta.step
    )
    worst = farthest(after)
    later = ""
    if worst is not None and printed_size(worst) > printed_size(delta) * 1.01:
        later = f"later up to {moved_by(worst)}"
    return f"{delta_words(delta, f'at step {delta.step}', later)}."


def tensor_words(delta: TensorDelta) -> str:
    """Return text such as `state/model/0/head.weight moved by about 50 % of its size`."""
    if delta.distance is None:
        return f"{delta.name} changed by an unknown distance"
    return f"{delta.name} moved by about {percentage(delta.distance)} of its size"


def moved_by(delta: MetricDelta) -> str:
    """Say how far a metric moved: a fraction between 0 and 1 in points, others in percent.

    For the last digits it gives a share such as 1e-07, which is easier to read than 0.0000115 %.
    """
    points = points_words(delta.metric, delta.expected, delta.observed)
    if points or delta.relative is None or delta.relative >= LAST_DIGITS or not delta.relative:
        return points or percentage(delta.relative)
    return f"{delta.relative:.0e} of its value"


def delta_words(delta: MetricDelta, which: str, later: str = "") -> str:
    """Return text such as `Loss at step 7: 1.338 instead of 1.336 (+0.2 %, later up to 3.6 %)`."""
    expected, observed = pair(delta.expected, delta.observed)
    # other metrics keep the spelling of their names
    name = "Loss" if delta.metric == "loss" else delta.metric
    if which == "the last":
        name, which = f"Last {delta.metric}", ""
    how = [later] if later else []
    if delta.relative is not None:
        judged = [] if delta.better is None else ["better" if delta.better else "worse"]
        how = [f"{'-' if _falls(delta) else '+'}{moved_by(delta)}", *judged, *how]
    signed = f" ({', '.join(how)})" if how else ""
    return f"{f'{name} {which}'.rstrip()}: {observed} instead of {expected}{signed}"


def _falls(delta: MetricDelta) -> bool:
    try:
        return float(delta.observed) < float(delta.expected)
    except ValueError:
        return False


def worst_words(comparison: Comparison | None) -> str:
    """Say how far the worst metric is off, as words that continue a sentence."""
    worst = farthest(comparison.metrics if comparison else ())
    if worst is None:
        return ""
    return f": {worst.metric} is off by {moved_by(worst)} at step {worst.step}, at most"


LAST_DIGITS = 1e-5
FEW_ULP = 1_000_000
WHOLE = 10
SHOWN_PATTERNS = 3


def movement_words(moved: Movement) -> str:
    """Describe the worst movement, with both numbers, and whether the weights are equal."""
    weights = "weights equal" if moved.weights_equal else "weights differ"
    if moved.structure:
        weights = f"other metrics, steps or tensors; {weights}"
    if not moved.metric:
        return f"no number moved; {weights}"
    before, after = pair(moved.before, moved.after)
    return f"{moved.where}: {before} → {after}, moved by {_how_far(moved)}; {weights}"


def _how_far(moved: Movement) -> str:
    size = "an unknown share" if moved.relative is None else percentage(moved.relative)
    size = points_words(moved.metric, moved.before, moved.after) or size
    return f"{size} ({_scale(moved)})"


def _scale(moved: Movement) -> str:
    """Return a size as a multiple of the tolerance, or else in units in the last place."""
    if moved.tolerances is not None and math.isfinite(moved.tolerances):
        if moved.tolerances <= 1:
            return "within its tolerance"
        return f"{magnitude_of(moved.tolerances)} times the tolerance"
    if moved.ulp is not None and moved.ulp < FEW_ULP:
        return f"{moved.ulp:,} ULP, no tolerance"
    return "no tolerance"


def magnitude_of(times: float) -> str:
    """Return a factor with two digits, or as a whole number from 10 on."""
    return f"{times:.2g}" if times < WHOLE else f"{times:,.0f}"


def provisional_words(entry: ProvisionalEntry) -> str:
    """Say why an entry is ignored, and whether this run confirms it."""
    whose = "the entry that this pull request includes" if entry.brought else "the baseline's entry"
    again = "reproduces it exactly" if entry.repeated else "does not reproduce it exactly"
    return (
        f"But {whose} is far from its peers, the entries of other environments: "
        f"{entry.far.described}. It is ignored until it is recorded again. This run {again}."
    )


def quarantine_sentence(verdict: Verdict) -> str:
    """Return the sentence about a quarantine, which comes first; empty without one."""
    rule = verdict.quarantine
    if rule is None:
        return ""
    what = f"{', '.join(rule.metrics[:SHOWN_PATTERNS])} of the" if rule.metrics else "the"
    words = f"In quarantine until {rule.until}: {what} baseline ({rule.reason})."
    if verdict.base_run is None:
        words += " It does not apply here: the base commit was not run."
    return words


SHOWN_RUNS = 20
# outcomes of runs that give no result of their commit
WITHOUT_RESULT = frozenset({Outcome.NONDETERMINISTIC, Outcome.ERROR})


def history_row(lines: tuple[HistoryLine, ...], now: str) -> Row | None:
    """Return the latest runs in one row, newest last; `now` is when this verdict was made."""
    if not lines:
        return None
    shown = lines[-SHOWN_RUNS:]
    flakes = sum(line.outcome is Outcome.NONDETERMINISTIC for line in shown)
    words = [
        "".join(map(_icon, shown)),
        _last_move(lines, now),
        _cost(shown),
        f"{flakes} did not repeat" if flakes else "",
    ]
    title = f"Last {count(len(shown), 'run')} on the default branch"
    return Cell(title), Cell(" · ".join(word for word in words if word))


def history_section(lines: tuple[HistoryLine, ...], limits: Limits) -> Section | None:
    """Return all kept runs as a table, newest first."""
    if not lines:
        return None
    headings = ("Judged at", "Commit", "Outcome", "Last value", "Cost of determinism")
    table = table_of(headings, map(_row, reversed(lines)), limits.rows, 4)
    return Section(title=f"On the default branch ({table.total:,})", table=table)


def _row(line: HistoryLine) -> Row:
    value = f"{line.metric} {line.last}" if line.last else ""
    return (
        Cell(line.judged_at),
        Cell(line.commit[:SHORT_COMMIT], code=True),
        Cell(f"{_icon(line)} {line.outcome.value}"),
        Cell(value),
        Cell("" if line.cost_ratio is None else percent(line.cost_ratio)),
    )


def _icon(line: HistoryLine) -> str:
    if line.outcome is Outcome.ERROR:
        return STOPPED
    return GOOD if line.passes else BAD


def _last_move(lines: tuple[HistoryLine, ...], now: str) -> str:
    """Say when the main metric's last value changed between two runs."""
    results = [line for line in lines if line.last and line.outcome not in WITHOUT_RESULT]
    # A change to another metric is not a move.
    same = [line for line in results if line.metric == results[-1].metric]
    if not same:
        return ""
    name = same[-1].metric
    for before, after in zip(same[-2::-1], same[:0:-1], strict=True):
        if before.last != after.last:
            days = (datetime.fromisoformat(now) - datetime.fromisoformat(after.judged_at)).days
            when = f"{count(days, 'day')} ago" if days > 0 else "today"
            return f"{name} last moved {when}, in commit {after.commit[:SHORT_COMMIT]}"
    return f"{name} did not move in {count(len(same), 'run')}"


def _cost(lines: tuple[HistoryLine, ...]) -> str:
    ratios = [line.cost_ratio for line in lines if line.cost_ratio is not None]
    if not ratios:
        return ""
    drawn = f"{sparkline(ratios)} " if len(ratios) > 1 else ""
    return f"cost {drawn}{percent(ratios[-1])}"
