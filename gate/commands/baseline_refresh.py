"""`repro-gate baseline refresh`: accept the proposed entries of many runs and gates together.

Proposals come from runs of GitHub Actions or from a folder of downloaded artifacts. The command
shows all of them in one table and asks once. A result that moved while its environment did not is
refused: a new image or driver cannot explain it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gate.commands.baseline_writing import (
    COMMIT_IT,
    address_of,
    download,
    refuse_no_reason,
    token_of,
    who_accepts,
    write_baseline,
)
from gate.commands.options import AsJson, Reason, console, local_call, prepare, progress_for
from gate.commands.program import FILES
from gate.errors import ExitCode, PublishError, SettingsError
from gate.pipelines.adapters import Adapters
from gate.pipelines.policy_files import work_tree_baseline
from gate.pipelines.proposals import accepted, proposal_of
from gate.pipelines.refresh import (
    MAX_OFFERED,
    WRITTEN,
    Offered,
    RefreshRow,
    RefreshState,
    RefreshTable,
    RowAndProposal,
    downloaded,
    in_folder,
    refresh_rows,
)
from gate.pipelines.snapshots import claim_out
from gate.report.entry_words import movement_words
from gate.report.escape import prose
from gate.report.layout import Cell, Section, table_of
from gate.report.markdown import fit, titled_part
from gate.report.terminal_lines import section_view
from gate.settings.gate_settings import FILE_NAME, is_of_github
from gate.system.git.repository import GitRepository
from gate.system.github.records import RunAddress
from gate.text.documents import write_document
from gate.text.phrases import count
from gate.text.untrusted_text import safe_line
from gate.verdict.request import GateRequest

OUT: Final = Path("repro-gate-refresh")
DOCUMENT: Final = "refresh.json"
PAGE: Final = "refresh.md"
# a pull request's text has 65,536 characters at most
PAGE_BYTES: Final = 60_000
SHOWN_PARTS: Final = 4
MOST_RUNS: Final = 100

Archives = Sequence[tuple[str, Callable[[Path], str]]]


def refresh_command(  # noqa: PLR0913 - each parameter is an option of the command
    runs: Annotated[
        str, typer.Option(metavar="IDS", help="Runs of GitHub Actions, with commas between them.")
    ] = "",
    workflow: Annotated[
        str, typer.Option(metavar="NAME", help="Runs of this workflow, with --failed.")
    ] = "",
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FOLDER", help="Folder of artifacts that were downloaded."),
    ] = None,
    reason: Reason = "",
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", "-c", help=f"Settings file; repeatable; default: each {FILE_NAME}."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the table.")] = OUT,
    *,
    failed: Annotated[
        bool, typer.Option("--failed", help="The newest failed runs of --workflow.")
    ] = False,
    last: Annotated[
        int, typer.Option(min=1, max=MOST_RUNS, help="How many runs of --workflow.")
    ] = 20,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Accept the proposals of many runs together.

    After a new image or driver. Shows one table and asks once. Refuses a result that moved while
    its environment did not; exit code 1 when there is one.

    Example: repro-gate baseline refresh --workflow nightly.yml --failed --reason "driver 580"
    """
    _refuse_unclear(runs, workflow, source, failed=failed)
    progress = progress_for(quiet=as_json, verbose=False)
    prepared = [prepare(local_call(name, out), progress) for name in config or _settings_files()]
    requests, adapters = [request for request, _ in prepared], prepared[0][1]
    top = requests[0].top
    # Claim the folder before accepting anything. A folder that is not the gate's is refused, and
    # then no baseline has been written yet.
    claim_out(requests[0].out, FILES)
    if source is not None:
        offered = in_folder(adapters, top, source.absolute())
    else:
        archives, faults = _archives(top, runs, workflow, last)
        offered = (*downloaded(adapters, top, archives), *faults)
    rows = refresh_rows(requests, adapters, offered)
    shown, now = tuple(outcome.row for outcome in rows), adapters.clock.now().isoformat()
    table = RefreshTable(created_at=now, reason=reason, rows=shown)
    if not as_json:
        console().print(refresh_view(table), crop=False)
    writable = tuple(outcome for outcome in rows if outcome.row.state in WRITTEN)
    if writable:
        refuse_no_reason(reason, "refresh")
        if _agreed(len(writable), yes=yes):
            written = _write_all(writable, adapters, reason, silent=as_json)
            table = table.model_copy(update={"written": written})
    FILES.write_bytes(requests[0].out / DOCUMENT, write_document(table))
    FILES.write_bytes(requests[0].out / PAGE, refresh_markdown(table).encode())
    if as_json:
        sys.stdout.write(write_document(table).decode("utf-8"))
    refused = RefreshState.REFUSED in {row.state for row in table.rows}
    raise typer.Exit(int(ExitCode.FAIL if refused else ExitCode.PASS))


def _refuse_unclear(runs: str, workflow: str, source: Path | None, *, failed: bool) -> None:
    if sum((bool(runs), bool(workflow), source is not None)) != 1:
        raise SettingsError(
            "refresh takes one of --runs, --workflow and --from",
            hint="For example: repro-gate baseline refresh --runs 4711,4712",
        )
    if bool(workflow) != failed:
        raise SettingsError(
            "--workflow and --failed need each other",
            hint="A run that passed proposes nothing new: name the failed ones.",
        )


