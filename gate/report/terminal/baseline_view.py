"""The entries of a baseline, and one that is proposed, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gate.records.baseline import Baseline, BaselineEntry
from gate.report.escape import clean, clean_name
from gate.report.measured.entry_words import far_words, movement_words, repeat_words
from gate.report.wording import short

COLUMNS = ("Environment", "Commit", "Recorded", "Last values", "Reason")
MAX_METRICS = 4
MAX_PARTS = 12
NAMED_PARTS = ("device", "cpu", "torch")
NONE = "none"


def baseline_view(baseline: Baseline) -> RenderableType:
    """One row for each entry; text of the file is never taken as markup."""
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    for heading in COLUMNS:
        table.add_column(heading, overflow="fold")
    for entry in baseline.entries:
        table.add_row(*(Text(text) for text in _row(entry)))
    return table


def _row(entry: BaselineEntry) -> tuple[str, ...]:
    where = _named(entry)
    last = [
        f"{clean_name(series.name)} {series.points[-1].decimal}"
        for series in entry.metrics[:MAX_METRICS]
        if series.points
    ]
    return (
        clean(where),
        clean(entry.commit[:12]),
        clean(entry.recorded_at[:10]),
        "\n".join(last),
        "\n".join((clean(entry.reason), *_history(entry))),
    )


def _history(entry: BaselineEntry) -> Iterator[str]:
    """What an entry says of its own way into the file, a line each."""
    yield repeat_words(entry.equal_runs, entry.missed_faults, entry.recordings)
    if entry.provisional and entry.far is not None:
        yield f"judges nothing yet, far from its siblings: {clean(far_words(entry.far))}"
    if entry.moved is not None:
        yield f"moved {clean(movement_words(entry.moved))}{_after(entry.moved.outcome)}"
    came = (("by", entry.accepted_by), ("from", entry.run_url))
    yield from (f"{word} {clean(text)}" for word, text in came if text)
    if entry.package_sha256:
        yield f"from package {short(clean(entry.package_sha256))}"


def _after(outcome: str) -> str:
    return f" (the gate said {clean_name(outcome)})" if outcome else ""


def _named(entry: BaselineEntry) -> str:
    return ", ".join(entry.environment.parts.get(name, NONE) for name in NAMED_PARTS)


def proposal_view(
    proposed: BaselineEntry, known: BaselineEntry | None, head: str
) -> RenderableType:
    """What a proposed entry would change, beside the nearest one that there is now.

    All of it is untrusted text: cut, stripped of what cannot be seen, never taken as markup.
    """
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    for heading in ("", "Now", "Proposed"):
        table.add_column(heading, overflow="fold")
    for what, now, new in _changes(proposed, known, head):
        table.add_row(Text(what), Text(now), Text(new))
    return table


def _changes(
    proposed: BaselineEntry, known: BaselineEntry | None, head: str
) -> Iterator[tuple[str, str, str]]:
    other = "" if proposed.commit == head else f" (checked out is {head[:12]})"
    yield "Commit", clean(known.commit[:12]) if known else NONE, clean(proposed.commit[:12]) + other
    yield "Recorded", clean(known.recorded_at[:10]) if known else "", clean(proposed.recorded_at)
    yield from _environment_changes(proposed, known)
    before = _last_values(known) if known else {}
    after = _last_values(proposed)
    for name in [*after, *(before.keys() - after.keys())][:MAX_METRICS]:
        yield f"Last {clean_name(name)}", before.get(name, NONE), after.get(name, NONE)
    yield "Steps", f"{len(known.steps):,}" if known else "", f"{len(proposed.steps):,}"
    yield (
        "Checkpoint",
        short(known.checkpoint.root) if known else "",
        short(proposed.checkpoint.root),
    )
    yield "Rests on", _rests_on(known) if known else "", _rests_on(proposed)
    if proposed.moved is not None:
        yield "Moved", "", clean(movement_words(proposed.moved)) + _after(proposed.moved.outcome)
    if proposed.far is not None:
        state = "judges nothing until it is recorded again" if proposed.provisional else "confirmed"
        yield "Far from siblings", "", f"{clean(far_words(proposed.far))}; {state}"
    if proposed.run_url:
        yield "Run", "", clean(proposed.run_url)
    if known:
        yield "Reason", clean(known.reason), ""


def _rests_on(entry: BaselineEntry) -> str:
    return repeat_words(entry.equal_runs, entry.missed_faults, entry.recordings)


def _environment_changes(
    proposed: BaselineEntry, known: BaselineEntry | None
) -> Iterator[tuple[str, str, str]]:
    moved = known.environment.moved(proposed.environment) if known else ()
    if known is None or not moved:
        yield "Environment", _clean_named(known) if known else NONE, _clean_named(proposed)
        return
    for name in moved[:MAX_PARTS]:
        values = (entry.environment.part(name) for entry in (known, proposed))
        now, new = (clean_name(value) for value in values)
        yield clean_name(name), now, new
    if len(moved) > MAX_PARTS:
        yield "", "", f"and {len(moved) - MAX_PARTS} more parts"


def _clean_named(entry: BaselineEntry) -> str:
    return clean(_named(entry))


def _last_values(entry: BaselineEntry) -> dict[str, str]:
    return {
        series.name: clean_name(series.points[-1].decimal)
        for series in entry.metrics
        if series.points
    }
