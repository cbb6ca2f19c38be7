"""`repro-gate baseline`: record, accept, calibrate and show the committed baseline.

An entry and a proposal contain text that a training or another job wrote. Everything shown here
goes through `clean`, and through `Text`, which rich does not search for markup.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gate.baseline.entry import (
    BaselineEntry,
    ShownBaseline,
    ShownEntry,
)
from gate.baseline.record import with_knob_costs
from gate.checkpoint.digest import captured_digest
from gate.commands.baseline_refresh import refresh_command
from gate.commands.baseline_writing import (
    COMMIT_IT,
    address_of,
    download,
    refuse_no_reason,
    token_of,
    who_accepts,
    write_baseline,
)
from gate.commands.options import (
    OUT,
    AllowDirty,
    AsJson,
    Config,
    Out,
    Quiet,
    Reason,
    Verbose,
    console,
    local_call,
    prepare,
    progress_for,
    show,
)
from gate.commands.program import FILES
from gate.comparison.tolerances import CONFIDENCE
from gate.errors import BaselineError, GateError, SettingsError
from gate.pipelines.gate import record_baseline
from gate.pipelines.measurement import (
    calibration,
    checked_ranges,
    from_folders,
    measure_cost,
    rerun,
)
from gate.pipelines.policy_files import shown_baseline, work_tree_baseline
from gate.pipelines.proposals import accepted, archived_proposal, last_proposal, proposal_at
from gate.pipelines.settings_file import settings_bytes
from gate.pipelines.snapshots import held_out
from gate.report.entry_words import movement_words
from gate.report.escape import clean, clean_name
from gate.report.measurement_sections import calibration_markdown, calibration_view
from gate.report.wording import repeat_words, short
from gate.settings.event import run_url_of
from gate.settings.levels import EVERY
from gate.settings.load import with_block
from gate.system.console import QuietProgress
from gate.text.documents import write_document
from gate.verdict.request import GateRequest

COLUMNS = ("Environment", "Recorded", "Last values", "Reason")
COMMIT_COLUMNS = ("Changed", "Commit", "Author", "Reason")
MAX_METRICS = 4
VALUES_WIDTH = 18
MAX_PARTS = 12
NAMED_PARTS = ("device", "cpu", "torch")
NONE = "none"


def baseline_view(baseline: ShownBaseline) -> RenderableType:
    """Show one row per entry, then the commits that changed each entry's file."""
    entries = _table(COLUMNS, (_row(shown) for shown in baseline.entries))
    # keep a metric's name on one line, as far as 80 columns allow
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
        # Six digits: 80 columns have no room for all, and the table is informational. The file has
        # every bit.
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
    """Describe where an entry comes from: runs, movement, who accepted it, job and package."""
    yield repeat_words(entry.equal_runs, entry.missed_faults, entry.recordings)
    if entry.provisional and entry.far is not None:
        yield f"is ignored for now, far from its peers: {clean(entry.far.described)}"
    if entry.moved is not None:
        yield f"moved {clean(movement_words(entry.moved))}{_after(entry.moved.outcome)}"
    came = (("by", entry.accepted_by), ("from", entry.run_url))
    yield from (f"{word} {clean(text)}" for word, text in came if text)
    if entry.package_sha256:
        yield f"from package {short(clean(entry.package_sha256))}"


def _after(outcome: str) -> str:
    return f" (the gate's outcome: {clean_name(outcome)})" if outcome else ""


def _words(entry: BaselineEntry) -> str:
    """Describe an entry's environment, for example `cpu, AMD EPYC 7B13, torch 2.13.0+cpu, 2 ranks`.

    The processor is named only for a training on the CPU. The ranks are named from two on.
    """
    where = entry.environment
    words = [where.part("device"), f"torch {where.part('torch')}"]
    if not where.on_gpu:
        words.insert(1, where.part("cpu"))
    ranks = where.part("world_size")
    return ", ".join(words if ranks in {"1", NONE} else [*words, f"{ranks} ranks"])


def _history(shown: ShownEntry) -> tuple[RenderableType, ...]:
    # not in the table, which would wrap it: people copy the file's name
    return Text(clean(shown.file), style="bold"), _table(COMMIT_COLUMNS, _commits(shown))


