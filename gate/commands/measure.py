"""`repro-gate cost` and `repro-gate noise`: the overhead of determinism, and run-to-run noise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gate.codec.documents import write_document
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
from gate.commands.program import FILES
from gate.comparison.tolerance_factor import CONFIDENCE
from gate.errors import ExitCode, SettingsError
from gate.pipelines.calibration import calibration, checked_ranges, from_folders, rerun
from gate.pipelines.entry import MAX_SETTINGS_BYTES
from gate.pipelines.measurement import measure_cost, measure_noise
from gate.records.measurement import CalibrationDocument, CostDocument, NoiseDocument
from gate.records.request import GateRequest
from gate.records.sections.tolerances import EVERY
from gate.report.terminal.measurement_view import (
    calibration_markdown,
    calibration_view,
    cost_markdown,
    cost_view,
    noise_markdown,
    noise_view,
)
from gate.settings.marked_block import with_block

ATTRIBUTE_HELP = "Measure the overhead of each knob alone, and find the minimal sufficient set."
RUNS_HELP = "Number of training runs; default: noise.runs."
EVIDENCE_HELP = "Evidence, or an output folder, of a run of this code; once for each."
STEPS_HELP = "`every`, `final` or a range such as 1-10; once for each."
CONFIDENCE_HELP = "How sure it is that the tolerance holds 95 % of all runs."
WRITE_HELP = "Put the tolerances into the settings file, between marks."


def cost_command(  # noqa: PLR0913 - each parameter is an option of the command
    config: Config = "",
    out: Out = OUT,
    *,
    attribute: Annotated[bool, typer.Option("--attribute", help=ATTRIBUTE_HELP)] = False,
    allow_dirty: AllowDirty = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Measure the overhead of determinism.

    Exit code 1 when it exceeds cost.budget_percent.

    Example: repro-gate cost --attribute --config examples/digits/repro-gate.yml
    """
    call = local_call(config, out, allow_dirty=allow_dirty)
    request, adapters = prepare(call, progress_for(quiet=quiet or as_json, verbose=verbose))
    with adapters.files.held_folder(request.out):
        cost = measure_cost(request, adapters, attribute=attribute)
        _deliver(request, "cost", cost, cost_markdown(cost))
    show(cost, cost_view(cost), as_json=as_json)
    raise typer.Exit(int(ExitCode.FAIL if cost.over_budget else ExitCode.PASS))


def noise_command(  # noqa: PLR0913 - each parameter is an option of the command
    config: Config = "",
    out: Out = OUT,
    runs: Annotated[int | None, typer.Option(min=2, max=100, help=RUNS_HELP)] = None,
    *,
    allow_dirty: AllowDirty = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Measure run-to-run noise.

    Repeats the default mode, and prints tolerances to copy.

    Example: repro-gate noise --runs 10 --config examples/digits/repro-gate.yml
    """
    call = local_call(config, out, allow_dirty=allow_dirty)
    request, adapters = prepare(call, progress_for(quiet=quiet or as_json, verbose=verbose))
    with adapters.files.held_folder(request.out):
        noise = measure_noise(request, adapters, runs=runs)
        _deliver(request, "noise", noise, noise_markdown(noise))
    show(noise, noise_view(noise), as_json=as_json)


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
            "--from and --runs exclude each other", hint="Evidence has as many runs as it has."
        )
    call = local_call(config, out, allow_dirty=allow_dirty)
    request, adapters = prepare(call, progress_for(quiet=quiet or as_json, verbose=verbose))
    with adapters.files.held_folder(request.out):
        if folders:
            measured = from_folders(request, FILES, tuple(folders))
            # as every other call leaves it: git does not see what was measured
            FILES.write_bytes(request.out / ".gitignore", b"*\n")
        else:
            measured = rerun(request, adapters, runs)
        found = calibration(request, measured, ranges, confidence)
        _deliver(request, "calibration", found, calibration_markdown(found))
    show(found, calibration_view(found), as_json=as_json)
    if write and found.block:
        _write_block(request, found.block)


def _write_block(request: GateRequest, block: str) -> None:
    """Put the tolerances into the settings file, or refuse and leave it as it is."""
    source = request.repository_path(request.config_name)
    path = request.top / source
    # a training ran since it was read, and an editor may have saved it
    if FILES.read_bytes(path, max_bytes=MAX_SETTINGS_BYTES) != request.settings_text:
        raise SettingsError(
            f"{source}: changed while the trainings ran",
            hint="Nothing was written. Copy the lines that were printed to where they belong.",
        )
    FILES.write_bytes(path, with_block(request.settings_text, block, source))
    sys.stderr.write(f"written: {path}\nReview and commit it: tolerances decide what passes.\n")


def _deliver(
    request: GateRequest,
    name: str,
    document: CalibrationDocument | CostDocument | NoiseDocument,
    markdown: str,
) -> None:
    FILES.write_bytes(request.out / f"{name}.json", write_document(document))
    FILES.write_bytes(request.out / f"{name}.md", markdown.encode())
