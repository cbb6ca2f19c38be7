"""A package that was run again, for a terminal; the caller prints it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from gate.comparison.differences import OptimizerSettingChange
from gate.comparison.spread_record import MetricSpread, SpreadPlace
from gate.data.data_words import move_sentence
from gate.pipelines.reproduction import CodeSource, Reproduction, ReproductionOutcome
from gate.report.escape import clean
from gate.report.layout import Cell, Limits, Section, table_of
from gate.report.sentence import Sentence
from gate.report.tables import section_view
from gate.report.wording import count, duration, share, short, worst_first

LIMITS: Final = Limits(deltas=5, rows=24)
SHOWN_PARTS: Final = 4
HEADLINES: Final = {
    ReproductionOutcome.REPRODUCED: "reproduced, bit for bit",
    ReproductionOutcome.WITHIN_TOLERANCE: "reproduced within the tolerances of its own settings",
    ReproductionOutcome.WITHIN_SPREAD: "reproduced within the spread",
    ReproductionOutcome.DIFFERS: "not reproduced: the result differs",
    ReproductionOutcome.NOT_REPEATABLE: "not reproduced: the runs here differ from each other",
}
PLACES: Final = {
    SpreadPlace.SEEDS_THEN: "of the package's seeds",
    SpreadPlace.RUNS_THEN: "of the package's runs",
    SpreadPlace.SEEDS_HERE: "of the seeds trained here",
}
FIRST: Final = "First difference, with the package as the baseline: "
LABEL_WIDTH: Final = 13


def reproduction_headline(found: Reproduction) -> str:
    """The answer in one line."""
    words = HEADLINES[found.outcome]
    if found.outcome is ReproductionOutcome.WITHIN_SPREAD and found.spread:
        words += f" {PLACES[found.spread[0].place]}"
    return words


def reproduction_view(found: Reproduction) -> RenderableType:
    """What happened, what was checked, what differs worst first, and what to do now."""
    good = found.outcome.good
    mark, style = ("✅", "bold green") if good else ("❌", "bold red")
    parts: list[RenderableType] = [Text(f"{mark} {reproduction_headline(found)}", style=style)]
    parts += [
        Sentence(clean(text), lead=f"  {label:<{LABEL_WIDTH}}", indent=LABEL_WIDTH + 2)
        for label, text in _facts(found)
    ]
    if found.diagnosis is not None:
        cause = f"{found.diagnosis.cause}."
        parts += [Text(""), Sentence(clean(cause), lead=FIRST, lead_style="bold")]
    parts += [section_view(section) for section in (*_numbers(found), *_spread(found))]
    following = next_words(found)
    if following:
        parts += [Text(""), Sentence(clean(following))]
    return Group(*parts)


def _facts(found: Reproduction) -> Iterator[tuple[str, str]]:
    yield "package", f"commit {short(found.commit)}, made {found.made_at}"
    yield "seal", _seal(found)
    yield "code", _code(found)
    changed = _changed(found)
    if changed:
        yield "changed", changed
    yield "environment", environment_words(found)
    if found.data_moved:
        yield "data", "; ".join(move_sentence(move) for move in found.data_moved)
    yield "result", _result(found)
    settings = ", ".join(map(_setting, found.comparison.optimizer_settings[:SHOWN_PARTS]))
    if settings:
        yield "optimizer", settings
    yield "time", f"{duration(found.wall_seconds)} to reproduce, {found.runs} runs"


def _seal(found: Reproduction) -> str:
    if found.seal.identity:
        return f"holds, made by {found.seal.identity}"
    if found.seal.key_id:
        return f"holds, key {short(found.seal.key_id)}"
    return "not checked (--unsealed)"


def _code(found: Reproduction) -> str:
    if found.code:
        same = "the package's files" if found.same_code else "other files than the package's"
        return f"{found.code[:12]}, {same}"
    where = "the package itself" if found.source is CodeSource.PACKAGE else "a clone"
    return f"the package's commit, from {where}"


def environment_words(found: Reproduction) -> str:
    """For example `12 of 13 parts as then: driver 550.54 → 560.35`."""
    moved = found.moved
    parts = count(len(found.environment), "part")
    words = f"{len(found.environment) - len(moved)} of {parts} as then"
    if not moved:
        return words
    named = [
        f"{part.name} {', '.join(part.details[:SHOWN_PARTS]) or f'{part.then} → {part.here}'}"
        for part in moved[:SHOWN_PARTS]
    ]
    rest = len(moved) - len(named)
    return f"{words}: {'; '.join(named)}" + (f"; and {rest} more" if rest else "")


def _changed(found: Reproduction) -> str:
    """The lines or files that are not the package's."""
    places = [one.place for one in found.changed_lines] or list(found.changed_files)
    rest = len(places) - SHOWN_PARTS
    return ", ".join(places[:SHOWN_PARTS]) + (f", and {rest} more" if rest > 0 else "")