def _commits(shown: ShownEntry) -> Iterator[tuple[str, ...]]:
    if not shown.history:
        yield "not committed", "", "", ""
    for movement in shown.history:
        reason = "unknown" if movement.reason is None else clean(movement.reason)
        yield (
            clean(movement.committed_at[:10]),
            clean(movement.commit[:7]),
            clean(movement.author),
            reason,
        )


def _named(entry: BaselineEntry) -> str:
    parts = entry.environment.parts
    device, cpu, torch = (parts.get(name, "") for name in NAMED_PARTS)
    return ", ".join(filter(None, (device, cpu, f"torch {torch}" if torch else ""))) or NONE


def proposal_view(
    proposed: BaselineEntry, known: BaselineEntry | None, head: str
) -> RenderableType:
    """Show a proposed entry beside the nearest entry of the current baseline.

    `known` is None if there is no current entry, and `head` is the commit that is checked out. All
    of it is untrusted text: it is shortened, stripped of invisible characters, and never read as
    markup.
    """
    return _table(("", "Now", "Proposed"), _changes(proposed, known, head))


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
    yield "Based on", _rests_on(known) if known else "", _rests_on(proposed)
    if proposed.moved is not None:
        yield "Moved", "", clean(movement_words(proposed.moved)) + _after(proposed.moved.outcome)
    if proposed.far is not None:
        state = "is ignored until it is recorded again" if proposed.provisional else "confirmed"
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


ATTRIBUTE_HELP = "Also measure the overhead of each knob alone."
FROM_HELP = "A downloaded artifact: its folder, its .zip, or the proposed-baseline.json in it."
RUN_HELP = "A run of GitHub Actions, by number or URL; GH_TOKEN holds a token with `actions: read`."
ARTIFACT_HELP = "The run's artifact; default: repro-gate-ID by report.gate_id, else repro-gate."
RUNS_HELP = "Number of training runs; default: noise.runs."
EVIDENCE_HELP = "Evidence, or an output folder, of a run of this code; once for each."
STEPS_HELP = "`every`, `final` or a range such as 1-10; once for each."
CONFIDENCE_HELP = "Confidence that the tolerance covers 95 % of all runs."
WRITE_HELP = "Write the tolerances into the settings file, between markers."

RESUME_DIFFERS = (
    "note: the gate's outcome was resume-differs. Accepting this result does not fix the resume: "
    "each gate call that resumes a run fails until it is fixed.\n"
)

