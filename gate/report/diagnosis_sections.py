"""Sections about changed lines, traces, tried settings, and the growth of a difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gate.diagnosis.diagnosis import Growth, GrowthPoint
from gate.evidence.trace import (
    FILLS,
    HowKnown,
    ShownChange,
    TraceFinding,
    TraceRow,
    TriedSetting,
    TriedSettings,
)
from gate.report.layout import Cell, Limits, Row, Section, ShownLines, Table, facts_table, table_of
from gate.settings.variations import Setting
from gate.system.git.changes import ChangedLines
from gate.verdict.verdict import Verdict

MOST_LINES: Final = 6
CAPTIONS: Final = {
    HowKnown.NAMED: "Changed in this pull request:",
    HowKnown.RAISED: "This pull request changes the line that raised:",
    HowKnown.FITS: "The change that fits it:",
    HowKnown.SCHEDULE: "This pull request changes the line that creates the schedule:",
    HowKnown.READ: "The training reads this changed file:",
    HowKnown.READ_AMONG: "The training reads this changed file; other changes are not ruled out:",
    HowKnown.ONLY: "All that this pull request changes:",
    HowKnown.RAN_BEFORE_NAN: "The nearest changed line that ran before it:",
    HowKnown.EITHER: "Each of these changes may be the cause; others are not ruled out:",
    HowKnown.EITHER_OF_ALL: "All that this pull request changes; either may be the cause:",
    HowKnown.RAN: "The nearest changed line that ran before the difference:",
}
NO_TIME: Final = "for lack of time (diagnosis.budget_seconds)"
CANDIDATES: Final = "Changed lines that ran before the difference:"


def change_words(change: ShownChange | None) -> ShownLines | None:
    """Return a caption and at most six changed lines with their signs; the rest is counted."""
    if change is None:
        return None
    lines_each = MOST_LINES // len(change.hunks)
    lines = tuple(line for hunk in change.hunks for line in _hunk(hunk, lines_each))
    return ShownLines(caption=_caption(change), lines=lines)


def _caption(change: ShownChange) -> str:
    return CANDIDATES if change.candidates else CAPTIONS[change.how]


def _hunk(hunk: ChangedLines, most: int) -> Iterator[str]:
    yield f"@@ {hunk.place} @@"
    # Each side gets half of the room, plus what the other side does not need.
    before = hunk.before[: max(most // 2, most - len(hunk.after))]
    after = hunk.after[: most - len(before)]
    yield from (f"-{line}" for line in before)
    yield from (f"+{line}" for line in after)
    left = hunk.gone + hunk.new - len(before) - len(after)
    if left > 0:
        yield f"@@ and {left:,} more line{'' if left == 1 else 's'} @@"


TITLE = "Growth of the difference over the steps"


def growth_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Return the growth's shape in words and some of its numbers, or None with too few of them."""
    growth = verdict.diagnosis.growth if verdict.diagnosis is not None else None
    if growth is None:
        return None
    facts = (
        ("What the numbers say", Cell(_sentence(growth))),
        ("Metric", Cell(growth.metric, code=True)),
        ("Shape", Cell(growth.shape.value)),
        ("Steps that differ", Cell(f"{growth.points_used:,}")),
        *((f"Step {point.step:,}", Cell(_size(point))) for point in growth.points),
    )
    return Section(title=TITLE, table=facts_table(facts, limits.rows), in_comment=False)


def _sentence(growth: Growth) -> str:
    return f"{growth.sentence[:1].upper()}{growth.sentence[1:]}."


def _size(point: GrowthPoint) -> str:
    share = "" if point.relative is None else f", {point.relative:.3g} of the value"
    return f"{point.absolute:.4g}{share}"


SHOWN_LINES: Final = 3


def traced_words(trace: TraceFinding, *, drift: bool) -> str:
    """Return the first answer's words about a trace that found a call, without a full stop.

    For a drift they only name the place; what the operators do is in the section.
    """
    if not drift or not trace.place:
        return f"Traced: {trace.sentence}"
    module = f", in module {trace.module}" if trace.module else ""
    return f"The first operator call that differs is at {trace.place}{module}"


