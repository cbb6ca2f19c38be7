"""`repro-gate baseline`: record, accept and show the committed baseline."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gate.adapters.console import QuietProgress
from gate.baseline.record import read_baseline, with_knob_costs
from gate.codec.documents import write_document
from gate.commands.options import (
    OUT,
    AsJson,
    Config,
    Out,
    Quiet,
    Reason,
    local_call,
    prepare,
    progress_for,
    show,
)
from gate.commands.program import FILES, MAX_DOCUMENT_BYTES
from gate.errors import BaselineError, SettingsError
from gate.pipelines.entry import local_request
from gate.pipelines.gate import accept_baseline, record_baseline
from gate.pipelines.measurement import measure_cost
from gate.records.baseline import PROPOSED_BASELINE, Baseline
from gate.records.request import GateRequest
from gate.report.terminal.baseline_view import baseline_view

ATTRIBUTE_HELP = "Also measure the overhead of each knob alone."

# the placeholder in the command that a verdict proposes next
PLACEHOLDERS = frozenset(("why the result moved",))

baseline_app = typer.Typer(
    help="Record, accept and show the baseline.",
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
def accept_command(config: Config = "", out: Out = OUT, reason: Reason = "") -> None:
    """Accept the entry of the last gate call.

    Example: repro-gate baseline accept --reason "new learning rate schedule"
    """
    _refuse_no_reason(reason)
    request, adapters = prepare(local_call(config, out), QuietProgress())
    path = request.out / PROPOSED_BASELINE
    if not FILES.exists(path):
        raise BaselineError(
            f"{path}: nothing to accept",
            hint="Run `repro-gate gate` first. No entry is proposed for a run that was not "
            "repeatable, not finite or not committed.",
        )
    proposed = FILES.read_bytes(path, max_bytes=MAX_DOCUMENT_BYTES)
    _write_baseline(request, accept_baseline(request, adapters, proposed, reason))


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
