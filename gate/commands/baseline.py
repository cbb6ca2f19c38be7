"""`repro-gate baseline`: record, accept and show the committed baseline."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from gate.adapters.console import QuietProgress
from gate.adapters.git.repository import GitRepository
from gate.adapters.github.artifacts import fetch_artifact
from gate.baseline.record import read_baseline, with_knob_costs
from gate.codec.documents import write_document
from gate.commands.measure import calibrate_command
from gate.commands.options import (
    OUT,
    AsJson,
    Config,
    Out,
    Quiet,
    Reason,
    console,
    local_call,
    prepare,
    progress_for,
    show,
)
from gate.commands.program import FILES, MAX_DOCUMENT_BYTES
from gate.errors import BaselineError, SettingsError
from gate.pipelines.entry import local_request
from gate.pipelines.gate import record_baseline
from gate.pipelines.measurement import measure_cost
from gate.pipelines.proposals import accepted, archived_proposal, last_proposal, proposal_at
from gate.records.baseline import Baseline
from gate.records.request import GateRequest
from gate.report.terminal.baseline_view import baseline_view, proposal_view
from gate.settings.run_address import run_address

ATTRIBUTE_HELP = "Also measure the overhead of each knob alone."
FROM_HELP = "A downloaded artifact: its folder, its .zip, or the proposed-baseline.json in it."
RUN_HELP = "A run of GitHub Actions, by number or URL; GH_TOKEN holds a token with `actions: read`."
ARTIFACT_HELP = "The run's artifact, where it is not called repro-gate."
# as GitHub's own command line takes them
TOKENS: Final = ("GH_TOKEN", "GITHUB_TOKEN")

# the placeholder in the command that a verdict proposes next
PLACEHOLDERS = frozenset(("why the result moved",))

baseline_app = typer.Typer(
    help="Record, accept and show the baseline; derive tolerances.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@baseline_app.command("record")
def record_command(
    config: Config = "",
    out: Out = OUT,
    reason: Reason = "",
    *,
    attribute: Annotated[bool, typer.Option("--attribute", help=ATTRIBUTE_HELP)] = False,
    quiet: Quiet = False,
) -> None:
    """Train twice and write the baseline file.

    Example: repro-gate baseline record --reason "first baseline"
    """
    request, adapters = prepare(local_call(config, out), progress_for(quiet=quiet, verbose=False))
    with adapters.files.held_folder(request.out):
        baseline = record_baseline(request, adapters, reason)
        if attribute:
            baseline = with_knob_costs(baseline, measure_cost(request, adapters, attribute=True))
    _write_baseline(request, baseline)


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
        raise SettingsError("--artifact needs --run", hint="A downloaded one is named with --from.")
    # whoever names a proposal may want to look at it first
    if not source and not run:
        _refuse_no_reason(reason)
    request, adapters = prepare(local_call(config, out), QuietProgress())
    if run:
        proposal = archived_proposal(request, adapters, _download(run, artifact, request.top))
    elif source:
        proposal = proposal_at(request, adapters, Path(source).absolute())
    else:
        proposal = last_proposal(request, adapters)
    console().print(proposal_view(proposal.entry, proposal.known, proposal.head))
    _refuse_no_reason(reason)
    _write_baseline(request, accepted(request, adapters, proposal, reason))


def _download(run: str, artifact: str, top: Path) -> Callable[[Path], str]:
    """What writes the archive of a run's artifact to a path; asked for nothing before."""
    address = run_address(run, GitRepository(top).remotes(), os.environ)
    token = next(filter(None, (os.environ.get(name, "").strip() for name in TOKENS)), "")
    if not token:
        raise SettingsError(
            "--run needs a token: GH_TOKEN is not set",
            hint="`export GH_TOKEN=$(gh auth token)`, or download the artifact and use --from.",
        )

    def fill(path: Path) -> str:
        with FILES.replacing(path) as file:
            name = fetch_artifact(file, address, token, name=artifact)
        return f"artifact {name} of run {address.run}"

    return fill


def _refuse_no_reason(reason: str) -> None:
    """Refuse an empty reason, and the placeholder that the gate itself prints."""
    words = reason.strip(" \t'\".").lower()
    if words and words not in PLACEHOLDERS:
        return
    raise SettingsError(
        "accept needs --reason" if not words else f"accept needs a reason, not {reason[:60]!r}",
        hint='Reviewers read it in the diff. Say what changed the result: --reason "lr 2e-3".',
    )


def _write_baseline(request: GateRequest, baseline: Baseline) -> None:
    path = request.top / request.repository_path(request.settings.baseline.path)
    FILES.write_bytes(path, write_document(baseline))
    sys.stdout.write(f"written: {path}\nCommit it: the gate judges by the committed file.\n")


baseline_app.command("calibrate")(calibrate_command)


@baseline_app.command("show")
def show_command(config: Config = "", *, as_json: AsJson = False) -> None:
    """Show the entries of the baseline.

    Example: repro-gate baseline show
    """
    request = local_request(local_call(config, OUT), FILES)
    path = request.top / request.repository_path(request.settings.baseline.path)
    data = FILES.read_bytes(path, max_bytes=MAX_DOCUMENT_BYTES) if FILES.exists(path) else None
    baseline = read_baseline(data, str(path))
    if baseline is None:
        raise BaselineError(f"{path}: no baseline", hint="Run `repro-gate baseline record`.")
    show(baseline, baseline_view(baseline), as_json=as_json)
