"""The command `census`: which operators lack a deterministic form, without judging anything."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from gate.codec.documents import write_document
from gate.options import (
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
)
from gate.pipeline import take_census
from gate.report.census_view import census_view
from gate.report.layout import Limits

CENSUS_FILE = "census.json"
LIMITS = Limits(deltas=0, rows=500)


def census_command(
    config: Config = "",
    out: Out = OUT,
    *,
    allow_dirty: AllowDirty = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Train once and count the operators that have no deterministic form, by step and line.

    Example: repro-gate census --config examples/digits/repro-gate.yml
    """
    call = local_call(config, out, allow_dirty=allow_dirty)
    request, edges = prepare(call, progress_for(quiet=quiet or as_json, verbose=verbose))
    found = take_census(request, edges)
    document = write_document(found)
    edges.files.write_bytes(request.out / CENSUS_FILE, document)
    if as_json:
        sys.stdout.write(document.decode("utf-8"))
        raise typer.Exit(0)
    Console(highlight=False, markup=False, emoji=False).print(census_view(found, LIMITS))
