"""Which setting would have helped: a sentence for the comment, a table for the page."""

from __future__ import annotations

from typing import Final

from gate.evidence.tried import FILLS, TriedSetting, TriedSettings
from gate.report.layout import Cell, Limits, Row, Section, table_of
from gate.settings.trials import Setting
from gate.verdict.verdict import Verdict

WITH: Final = {
    Setting.RESTORE: "With the overridden settings restored",
    Setting.ONE_THREAD: "With one thread",
    Setting.ONE_WORKER: "With one worker in each pool",
    Setting.NO_LOADER_WORKERS: "Without workers in the DataLoader",
    Setting.TORCH_FILL: "With torch's new memory filled",
    Setting.HEAP_FILL: "With new memory filled with a constant",
    Setting.LAUNCH_BLOCKING: "With each CUDA kernel awaited",
}
# the words themselves are what a user would write
SAID: Final = (Setting.ONE_WORKER, Setting.HEAP_FILL)
# below it two times of a few runs are not told apart
MEASURABLE: Final = 0.1


def tried_sentence(verdict: Verdict) -> str:
    """What the comment says of it; nothing where none was tried, or none beats a known line."""
    diagnosis = verdict.diagnosis
    if diagnosis is None or diagnosis.tried is None or verdict.passes:
        return ""
    answered = bool(diagnosis.likely) and diagnosis.tried.helping is None
    return "" if answered else tried_words(diagnosis.tried)


def tried_words(tried: TriedSettings) -> str:
    """The answer in whole sentences: the setting and its price, or that none of them helps."""
    one = tried.helping
    if one is None:
        return f"{_none(tried)}{_untried(tried)}"
    runs = f"{one.runs} runs of {one.runs}"
    said = f"{_with(one)} the runs agree ({runs}){_price(one)}."
    if one.follows:
        said += " The result changes with what memory is filled with: memory is read unwritten."
    elif one.setting in FILLS:
        said += (
            " The result was not seen to change with the fill, so unwritten memory is not shown."
        )
    if one.setting is Setting.ONE_THREAD:
        said += " The script reproduces only under one thread."
    elif one.setting is Setting.ONE_WORKER:
        said += " It is the order in which workers finish."
    return said + _untried(tried)


def tried_sections(verdict: Verdict, limits: Limits) -> tuple[Section, ...]:
    """Each setting that was moved, in order, and what its runs showed."""
    tried = verdict.diagnosis.tried if verdict.diagnosis is not None else None
    if tried is None:
        return ()
    rows = (*(_trial_row(tried, one) for one in tried.tried), *map(_row_of_untried, tried.untried))
    table = table_of(("Setting", "Runs", "They agree", "Time", "Note"), rows, limits.rows)
    title = "Settings tried, one at a time"
    return (Section(title=title, table=table, leading=tried.helping is not None),)


def _with(one: TriedSetting) -> str:
    words = WITH.get(one.setting, "With")
    if one.setting in SAID:
        return words
    return f"{words} ({one.written})" if one.setting in WITH else f"{words} {one.written}"


def _none(tried: TriedSettings) -> str:
    compared = [one for one in tried.tried if one.agree is not None]
    if not compared:
        return "No setting could be tried."
    # chance may make a few runs agree: that is shown in the table, and no lead
    sure = " for certain" if any(one.helps for one in compared) else ""
    if len(compared) == 1:
        return f"Moving {compared[0].written} alone does not make the runs agree{sure}."
    return f"None of the {len(compared)} settings tried makes the runs agree{sure}."


def _untried(tried: TriedSettings) -> str:
    left = len(tried.untried)
    if not left:
        return ""
    settings = f"{left} more settings were" if left > 1 else "1 more setting was"
    return f" {settings} not tried, for lack of time (diagnosis.budget_seconds)."


def _price(one: TriedSetting) -> str:
    if one.slower is None:
        return "; its price was not measured"
    if one.slower < 1 + MEASURABLE:
        return ", at no measurable price"
    return f"; a run takes {one.slower:.2g} times as long"


def _trial_row(tried: TriedSettings, one: TriedSetting) -> Row:
    answer = {True: "yes", False: "no", None: "not known"}[one.agree]
    time = "" if one.slower is None else f"{one.slower:.2f} times"
    return (
        Cell(one.written, code=True),
        Cell(str(one.runs) if one.runs else ""),
        Cell(answer),
        Cell(time),
        Cell(_note(tried, one)),
    )


def _note(tried: TriedSettings, one: TriedSetting) -> str:
    if one.problem:
        return one.problem
    if one.helps and not tried.is_certain(one):
        pairs, differing = tried.without(one)
        return f"chance may look like that: without it, {differing} of {pairs} pairs differ"
    if one.helps and one.setting in FILLS:
        return "the result follows the fill" if one.follows else "the result does not show the fill"
    return ""


def _row_of_untried(written: str) -> Row:
    return (
        Cell(written, code=True),
        Cell(""),
        Cell("not tried"),
        Cell(""),
        Cell("no time left of diagnosis.budget_seconds"),
    )
