"""Declared data in a report: what there was, what moved, and what that says of the change."""

from __future__ import annotations

from gate.data.data_sets import DataSet, DataStatistics, UnrepeatedData
from gate.data.data_words import move_sentence
from gate.report.escape import NOTHING
from gate.report.layout import Cell, Limits, Row, Section, table_of
from gate.report.wording import BAD, GOOD, NEUTRAL, WATCH, count, short
from gate.verdict.verdict import Answer, Verdict

MAX_SETS_NAMED = 3
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
THOUSAND = 1000


def data_drift_words(verdict: Verdict, numbers: str) -> str:
    """What moved, and the first numbers that did so with it, which are handed in."""
    whose = "This change brings other data" if verdict.data_brought else "The declared data moved"
    base = ""
    if _base_agrees(verdict):
        base = " The base commit, run here with this data, gives the result of this commit."
    moved = _moved(verdict)
    return f"{whose}: {moved}. {numbers}{base}"


def data_change_words(verdict: Verdict) -> str:
    """Whether it is the change."""
    if verdict.data_brought:
        return "Yes. It names other data than the base commit; its code may move the result too."
    if verdict.nothing_moved:
        return "No. It has the very files that the baseline was recorded from."
    if _base_agrees(verdict):
        return "No. The base commit gives the same result with this data."
    if verdict.base_run is not None and not verdict.answers.base_repeat.good:
        return "Not known. Two runs of the base commit differ on this machine."
    return (
        "Not known. Every commit trains on this data now, and the base commit was not run here: "
        "the change could be a cause too."
    )


def unrepeated_words(found: UnrepeatedData) -> str:
    """What the preprocessing did."""
    where = f", first at {found.where}" if found.where else ""
    return (
        f"The preprocessing does not repeat: two runs of {found.command} wrote different data: "
        f"{move_sentence(found.move)}{where}. The trainings were given what the second run wrote."
    )


def _base_agrees(verdict: Verdict) -> bool:
    base = verdict.answers.base_run in {Answer.EQUAL, Answer.INSIDE, Answer.REFUSED}
    return base and verdict.answers.base_repeat.good and not verdict.data_brought


def data_rows(verdict: Verdict) -> tuple[Row, ...]:
    """The row of the table of answers; none where no data is declared."""
    words = _answer(verdict)
    return ((Cell("Declared data"), Cell(words)),) if words else ()


def _answer(verdict: Verdict) -> str:
    if verdict.unrepeated is not None:
        return f"{BAD} the preprocessing does not repeat: {move_sentence(verdict.unrepeated.move)}"
    if verdict.data_moved:
        return f"{WATCH} {_moved(verdict)}"
    if not verdict.data:
        return ""
    sets = [_counted(one) for one in verdict.data[:MAX_SETS_NAMED]]
    rest = len(verdict.data) - MAX_SETS_NAMED
    more = f" and {count(rest, 'more data set')}" if rest > 0 else ""
    # an entry of other settings was recorded with data that is nobody's yardstick here
    compared = verdict.baseline is not None and verdict.baseline_facts is not None
    known = f"{GOOD} as recorded" if compared else f"{NEUTRAL} not compared"
    return f"{known}: {', '.join(sets)}{more}"


def _moved(verdict: Verdict) -> str:
    named = [move_sentence(move) for move in verdict.data_moved[:MAX_SETS_NAMED]]
    rest = len(verdict.data_moved) - MAX_SETS_NAMED
    more = f"; and {count(rest, 'more data set')}" if rest > 0 else ""
    return "; ".join(named) + more


def _counted(one: DataSet) -> str:
    return f"{one.name} ({count(one.files, 'file')}, {size_words(one.size_bytes)})"


def size_words(size_bytes: int) -> str:
    """A number of bytes with three digits, in decimal units: `2.15 GB`."""
    size, unit = float(size_bytes), 0
    while size >= THOUSAND and unit < len(UNITS) - 1:
        size, unit = size / THOUSAND, unit + 1
    return f"{size_bytes} B" if unit == 0 else f"{size:.3g} {UNITS[unit]}"


def data_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Every data set, where it came from and what it held."""
    if not verdict.data:
        return None
    rows = (
        (
            Cell(one.name, code=True),
            Cell(one.origin or NOTHING),
            Cell(f"{one.files:,}"),
            Cell(size_words(one.size_bytes)),
            Cell(short(one.sha256), code=True),
            Cell(_verified(one)),
            Cell("; ".join(map(_statistic, one.statistics)) or NOTHING),
        )
        for one in verdict.data
    )
    headings = ("Data set", "From", "Files", "Size", "SHA-256", "Read", "Statistics")
    table = table_of(headings, rows, limits.rows)
    return Section(title=f"Declared data ({table.total:,})", table=table)


def _verified(one: DataSet) -> str:
    return {"full": "every byte", "cached": "every byte, or known files", "sample": "a sample"}[
        one.verify.value
    ]


def _statistic(one: DataStatistics) -> str:
    name = f"{one.name}: " if one.name else ""
    words = [count(one.rows, "row")]
    if one.mean is not None:
        words.append(f"mean {one.mean:.6g}")
    if one.deviation is not None:
        words.append(f"deviation {one.deviation:.6g}")
    if one.nan_share:
        words.append(f"NaN {one.nan_share * 100:.3g} %")
    if one.classes:
        words.append(f"{len(one.classes):,} classes")
    return name + ", ".join(words)
