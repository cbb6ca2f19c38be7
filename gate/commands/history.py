"""`repro-gate history`: add, show, compact and prune the lines of verdicts.

A history is in a folder, in S3, in a registry or on a branch. It is informational: no verdict is
judged by it. A `verdict.json` is parsed in a confined child, since another job may have written it.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, date, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from gate.commands.history_options import (
    LONGEST_DAYS,
    Cache,
    Place,
    Since,
    days_of,
    fleet_call,
    history_place,
)
from gate.commands.options import AsJson, Config, console
from gate.commands.program import FILES
from gate.commands.registry_names import clone_settings, gate_name
from gate.errors import GateError, PublishError, SettingsError
from gate.fleet.exposition import check_address, push, samples_of_verdict, text_of
from gate.fleet.lines import ATTEMPT, RUNS, call_facts, verdict_line
from gate.fleet.remote_stores import opened_store
from gate.fleet.retention import LineClass, Retention
from gate.fleet.stores import FolderStore, append, compact
from gate.isolation.confined_look import read_apart, reading_seconds
from gate.pipelines.fleet import WindowLines, newest_lines, refuse_no_history
from gate.pipelines.prune import prune
from gate.report.layout import Cell, Row, Section, table_of
from gate.report.markdown import table_markdown
from gate.report.terminal_lines import section_view
from gate.system.clock import SystemClock
from gate.system.git.repository import GitRepository
from gate.text.documents import RecordForm, read_document
from gate.text.phrases import count
from gate.text.untrusted_text import safe_line
from gate.verdict.history_lines import HistoryLine, RollbackLine, line_bytes
from gate.verdict.verdict import Verdict, judged_words

VERDICT: Final = "verdict.json"
MAX_VERDICT_BYTES: Final = 256 * 1024 * 1024
FIRST_DAY: Final = date(2000, 1, 1)
SHORT_COMMIT: Final = 12
LINE: Final[RecordForm[HistoryLine]] = RecordForm(HistoryLine)
PRUNED: Final = ("Lines older than --keep-days", "Kept", "Removed")
NAMES: Final[dict[LineClass, str]] = {
    LineClass.NEWEST: "the newest of a gate",
    LineClass.BASELINE: "sealed passes that changed a baseline",
    LineClass.SEALED: "other sealed passes, and rollbacks",
    LineClass.FOREIGN: "of another schema",
    LineClass.OTHER: "all others",
}
HEADINGS: Final = ("Judged at", "Gate", "Commit", "Outcome", "Run", "Author", "Sealed")

history_app = typer.Typer(
    help="Keep, show and prune the lines of verdicts.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@history_app.command("append")
def append_command(  # noqa: PLR0913 - each parameter is an option of the command
    verdict: Annotated[
        Path, typer.Argument(help="verdict.json, or the output folder that has it.")
    ] = Path("repro-gate-out"),
    place: Place = "",
    *,
    config: Config = "",
    run_id: Annotated[str, typer.Option(help="Default: what the CI service says.")] = "",
    gate_id: Annotated[str, typer.Option(help="Default: report.gate_id of the settings.")] = "",
    repository: Annotated[str, typer.Option(help="owner/name; default: GITHUB_REPOSITORY.")] = "",
    sealed: Annotated[
        bool | None,
        typer.Option(help="Whether the pass is sealed; default: whether a seal is beside it."),
    ] = None,
    pushgateway: Annotated[str, typer.Option(help="Push its metrics to this address too.")] = "",
    textfile: Annotated[
        Path | None, typer.Option(help="Write its metrics to this .prom file too.")
    ] = None,
) -> None:
    """Add the line of a verdict to a history.

    A gate with publish.history does this itself; this is for a verdict that was made elsewhere.
    Exit code 3 when the line is not kept, or the metrics are not pushed.

    Example: repro-gate history append repro-gate-out --history /srv/repro-gate/history
    """
    settings, _ = clone_settings(config)
    file = verdict / VERDICT if FILES.is_folder(verdict) else verdict
    beside = any(
        FILES.exists(file.with_name(f"package.{kind}.json")) for kind in ("dsse", "sigstore")
    )
    said = {RUNS[0]: run_id, ATTEMPT: ""} if run_id else {}
    call = call_facts(
        {**os.environ, **said},
        gate_id=gate_name(gate_id, settings),
        repository=repository or os.environ.get("GITHUB_REPOSITORY", ""),
        sealed=beside if sealed is None else sealed,
    )
    line = read_apart(
        LINE,
        lambda: verdict_line(
            read_document(
                Verdict,
                FILES.read_bytes(file, max_bytes=MAX_VERDICT_BYTES),
                safe_line(str(file)),
                max_bytes=MAX_VERDICT_BYTES,
            ),
            call,
        ),
        what=safe_line(str(file)),
        seconds=reading_seconds(file),
    )
    target = history_place(place, config)
    store = opened_store(target, os.environ, FILES, GitRepository(Path.cwd()))
    if pushgateway:
        # before adding the line, so that a mistyped address fails without side effects
        check_address(pushgateway)
    name = append(store, line)
    console().print(f"added {name} to {store.shown}", soft_wrap=True)
    if not line.run_id:
        console().print("It has no run id: give --run-id, or call this in a CI job.")
    if textfile is not None:
        FILES.write_bytes(textfile, text_of(samples_of_verdict(line)).encode("utf-8"))
    if pushgateway:
        _push(pushgateway, line)


def _push(pushgateway: str, line: HistoryLine) -> None:
    try:
        push(pushgateway, line)
    except GateError as fault:
        raise PublishError(
            f"the line was added, and no metrics were pushed: {fault.message}",
            hint=f"{fault.hint} Then run the same command again: a line is kept once.",
            details=fault.details,
        ) from fault


@history_app.command("show")
def show_command(
    place: Place = "",
    *,
    since: Since = "7d",
    config: Config = "",
    most: Annotated[
        int, typer.Option(min=1, max=100_000, help="How many of the newest lines.")
    ] = 20,
    cache: Cache = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest lines of a history; with --json a line of JSON for each.

    Example: repro-gate history show --history /srv/repro-gate/history --since 2d
    """
    call = fleet_call(history_place(place, config), days_of(since), cache)
    shown = newest_lines(call, most)
    if as_json:
        for line in shown.lines:
            sys.stdout.write(line_bytes(line).decode("ascii") + "\n")
        return
    console().print(section_view(_section(shown, most, since)), crop=False)
    _say_left_out(shown)