def _setting(change: OptimizerSettingChange) -> str:
    return f"{change.name} {change.before or 'none'} → {change.after or 'none'}"


def _result(found: Reproduction) -> str:
    compared = found.comparison
    points, tensors = compared.compared_points, compared.compared_tensors
    return (
        f"{points - len(compared.metrics):,} of {count(points, 'metric value')} and "
        f"{max(0, tensors - len(compared.tensors)):,} of {count(tensors, 'tensor')} equal, bit for "
        "bit"
    )


def _numbers(found: Reproduction) -> tuple[Section, ...]:
    """The numbers that differ most, with as many digits as tell them apart at a glance."""
    repeats = found.outcome is ReproductionOutcome.NOT_REPEATABLE
    compared = found.repeat if repeats else found.comparison
    if not compared.metrics:
        return ()
    rows = (
        (
            Cell(delta.metric, code=True),
            Cell(str(delta.step)),
            Cell(_digits(delta.expected)),
            Cell(_digits(delta.observed)),
            Cell(share(delta.relative) if delta.relative is not None else ""),
        )
        for delta in worst_first(compared.metrics)
    )
    headings = ("Metric", "Step", compared.expected, compared.observed, "Relative")
    table = table_of(headings, rows, LIMITS.deltas, 1, 2, 3, 4)
    title = f"Metric values that differ, worst first ({table.total:,})"
    return (Section(title=title, table=table, leading=True),)


def _digits(decimal: str) -> str:
    return f"{float(decimal):.9g}"


def _spread(found: Reproduction) -> tuple[Section, ...]:
    if not found.spread:
        return ()
    rows = (
        (
            Cell(one.metric, code=True),
            Cell(f"{one.value:.6g}"),
            Cell(f"{one.mean:.6g} ± {one.deviation:.2g} ({one.values})"),
            Cell(_interval(one)),
            Cell("yes" if one.inside else "no"),
        )
        for one in sorted(found.spread, key=lambda one: one.inside)
    )
    side = "then" if found.spread[0].place is SpreadPlace.SEEDS_HERE else "here"
    headings = ("Metric", f"Last value {side}", "Mean ± s (n)", "95 % interval", "Inside")
    table = table_of(headings, rows, LIMITS.rows, 1, 2, 3)
    title = f"Last values against the spread {PLACES[found.spread[0].place]}"
    return (Section(title=title, table=table, leading=True),)


def _interval(one: MetricSpread) -> str:
    return f"{one.low:.6g} to {one.high:.6g}"


def next_words(found: Reproduction) -> str:
    """What it means, and what to do now; empty where it is reproduced."""
    if found.outcome is ReproductionOutcome.NOT_REPEATABLE:
        return "Nothing can be said about the package: first fix what differs from run to run."
    if found.outcome is not ReproductionOutcome.DIFFERS:
        return ""
    if not found.same_code:
        return "Other code was run than the package holds, so the difference may be the code's."
    if not found.moved:
        return (
            "Code and environment are as then, and the bits still differ: look at what the "
            "environment does not name, such as data that is not declared, or faulty hardware."
        )
    if not found.spread:
        return (
            "The environment moved, so the bits may differ. To see whether the numbers are "
            "statistically the same, train several seeds here: add `--seeds 5`."
        )
    return "The environment moved, and the difference is larger than the spread explains."
