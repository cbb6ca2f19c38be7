"""`repro-gate cost` and `repro-gate noise`: the overhead of determinism, and run-to-run noise."""

from __future__ import annotations

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
from gate.errors import ExitCode
from gate.pipelines.measurement import measure_cost, measure_noise
from gate.records.measurement import CostDocument, NoiseDocument
from gate.records.request import GateRequest
from gate.report.terminal.measurement_view import (
    cost_markdown,
    cost_view,
    noise_markdown,
    noise_view,
)

ATTRIBUTE_HELP = "Measure the overhead of each knob alone, and find the minimal sufficient set."
RUNS_HELP = "Number of training runs; default: noise.runs."


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


def _deliver(
    request: GateRequest, name: str, document: CostDocument | NoiseDocument, markdown: str
) -> None:
    FILES.write_bytes(request.out / f"{name}.json", write_document(document))
    FILES.write_bytes(request.out / f"{name}.md", markdown.encode())