def trace_sections(verdict: Verdict, limits: Limits) -> tuple[Section, ...]:
    """Return what the trace shows and why, then both traces side by side around the point."""
    trace = verdict.diagnosis.trace if verdict.diagnosis is not None else None
    if trace is None:
        return ()
    facts = Section(
        title="Operator trace: where two traced runs diverge",
        table=_facts(trace, limits),
        leading=trace.names_a_call,
    )
    if not trace.rows:
        return (facts,)
    headings = ("First run", "Second run", "Line", "State")
    if trace.changed or trace.changed_later:
        headings = ("Base commit", "Head commit", "Line", "State")
    table = table_of(headings, map(_trace_row, trace.rows), limits.rows)
    return (facts, Section(title="Operator trace: both runs around the point", table=table))


def _facts(trace: TraceFinding, limits: Limits) -> Table:
    step = "" if trace.step is None else str(trace.step)
    facts = (
        ("What it shows", Cell(trace.sentence)),
        ("Claim", Cell(trace.claim.value)),
        ("Operator", Cell(trace.operator, code=True)),
        ("Instead of", Cell(trace.expected_operator, code=True)),
        ("Line", Cell(trace.place, code=True)),
        ("Line of the forward pass", Cell(trace.forward_place, code=True)),
        ("Module", Cell(trace.module, code=True)),
        ("Step and phase", Cell(f"{step} {trace.phase.value}".strip() if trace.phase else "")),
        ("Rank", Cell(str(trace.rank) if trace.rank else "")),
        ("Shapes", Cell(trace.shapes)),
        ("Device", Cell(trace.device)),
        ("Arguments", Cell(trace.arguments, code=True)),
        ("How far apart", Cell(_apart(trace))),
        ("Changed lines that ran before it", Cell(_places(trace, later=False))),
        ("Changed lines not seen to run before it", Cell(_places(trace, later=True))),
        ("What to do", Cell(trace.remedy)),
        *(("Note", Cell(note)) for note in trace.notes),
    )
    return facts_table(facts, limits.rows + SHOWN_LINES)


def _apart(trace: TraceFinding) -> str:
    if trace.absolute is None or trace.relative is None:
        return ""
    return (
        f"up to {trace.absolute:.3g} among sampled values, {trace.relative:.2g} of the largest one"
    )


def _places(trace: TraceFinding, *, later: bool) -> str:
    hunks = trace.changed_later if later else trace.changed
    words = [hunk.place + (" (lines removed behind it)" if hunk.removed else "") for hunk in hunks]
    rest = len(words) - SHOWN_LINES
    return ", ".join(words[:SHOWN_LINES]) + (f" and {rest} more" if rest > 0 else "")


def _trace_row(row: TraceRow) -> Row:
    state = f"here: {row.state}" if row.here else row.state
    return (
        Cell(row.expected, code=True),
        Cell(row.observed, code=True),
        Cell(row.place, code=True),
        Cell(state),
    )


WITH: Final = {
    Setting.RESTORE: "With the overridden settings restored",
    Setting.ONE_THREAD: "With one thread",
    Setting.ONE_WORKER: "With one worker in each pool",
    Setting.NO_LOADER_WORKERS: "Without workers in the DataLoader",
    Setting.TORCH_FILL: "With torch's new memory filled",
    Setting.HEAP_FILL: "With new memory filled with a constant",
    Setting.LAUNCH_BLOCKING: "With each CUDA kernel awaited",
    Setting.FIXED_COLLECTIVES: "With sums over ranks added in a fixed order",
}
# settings whose words are what a user would write, so no name in brackets follows
SAID: Final = (Setting.ONE_WORKER, Setting.HEAP_FILL, Setting.FIXED_COLLECTIVES)
# a smaller slowdown cannot be told from noise in a few runs
MEASURABLE: Final = 0.1


def tried_sentence(verdict: Verdict) -> str:
    """Return the comment's sentences about tried settings; empty if a known line says more."""
    diagnosis = verdict.diagnosis
    if diagnosis is None or diagnosis.tried is None or verdict.passes:
        return ""
    answered = bool(diagnosis.likely) and diagnosis.tried.helping is None
    return "" if answered else tried_words(diagnosis.tried)