baseline_app = typer.Typer(
    help="Record, accept and show the baseline.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
baseline_app.command("refresh")(refresh_command)


@baseline_app.command("record")
def record_command(
    config: Config = "",
    out: Out = OUT,
    reason: Reason = "",
    *,
    attribute: Annotated[bool, typer.Option("--attribute", help=ATTRIBUTE_HELP)] = False,
    quiet: Quiet = False,
) -> None:
    """Train in strict mode and write the entry.

    All runs must give the same result.

    Example: repro-gate baseline record --reason "first baseline"
    """
    request, adapters = prepare(local_call(config, out), progress_for(quiet=quiet, verbose=False))
    with held_out(request.out, adapters.files):
        request = replace(request, run_url=run_url_of(os.environ))
        before = work_tree_baseline(request, adapters)
        baseline = record_baseline(request, adapters, reason, who_accepts(request.top))
        if attribute:
            try:
                cost = measure_cost(request, adapters, attribute=True)
                baseline = with_knob_costs(baseline, cost)
            except GateError:
                # The recording took two trainings and is valid: keep it, although measuring the
                # knobs failed.
                write_baseline(request, before, baseline)
                sys.stdout.write(COMMIT_IT)
                raise
    write_baseline(request, before, baseline)
    sys.stdout.write(COMMIT_IT)


@baseline_app.command("accept")
def accept_command(
    config: Config = "",
    out: Out = OUT,
    reason: Reason = "",
    source: Annotated[str, typer.Option("--from", help=FROM_HELP, metavar="PATH")] = "",
    run: Annotated[str, typer.Option("--run", help=RUN_HELP, metavar="ID")] = "",
    artifact: Annotated[str, typer.Option("--artifact", help=ARTIFACT_HELP)] = "",
) -> None:
    """Accept a proposed entry as the baseline.

    It comes from the last gate call, a downloaded artifact or a run on GitHub. Shows what would
    change; without a reason, nothing is written.

    Example: repro-gate baseline accept --run 4711 --reason "new learning rate schedule"
    """
    if source and run:
        raise SettingsError(
            "--from and --run exclude each other", hint="Name one proposal to accept."
        )
    if artifact and not run:
        raise SettingsError("--artifact needs --run", hint="Name a downloaded one with --from.")
    if reason and not source and not run:
        refuse_no_reason(reason)
    request, adapters = prepare(local_call(config, out), QuietProgress())
    if run:
        # Check the run's number first: a user who mistyped it should not be asked for a token.
        address, token = address_of(run, request.top), token_of("--run")
        fill = download(address, token, artifact, request.gate_id)
        proposal = archived_proposal(request, adapters, fill)
    elif source:
        proposal = proposal_at(request, adapters, Path(source).absolute())
    else:
        proposal = last_proposal(request, adapters)
    console().print(proposal_view(proposal.entry, proposal.known, proposal.head))
    if proposal.resume_differs:
        sys.stderr.write(RESUME_DIFFERS)
    # An empty reason is refused only now, so that a call without one shows what it would accept.
    refuse_no_reason(reason)
    before = work_tree_baseline(request, adapters)
    baseline = accepted(request, adapters, proposal, reason, who_accepts(request.top))
    write_baseline(request, before, baseline)
    sys.stdout.write(COMMIT_IT)


@baseline_app.command("calibrate")
def calibrate_command(  # noqa: PLR0913 - each parameter is an option of the command
    config: Config = "",
    out: Out = OUT,
    runs: Annotated[int | None, typer.Option(min=2, max=100, help=RUNS_HELP)] = None,
    folders: Annotated[
        list[Path] | None, typer.Option("--from", help=EVIDENCE_HELP, metavar="FOLDER")
    ] = None,
    steps: Annotated[list[str] | None, typer.Option("--steps", help=STEPS_HELP)] = None,
    confidence: Annotated[
        float, typer.Option(min=0.8, max=0.999, help=CONFIDENCE_HELP)
    ] = CONFIDENCE,
    *,
    write: Annotated[bool, typer.Option("--write", help=WRITE_HELP)] = False,
    allow_dirty: AllowDirty = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Derive tolerances.

    From reruns of the default mode, or from evidence that other machines measured.

    Example: repro-gate baseline calibrate --runs 10 --steps 1-10 --steps 11-20 --write
    """
    ranges = checked_ranges(tuple(steps or (EVERY,)))
    if folders and runs is not None:
        raise SettingsError(
            "--from and --runs exclude each other",
            hint="Leave --runs out: the evidence fixes the number of runs.",
        )
    call = local_call(config, out, allow_dirty=allow_dirty)
    request, adapters = prepare(call, progress_for(quiet=quiet or as_json, verbose=verbose))
    with held_out(request.out, adapters.files):
        if folders:
            measured = from_folders(request, FILES, tuple(folders))
        else:
            measured = rerun(request, adapters, runs)
        result = calibration(request, measured, ranges, confidence)
        FILES.write_bytes(request.out / "calibration.json", write_document(result))
        FILES.write_bytes(request.out / "calibration.md", calibration_markdown(result).encode())
    show(result, calibration_view(result), as_json=as_json)
    if write and result.block:
        _write_block(request, result.block)


def _write_block(request: GateRequest, block: str) -> None:
    """Write the block of tolerances into the settings file.

    Raises `SettingsError`, and writes nothing, if the file changed since this call read it.
    """
    source = request.repository_path(request.config_name)
    path = request.top / source
    # trainings ran since the file was read, and meanwhile somebody may have edited it
    if settings_bytes(path, FILES) != request.settings_text:
        raise SettingsError(
            f"{source}: changed while the trainings ran",
            hint="Nothing was written. Copy the printed lines into the file yourself.",
        )
    FILES.write_bytes(path, with_block(request.settings_text, block, source))
    sys.stderr.write(f"written: {path}\nReview and commit it: tolerances decide what passes.\n")


@baseline_app.command("show")
def show_command(config: Config = "", *, as_json: AsJson = False) -> None:
    """Show the entries and their files' commits.

    Example: repro-gate baseline show
    """
    request, adapters = prepare(local_call(config, OUT), QuietProgress())
    baseline = shown_baseline(request, adapters)
    if baseline is None:
        path = request.repository_path(request.settings.baseline.path)
        raise BaselineError(f"{path}: no baseline", hint="Run `repro-gate baseline record`.")
    show(baseline, baseline_view(baseline), as_json=as_json)