def _settings_files() -> list[str]:
    """Every settings file of the clone, as paths from the current folder."""
    repository = GitRepository(Path.cwd())
    top = repository.top_level()
    names = [name for name in repository.visible_files() if Path(name).name == FILE_NAME]
    names_of_settings = [name for name in names if not is_of_github(name)]
    if not names_of_settings:
        raise SettingsError(
            f"no {FILE_NAME} in this clone", hint="Name the settings files with --config."
        )
    return [str(top / name) for name in names_of_settings]


def _archives(
    top: Path, runs: str, workflow: str, last: int
) -> tuple[Archives, tuple[Offered, ...]]:
    """Return the gates' artifacts of the runs, and the runs whose artifacts cannot be listed.

    An artifact is its name for the table and a function that downloads it to a path. Raises
    `SettingsError` if the runs have no artifact of a gate, or more than `MAX_OFFERED`.
    """
    # imported here because the HTTP modules are slow to import, and most calls do not need them
    from gate.system.github.artifacts import failed_runs, gate_artifacts  # noqa: PLC0415

    numbers = list(dict.fromkeys(filter(None, (run.strip() for run in runs.split(",")))))
    addresses: Sequence[RunAddress] = [address_of(number, top) for number in numbers]
    token = token_of("--workflow" if workflow else "--runs")
    if workflow:
        # The address of run 1 only names the repository. GitHub's answer lists the failed runs.
        addresses = failed_runs(address_of("1", top), token, workflow, most=last)
    archives, faults = list[tuple[str, Callable[[Path], str]]](), list[Offered]()
    for address in addresses:
        try:
            names = gate_artifacts(address, token)
        except PublishError as fault:
            faults.append(Offered(source=f"run {address.run}", fault=fault.message))
            continue
        archives += [
            (f"run {address.run}, {safe_line(name)}", download(address, token, name, ""))
            for name in names
        ]
    if not archives or len(archives) > MAX_OFFERED:
        raise SettingsError(
            f"{count(len(addresses), 'run')} with {count(len(archives), 'artifact')} of a gate",
            hint=f"Name runs that have 1 to {MAX_OFFERED:,} of them.",
            details=tuple(f"{outcome.source}: {outcome.fault}" for outcome in faults[:10]),
        )
    return archives, tuple(faults)


def _agreed(entries: int, *, yes: bool) -> bool:
    """Ask whether to accept the proposals; `--yes` answers.

    Raises `SettingsError` if standard input is no terminal, so nobody can answer.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise SettingsError(
            f"nothing was written: {count(entries, 'proposal')} to accept, and no terminal to ask",
            hint="Look at the table, then run the same command with --yes.",
        )
    return typer.confirm(f"Accept {count(entries, 'proposal')}?", err=True)


def _write_all(
    rows: Sequence[RowAndProposal], adapters: Adapters, reason: str, *, silent: bool
) -> tuple[str, ...]:
    written = []
    for row in rows:
        request, proposal = row.request, row.proposal
        assert request is not None and proposal is not None  # noqa: S101, PT018 - rows to write have both
        before = work_tree_baseline(request, adapters)
        # Build the proposal again: writing the rows before this one may have changed the entries
        # that it is compared with.
        again = proposal_of(request, adapters, proposal.entry)
        again = replace(again, package_sha256=proposal.package_sha256)
        after = accepted(request, adapters, again, reason, who_accepts(request.top))
        write_baseline(request, before, after, silent=silent)
        written.append(_target(request, row.row))
    sys.stderr.write(COMMIT_IT)
    return tuple(written)


def _target(request: GateRequest, row: RefreshRow) -> str:
    return f"{request.repository_path(request.settings.baseline.path)}/{row.file}"


def _section(table: RefreshTable) -> Section:
    rows = tuple(
        (
            Cell(f"{row.gate or 'default'} ({row.config})" if row.config else row.gate),
            Cell(_environment(row)),
            Cell(_moved(row)),
            Cell("" if row.noise is None else f"{row.noise:.3g}"),
            Cell("" if row.score is None else f"{row.score:.3g}"),
            Cell(f"{row.state.value}: {row.why}" if row.why else row.state.value),
            Cell(row.source),
        )
        for row in table.rows
    )
    headings = ("Gate", "Environment", "What moved", "x noise", "Score", "Answer", "From")
    return Section(title="Proposals", table=table_of(headings, rows, len(rows), 3, 4))


def _environment(row: RefreshRow) -> str:
    more = len(row.changed) - SHOWN_PARTS
    parts = ", ".join(row.changed[:SHOWN_PARTS]) + (f" and {more} more" if more > 0 else "")
    return f"{row.environment}; moved: {parts}" if parts else row.environment


def _moved(row: RefreshRow) -> str:
    if row.movement is None:
        return "nothing" if row.score is not None else ""
    return movement_words(row.movement)


def _summary(table: RefreshTable) -> str:
    states = [row.state for row in table.rows]
    counted = (f"{states.count(state)} {state.value}" for state in RefreshState if state in states)
    return f"{count(len(states), 'proposal')}: {', '.join(counted)}"


def refresh_view(table: RefreshTable) -> RenderableType:
    """Show how many proposals have each state, then a table of all proposals."""
    return Group(Text(safe_line(_summary(table)), style="bold"), section_view(_section(table)))


def refresh_markdown(table: RefreshTable) -> str:
    """Return the table as the Markdown text of a pull request, with the files that were written."""
    lines = [f"### Baseline refresh: {prose(table.reason)}", prose(_summary(table))]
    lines += [prose(f"written: {name}") for name in table.written]
    return fit("\n\n".join(lines), (titled_part(_section(table)),), PAGE_BYTES)
