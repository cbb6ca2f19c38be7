"""The entries of a baseline, and one that is proposed, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gate.baseline.entry import BaselineEntry
from gate.baseline.entry_history import ShownBaseline, ShownEntry
from gate.checkpoint.digest import captured_digest
from gate.report.escape import clean, clean_name
from gate.report.measured_entry_words import movement_words
from gate.report.wording import repeat_words, short

COLUMNS = ("Environment", "Recorded", "Last values", "Reason")
COMMIT_COLUMNS = ("Changed", "Commit", "Author", "Reason")
MAX_METRICS = 4
VALUES_WIDTH = 18
MAX_PARTS = 12
NAMED_PARTS = ("device", "cpu", "torch")
NONE = "none"


def baseline_view(baseline: ShownBaseline) -> RenderableType:
    """One row for each entry, then the commits of their files; no text is taken as markup."""
    entries = _table(COLUMNS, (_row(shown) for shown in baseline.entries))
    # a metric's name in one line, as far as 80 columns allow
    entries.columns[2].min_width = VALUES_WIDTH
    return Group(
        entries,
        *(part for shown in baseline.entries for part in _history(shown)),
    )


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    for heading in columns:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for text in row))
    return table


def _row(shown: ShownEntry) -> tuple[str, ...]:
    entry = shown.entry
    last = [
        # six digits: a table of 80 columns has no room for all, and decides nothing
        f"{clean_name(series.name)} {series.points[-1].value:.6g}"
        for series in entry.metrics[:MAX_METRICS]
        if series.points
    ]
    age = "today" if shown.age_days == 0 else f"{shown.age_days:,} d ago"
    when = [clean(entry.recorded_at[:10]), f"{age}, stale" if shown.stale else age]
    return (
        clean(_words(entry)),
        "\n".join((*when, clean(entry.commit[:12]))),
        "\n".join(last),
        "\n".join((clean(entry.reason), *_origin(entry))),
    )


def _origin(entry: BaselineEntry) -> Iterator[str]:
    """What an entry says of its own way into the file, a line each."""
    yield repeat_words(entry.equal_runs, entry.missed_faults, entry.recordings)
    if entry.provisional and entry.far is not None:
        yield f"judges nothing yet, far from its peers: {clean(entry.far.described)}"
    if entry.moved is not None:
        yield f"moved {clean(movement_words(entry.moved))}{_after(entry.moved.outcome)}"
    came = (("by", entry.accepted_by), ("from", entry.run_url))
    yield from (f"{word} {clean(text)}" for word, text in came if text)
    if entry.package_sha256:
        yield f"from package {short(clean(entry.package_sha256))}"


def _after(outcome: str) -> str:
    return f" (the gate said {clean_name(outcome)})" if outcome else ""


def _words(entry: BaselineEntry) -> str:
    """For example `cpu, AMD EPYC 7B13, torch 2.13.0+cpu, 2 ranks`."""
    where = entry.environment
    words = [where.part("device"), f"torch {where.part('torch')}"]
    if not where.on_gpu:
        words.insert(1, where.part("cpu"))
    ranks = where.part("world_size")
    return ", ".join(words if ranks in {"1", NONE} else [*words, f"{ranks} ranks"])


def _history(shown: ShownEntry) -> tuple[RenderableType, ...]:
    # outside the table, which would fold it: a file's name is for copying
    return Text(clean(shown.file), style="bold"), _table(COMMIT_COLUMNS, _commits(shown))


def _commits(shown: ShownEntry) -> Iterator[tuple[str, ...]]:
    if not shown.history:
        yield "not committed", "", "", ""
    for one in shown.history:
        reason = "unknown" if one.reason is None else clean(one.reason)
        yield clean(one.committed_at[:10]), clean(one.commit[:7]), clean(one.author), reason


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
        short(captured_digest(known.checkpoint.tensors)) if known else "",
        short(captured_digest(proposed.checkpoint.tensors)),
    )
    yield "Rests on", _rests_on(known) if known else "", _rests_on(proposed)
    if proposed.moved is not None:
        yield "Moved", "", clean(movement_words(proposed.moved)) + _after(proposed.moved.outcome)
    if proposed.far is not None:
        state = "judges nothing until it is recorded again" if proposed.provisional else "confirmed"
        yield "Far from peers", "", f"{clean(proposed.far.described)}; {state}"
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
