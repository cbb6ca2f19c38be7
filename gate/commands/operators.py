"""The command `operators`: which operators lack a deterministic form; judges nothing."""

from __future__ import annotations

from gate.commands.operators_view import operators_view
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
from gate.pipelines.gate import take_operator_audit
from gate.report.layout import Limits
from gate.text.documents import write_document

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
    with adapters.files.held_folder(request.out):
        found = take_operator_audit(request, adapters)
        adapters.files.write_bytes(request.out / OPERATORS_FILE, write_document(found))
    show(found, operators_view(found, LIMITS), as_json=as_json)
