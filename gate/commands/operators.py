"""`repro-gate operators`: count operators without a deterministic form; judges nothing."""

from __future__ import annotations

from rich.console import Group, RenderableType

from gate.commands.options import (
    OUT,
    AllowDirty,
    AsJson,
    Config,
    Out,
    Quiet,
    Verbose,
    local_call,
    prepare,
    progress_for,
    show,
)
from gate.evidence.operator_records import OperatorReport
from gate.pipelines.gate import take_operator_audit
from gate.pipelines.snapshots import held_out
from gate.report.assembly import NOTHING_FOUND, operators_sections
from gate.report.layout import Limits
from gate.report.terminal_lines import section_view
from gate.text.documents import write_document


def operators_view(operator_audit: OperatorReport, limits: Limits) -> RenderableType:
    """Show the operators by section, or a sentence that none was found."""
    sections = operators_sections(operator_audit, limits)
    return Group(*map(section_view, sections)) if sections else NOTHING_FOUND


OPERATORS_FILE = "operators.json"
LIMITS = Limits(deltas=0, rows=500)


def operators_command(
    config: Config = "",
    out: Out = OUT,
    *,
    allow_dirty: AllowDirty = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Count operators without a deterministic form.

    Trains once, and counts calls by step and line of code.

    Example: repro-gate operators --config examples/digits/repro-gate.yml
    """
    call = local_call(config, out, allow_dirty=allow_dirty)
    request, adapters = prepare(call, progress_for(quiet=quiet or as_json, verbose=verbose))
    with held_out(request.out, adapters.files):
        audit = take_operator_audit(request, adapters)
        adapters.files.write_bytes(request.out / OPERATORS_FILE, write_document(audit))
    show(audit, operators_view(audit, LIMITS), as_json=as_json)
