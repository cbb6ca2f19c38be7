"""Throughput and run-time variance for a reader: a line, and a table of every kind of run."""

from __future__ import annotations

from gate.comparison.measured_performance import Performance
from gate.report.escape import NOTHING
from gate.report.layout import Cell, Limits, Row, Section, table_of
from gate.report.wording import duration, share
from gate.training.runs import Commit, RunMode

HEADINGS = (
    "Runs", "Count", "Steps/s", "Samples/s", "Step, mean", "Deviation over steps",
    "Deviation between runs",
)  # fmt: skip


def rate(per_second: float | None) -> str:
    """How many a second, three digits at least; nothing where it is not known."""
    if per_second is None:
        return ""
    return f"{per_second:,.0f}" if per_second >= 1000 else f"{per_second:.3g}"  # noqa: PLR2004 - three digits


def deviation(seconds: float | None, variation: float | None) -> str:
    """A standard deviation with its part of the mean: `0.31 ms (2.5 %)`."""
    if seconds is None or variation is None:
        return ""
    return f"{duration(seconds)} ({share(variation)})"


def performance_words(kinds: tuple[Performance, ...]) -> str:
    """Steps and samples a second and how they vary, base commit beside this one, in one line."""
    parts = [words for mode in (RunMode.STRICT, RunMode.DEFAULT) if (words := _mode(kinds, mode))]
    return "; ".join(parts)


def _mode(kinds: tuple[Performance, ...], mode: RunMode) -> str:
    of_mode = {kind.commit: kind for kind in kinds if kind.mode is mode}
    head, base = of_mode.get(Commit.HEAD), of_mode.get(Commit.BASE)
    if head is None or head.steps_per_second is None:
        return ""
    words = f"{mode.value} {rate(head.steps_per_second)} steps/s"
    if head.samples_per_second is not None:
        words += f", {rate(head.samples_per_second)} samples/s"
    beside = [] if head.step_variation is None else [f"varies by {share(head.step_variation)}"]
    if base is not None and base.steps_per_second is not None:
        beside.append(f"base commit {rate(base.steps_per_second)} steps/s")
    return f"{words} ({'; '.join(beside)})" if beside else words


def performance_section(kinds: tuple[Performance, ...], limits: Limits) -> Section | None:
    """One row for each kind of run, base beside head; nothing of it is judged."""
    if not kinds:
        return None
    table = table_of(HEADINGS, map(_row, kinds), limits.rows, *range(1, len(HEADINGS)))
    title = "Throughput and run-time variance, not judged"
    return Section(title=title, table=table, in_comment=False)


def _row(kind: Performance) -> Row:
    texts = (
        f"{kind.runs}",
        rate(kind.steps_per_second),
        rate(kind.samples_per_second),
        duration(kind.step_seconds),
        deviation(kind.step_deviation_seconds, kind.step_variation),
        deviation(kind.run_deviation_seconds, kind.run_variation),
    )
    name = f"{kind.kind}: {kind.reason}" if kind.reason else kind.kind
    return (Cell(name), *(Cell(text or NOTHING) for text in texts))