def tried_words(tried: TriedSettings) -> str:
    """Say which setting makes the runs agree and at what cost, or that none does."""
    helping = tried.helping
    if helping is None:
        return f"{_none(tried)}{_untried(tried)}"
    runs = f"{helping.runs} runs of {helping.runs}"
    said = f"{_with(helping)} the runs agree ({runs}){_price(helping)}."
    if helping.follows:
        said += " The result changes with the fill: memory is read before it is written."
    elif helping.setting in FILLS:
        said += " The result did not change with the fill, so nothing points to unwritten memory."
    if helping.setting is Setting.ONE_THREAD:
        said += " The script is reproducible only with one thread."
    elif helping.setting is Setting.ONE_WORKER:
        said += " It is the order in which workers finish."
    return said + _untried(tried)


def tried_sections(verdict: Verdict, limits: Limits) -> tuple[Section, ...]:
    """Return each setting that was tried, in order, with what its runs showed."""
    tried = verdict.diagnosis.tried if verdict.diagnosis is not None else None
    if tried is None:
        return ()
    rows = (
        *(_trial_row(tried, trial) for trial in tried.tried),
        *map(_row_of_untried, tried.untried),
    )
    table = table_of(("Setting", "Runs", "They agree", "Time", "Note"), rows, limits.rows)
    title = "Settings tried, one at a time"
    return (Section(title=title, table=table, leading=tried.helping is not None),)


def _with(trial: TriedSetting) -> str:
    words = WITH.get(trial.setting, "With")
    if trial.setting in SAID:
        return words
    return f"{words} ({trial.written})" if trial.setting in WITH else f"{words} {trial.written}"


def _none(tried: TriedSettings) -> str:
    compared = [trial for trial in tried.tried if trial.agree is not None]
    if not compared:
        late = bool(tried.untried) and not tried.tried
        return f"No setting was tried, {NO_TIME}." if late else "No setting could be tried."
    # A few runs may agree by chance. Such settings are only listed in the table.
    helps = any(trial.helps for trial in compared)
    sure = " for certain" if helps else ""
    if len(compared) == 1:
        written = compared[0].written
        if helps:
            return f"With {written} the runs agree, but so few may agree by chance."
        return f"With {written} the runs still differ."
    return f"None of the {len(compared)} settings tried makes the runs agree{sure}."


def _untried(tried: TriedSettings) -> str:
    left = len(tried.untried)
    if not left or not tried.tried:
        return ""
    settings = f"{left} more settings were" if left > 1 else "1 more setting was"
    return f" {settings} not tried, {NO_TIME}."


def _price(trial: TriedSetting) -> str:
    if trial.slower is None:
        return "; its cost was not measured"
    if trial.slower < 1 + MEASURABLE:
        return ", at no measurable cost"
    return f"; a run takes {trial.slower:.2g} times as long"


def _trial_row(tried: TriedSettings, trial: TriedSetting) -> Row:
    answer = {True: "yes", False: "no", None: "not known"}[trial.agree]
    time = "" if trial.slower is None else f"{trial.slower:.2f} times"
    return (
        Cell(trial.written, code=True),
        Cell(str(trial.runs) if trial.runs else ""),
        Cell(answer),
        Cell(time),
        Cell(_note(tried, trial)),
    )


def _note(tried: TriedSettings, trial: TriedSetting) -> str:
    if trial.problem:
        return trial.problem
    if trial.helps and not tried.is_certain(trial):
        pairs, differing = tried.without(trial)
        return f"this may be chance: without it, {differing} of {pairs} pairs differ"
    if trial.helps and trial.setting in FILLS:
        return (
            "the result follows the fill"
            if trial.follows
            else "the result does not change with the fill"
        )
    return ""


def _row_of_untried(written: str) -> Row:
    return (
        Cell(written, code=True),
        Cell(""),
        Cell("not tried"),
        Cell(""),
        Cell("no time left of diagnosis.budget_seconds"),
    )
