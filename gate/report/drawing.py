"""Draw the main metric of both sides as lines of blocks, one below the other on one scale."""

from __future__ import annotations

from gate.comparison.differences import BASELINE_SIDE, Comparison
from gate.report.escape import clean_name
from gate.report.layout import bucket_of, sparklines
from gate.report.wording import SHORT_NAME, THIS_CHANGE, pair
from gate.verdict.verdict import Outcome, SeriesSummary, Verdict

# with its label and its last value, a line fits on the screen of a telephone
BLOCKS_WIDTH = 26
BASE_COMMIT = "base commit"


def drawing(verdict: Verdict) -> tuple[str, ...]:
    """Return a title, a line for each side, and a mark below the first step that differs.

    If both sides are equal, or only one is known, there is one line. Empty without a metric.
    """
    series = verdict.main_series
    if series is None or not series.values:
        return ()
    comparison, own, other = _sides(verdict)
    compared = (
        comparison is not None
        and comparison.something_compared
        and all(fault.metric != series.name for fault in comparison.series)
    )
    name = clean_name(series.name, SHORT_NAME)
    title = f"{name}, steps {series.steps[0]:,} to {series.steps[-1]:,}"
    expected = _expected(series, comparison, other) if compared and comparison else None
    if expected is None:
        return title, f"{own}  {sparklines((series.values,), BLOCKS_WIDTH)[0]} {_last(series)}"
    values, last, first = expected
    if first is None:
        line = sparklines((series.values,), BLOCKS_WIDTH)[0]
        return f"{title}: {own} = {other}", f"{line} {_last(series)}"
    width = max(len(own), len(other)) + 2
    blocks = sparklines((values, series.values), BLOCKS_WIDTH)
    ends = (_shown(end) for end in pair(last, series.last_decimal))
    sides = zip((other, own), blocks, ends, strict=True)
    lines = [f"{name:{width}}{line} {end}".rstrip() for name, line, end in sides]
    # Runs of one commit keep their order. A baseline goes above what is compared with it.
    lines = lines if own == THIS_CHANGE else lines[::-1]
    where = width + bucket_of(series.steps.index(first), len(series.steps), BLOCKS_WIDTH)
    mark = f"first difference: step {first:,}"
    # The text goes left of its sign if there is room, so that the line gets no longer than a
    # curve's.
    below = f"{f'{mark} ▲':>{where + 1}}" if where > len(mark) else f"{'':{where}}▲ {mark}"
    return title, *lines, below


def _sides(verdict: Verdict) -> tuple[Comparison | None, str, str]:
    """Return the comparison that decided, and the names of this side and of the other."""
    repeat = verdict.repeat
    if repeat is not None and repeat.differs:
        names = clean_name(repeat.expected, SHORT_NAME), clean_name(repeat.observed, SHORT_NAME)
        return repeat, names[0], names[1]
    if verdict.outcome is Outcome.NO_BASELINE:
        return None, THIS_CHANGE, ""
    base, baseline = verdict.base_run, verdict.baseline
    # A base commit that agrees shows nothing; then the difference is with the baseline.
    if base is not None and (base.differs or baseline is None or not baseline.differs):
        return base, THIS_CHANGE, BASE_COMMIT
    return baseline, THIS_CHANGE, BASELINE_SIDE


def _expected(
    series: SeriesSummary, comparison: Comparison, other: str
) -> tuple[tuple[float | None, ...], str, int | None] | None:
    """Return the other side's values, its last value in decimals, and the first differing step.

    A comparison lists every number that differs, so all others equal this side's.
    """
    deltas = {delta.step: delta for delta in comparison.metrics if delta.metric == series.name}
    of_repeat = clean_name(comparison.observed, SHORT_NAME) == other
    numbers = {
        step: delta.observed if of_repeat else delta.expected for step, delta in deltas.items()
    }
    if not deltas:
        return series.values, series.last_decimal, None
    known = zip(series.steps, series.values, strict=True)
    values = tuple(_number(numbers[step]) if step in numbers else value for step, value in known)
    first = min(deltas.keys() & set(series.steps), default=None)
    return values, numbers.get(series.steps[-1], series.last_decimal), first


def _number(decimal: str) -> float | None:
    try:
        return float(decimal)
    except ValueError:
        return None


def _shown(decimal: str) -> str:
    """Return the text if it is a number: a training may have written anything else."""
    return decimal if _number(decimal) is not None else ""


def _last(series: SeriesSummary) -> str:
    last = series.values[-1]
    return "" if last is None else f"{last:.4g}"
