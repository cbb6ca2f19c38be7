"""`repro-gate seeds` and `scaling`, and the study part of `compare`: measured, never judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gate.commands.options import (
    OUT,
    AllowDirty,
    AsJson,
    CommitToTrain,
    Config,
    Out,
    Quiet,
    Verbose,
    console,
    local_call,
    prepare,
    progress_for,
    show,
)
from gate.commands.program import FILES
from gate.comparison.studies import StudyDocument, StudyKind
from gate.errors import ExitCode, SettingsError
from gate.pipelines.adapters import Adapters
from gate.pipelines.snapshots import held_out
from gate.pipelines.study_runs import TRAINING, Commands, rank_arms, run_study
from gate.report.page.study_page import study_page
from gate.report.study_sections import study_view
from gate.text.document import COMMAND_HINT, command_words
from gate.text.documents import write_document
from gate.training.runs import RunMode
from gate.verdict.request import GateRequest

COUNT_HELP = "Number of seeds, train.seed first, then those of the settings, then the next ones."
RANKS_HELP = "Numbers of ranks, separated by commas; others are compared with the first."
RUNS_HELP = "Runs for each number of ranks, each with a seed of its own."
COMMAND_HELP = "Command with {ranks} for their number; default: train.command, its number replaced."
DEFAULT_MODE_HELP = "Train in the framework's default mode; default: strict mode."
Runs = Annotated[int, typer.Option("--runs", min=1, max=100, help=RUNS_HELP)]
DefaultMode = Annotated[bool, typer.Option("--default-mode", help=DEFAULT_MODE_HELP)]


def seeds_command(  # noqa: PLR0913 - each parameter is an option of the command
    config: Config = "",
    out: Out = OUT,
    seeds: Annotated[int, typer.Option("--n", "-n", min=2, max=200, help=COUNT_HELP)] = 10,
    commit: CommitToTrain = "",
    *,
    default_mode: DefaultMode = False,
    allow_dirty: AllowDirty = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Measure mean and spread over seeds.

    Trains once with each seed. Exit code 3 when the seed has no effect.

    Example: repro-gate seeds --n 10 --config examples/digits/repro-gate.yml
    """
    call = local_call(config, out, commit=commit, allow_dirty=allow_dirty)
    request, adapters = prepare(call, progress_for(quiet=quiet or as_json, verbose=verbose))
    arms = {TRAINING: request.settings.train.command}
    mode = mode_of(default_mode=default_mode)
    study = write_study(request, adapters, StudyKind.SEEDS, arms, runs=seeds, mode=mode)
    show_study(study, out, as_json=as_json)
    if study.arms[0].ignores_seed:
        # every seed gave the same result, so mean and spread measure nothing
        raise typer.Exit(int(ExitCode.ERROR))


def scaling_command(  # noqa: PLR0913 - each parameter is an option of the command
    ranks: Annotated[str, typer.Option("--ranks", help=RANKS_HELP)],
    config: Config = "",
    out: Out = OUT,
    runs: Runs = 3,
    command: Annotated[str, typer.Option("--command", help=COMMAND_HELP)] = "",
    commit: CommitToTrain = "",
    *,
    default_mode: DefaultMode = False,
    allow_dirty: AllowDirty = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Measure how speed scales with ranks.

    Efficiency with an interval, and whether metrics agree between numbers of ranks.

    Example: repro-gate scaling --ranks 1,2,4 --runs 3
    """
    call = local_call(config, out, commit=commit, allow_dirty=allow_dirty)
    request, adapters = prepare(call, progress_for(quiet=quiet or as_json, verbose=verbose))
    arms = rank_arms(ranks, _words(command) or request.settings.train.command)
    mode = mode_of(default_mode=default_mode)
    study = write_study(request, adapters, StudyKind.SCALING, arms, runs=runs, mode=mode)
    show_study(study, out, as_json=as_json)


def write_study(
    request: GateRequest, adapters: Adapters, kind: StudyKind, arms: Commands, *,
    runs: int, mode: RunMode,
) -> StudyDocument:  # fmt: skip
    """Run a study with `runs` trainings per arm, and write `study.json` and `study.html`."""
    with held_out(request.out, adapters.files):
        study = run_study(request, adapters, kind, arms, seeds=runs, mode=mode)
        FILES.write_bytes(request.out / "study.json", write_document(study))
        FILES.write_bytes(request.out / "study.html", study_page(study).encode("utf-8"))
    return study


def show_study(study: StudyDocument, out: Path, *, as_json: bool) -> None:
    """Print a study and the folder that it was written to; `as_json` prints the document alone."""
    show(study, study_view(study), as_json=as_json)
    if not as_json:
        written = f"\nWritten to {out}: study.html, study.json, evidence"
        console().print(written, style="dim", soft_wrap=True)


def mode_of(*, default_mode: bool) -> RunMode:
    """Return the mode in which a study trains: strict, unless the caller asks for the default."""
    return RunMode.DEFAULT if default_mode else RunMode.STRICT


def _words(command: str) -> tuple[str, ...]:
    try:
        return command_words(command)
    except ValueError as error:
        raise SettingsError(f"--command: {error}", hint=COMMAND_HINT) from error