@history_app.command("report")
def report_command(
    place: Place = "",
    *,
    since: Since = "7d",
    config: Config = "",
    most: Annotated[
        int, typer.Option(min=1, max=100_000, help="How many of the newest lines.")
    ] = 200,
    cache: Cache = None,
) -> None:
    """Print the newest lines as a Markdown table.

    Service levels over them: repro-gate slo.

    Example: repro-gate history report --since 7d >> "$GITHUB_STEP_SUMMARY"
    """
    call = fleet_call(history_place(place, config), days_of(since), cache)
    shown = newest_lines(call, most)
    section = _section(shown, most, since)
    sys.stdout.write(f"# {section.title}\n\n{table_markdown(section.table).strip()}\n")
    _say_left_out(shown)


@history_app.command("compact")
def compact_command(
    place: Place = "",
    *,
    config: Config = "",
    keep_days: Annotated[int, typer.Option(min=1, help="Leave this many newest days.")] = 2,
) -> None:
    """Join the files of past days into a few for each day.

    Each batch is written before what is in it is removed, so no line is lost, whatever happens.

    Example: repro-gate history compact --history s3://ml-runs/repro-gate
    """
    target = history_place(place, config)
    store = opened_store(target, os.environ, FILES)
    if isinstance(store, FolderStore):
        refuse_no_history(target, FILES)
    today = SystemClock().now().astimezone(UTC).date()
    joined = compact(store, FIRST_DAY, today - timedelta(days=keep_days))
    console().print(f"{count(joined, 'file')} of {store.shown} joined into others", soft_wrap=True)


@history_app.command("prune")
def prune_command(
    place: Place = "",
    *,
    config: Config = "",
    keep_days: Annotated[
        int, typer.Option(min=1, max=LONGEST_DAYS, help="Days for which every line is kept.")
    ] = 90,
    keep_sealed_days: Annotated[
        int, typer.Option(min=1, max=LONGEST_DAYS, help="The same of sealed passes and rollbacks.")
    ] = 400,
    dry_run: Annotated[bool, typer.Option(help="Only count what would be removed.")] = False,
) -> None:
    """Remove expired lines.

    Never removed: the newest verdict and the newest sealed pass of each gate, sealed passes that
    changed a baseline, and lines of another version's schema.

    Example: repro-gate history prune --history s3://ml-runs/repro-gate --keep-days 60 --dry-run
    """
    if keep_sealed_days < keep_days:
        raise SettingsError(
            f"--keep-sealed-days {keep_sealed_days} is below --keep-days {keep_days}",
            hint="Sealed passes are kept as long as other lines, or longer.",
        )
    now = SystemClock().now().astimezone(UTC)
    target = history_place(place, config)
    call = fleet_call(target, (now.date() - FIRST_DAY).days)
    retention = Retention(today=now.date(), days=keep_days, sealed_days=keep_sealed_days)
    pruned = prune(call, retention, dry_run=dry_run)
    went = "would be removed" if dry_run else "removed"
    rows = [
        (
            Cell(NAMES[line_class]),
            Cell(f"{pruned.kept[line_class]:,}"),
            Cell(f"{pruned.dropped[line_class]:,}"),
        )
        for line_class in LineClass
        if pruned.kept[line_class] or pruned.dropped[line_class]
    ]
    title = f"{count(sum(pruned.dropped.values()), 'line')} {went}"
    section = Section(title=title, table=table_of(PRUNED, rows, len(LineClass)))
    console().print(section_view(section), crop=False)


def _section(shown: WindowLines, most: int, since: str) -> Section:
    title = f"{count(shown.lines_total, 'line')} in {since}"
    if shown.lines_total > most:
        title += f", the newest {most:,}"
    return Section(title=title, table=table_of(HEADINGS, map(_row, shown.lines), most))


def _row(line: HistoryLine | RollbackLine) -> Row:
    if isinstance(line, RollbackLine):
        outcome, author, sealed = f"rollback {'done' if line.succeeded else 'failed'}", "", ""
    else:
        outcome = "cancelled" if line.cancelled else judged_words(line.outcome, passes=line.passes)
        author, sealed = line.author, "yes" if line.sealed else "no"
    gate = f"{line.repository} {line.gate_id}".strip()
    return (
        Cell(line.judged_at),
        Cell(gate),
        Cell(line.commit[:SHORT_COMMIT], code=True),
        Cell(outcome),
        Cell(line.run_id),
        Cell(author),
        Cell(sealed),
    )


def _say_left_out(shown: WindowLines) -> None:
    for why, lines in shown.left_out.items():
        sys.stderr.write(f"{count(lines, 'line')} left out: {why}\n")
