"""`repro-gate cost`, `noise`, `compare` and `shake`: measure a training; no baseline judges it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

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
from gate.commands.studies import DefaultMode, mode_of, show_study, write_study
from gate.comparison.measurements import Closeness, ComparedCommits, ShakenTraining
from gate.comparison.studies import StudyDocument, StudyKind
from gate.errors import ExitCode, SettingsError
from gate.pipelines.compare_commits import compare_commits
from gate.pipelines.measurement import AskedRanks, measure_cost, measure_noise
from gate.pipelines.shake import Asked, checked_budget, chosen_variations, shake
from gate.pipelines.snapshots import held_out
from gate.pipelines.study_runs import parsed_arms, read_printable
from gate.report.escape import clean
from gate.report.measurement_sections import (
    compared_facts,
    compared_headline,
    compared_sections,
    compared_sentences,
    cost_markdown,
    cost_view,
    noise_markdown,
    noise_view,
)
from gate.report.page.page import compare_page
from gate.report.page.study_page import study_page
from gate.report.shaken import shaken_markdown, shaken_view, variations_view
from gate.report.study_sections import study_view
from gate.report.terminal_lines import Sentence, section_view
from gate.text.document import Document
from gate.text.documents import write_document
from gate.verdict.request import GateRequest

ROWS = 12
ROUNDS = 4
SEEDS = 3


def compare_view(compared: ComparedCommits) -> RenderableType:
    """Show how close the results of the two commits are, then numbers, speed and settings."""
    colour = "green" if compared.closeness is Closeness.EQUAL else "yellow"
    return Group(
        Text(compared_headline(compared), style=f"bold {colour}"),
        *(Sentence(clean(sentence)) for sentence in compared_sentences(compared)),
        *map(section_view, compared_sections(compared, ROWS, wide=False)),
        *(Text(clean(fact), style="dim", overflow="fold") for fact in compared_facts(compared)),
    )


ATTRIBUTE_HELP = "Measure the overhead of each knob alone, and find the minimal sufficient set."
RUNS_HELP = "Number of training runs; default: noise.runs."
BASE_HELP = "The other commit: a branch, a tag, a hash, HEAD~1."
ROUNDS_HELP = "With --base: runs of each commit in each mode, an even number; default: 4."
RANKS_HELP = "Ranks that all-reduce the first gradients, and train the reruns where they can."
REPETITIONS_HELP = "With --ranks: how often they all-reduce."
ARM_HELP = 'A command of this commit: NAME="COMMAND"; give it twice or more.'
SEEDS_HELP = "With --arm: runs of each, every one with a seed of its own; default: 3."
PRINT_HELP = "Print a study.json or compare.json; nothing is trained."
HTML_HELP = "With --print: write the page of a study.json again."
ONLY_HELP = "Variations to try, separated by commas."
SKIP_HELP = "Variations to skip, separated by commas."
BUDGET_HELP = "Start no run that would end after this many seconds."
LIST_HELP = "List what can be varied, then exit."


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
    with held_out(request.out, adapters.files):
        cost = measure_cost(request, adapters, attribute=attribute)
        _deliver(request, "cost", cost, cost_markdown(cost))
    show(cost, cost_view(cost), as_json=as_json)
    raise typer.Exit(int(ExitCode.FAIL if cost.over_budget else ExitCode.PASS))


def noise_command(  # noqa: PLR0913 - each parameter is an option of the command
    config: Config = "",
    out: Out = OUT,
    runs: Annotated[int | None, typer.Option(min=2, max=100, help=RUNS_HELP)] = None,
    ranks: Annotated[int | None, typer.Option(min=2, max=64, help=RANKS_HELP)] = None,
    repetitions: Annotated[int, typer.Option(min=2, max=10_000, help=REPETITIONS_HELP)] = 50,
    *,
    allow_dirty: AllowDirty = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Measure run-to-run noise.

    Repeats the default mode, and prints tolerances to copy. With --ranks real ranks all-reduce the
    first gradients many times on a busy machine.

    Example: repro-gate noise --runs 10 --config examples/digits/repro-gate.yml
    """
    call = local_call(config, out, allow_dirty=allow_dirty)
    request, adapters = prepare(call, progress_for(quiet=quiet or as_json, verbose=verbose))
    with held_out(request.out, adapters.files):
        asked = AskedRanks(ranks=ranks, repetitions=repetitions) if ranks else None
        noise = measure_noise(request, adapters, runs=runs, asked=asked)
        _deliver(request, "noise", noise, noise_markdown(noise))
    show(noise, noise_view(noise), as_json=as_json)


def compare_command(  # noqa: PLR0913 - each parameter is an option of the command
    base: Annotated[str | None, typer.Option("--base", help=BASE_HELP)] = None,
    arm: Annotated[list[str] | None, typer.Option("--arm", help=ARM_HELP)] = None,
    config: Config = "",
    out: Out = OUT,
    runs: Annotated[int | None, typer.Option(min=2, max=50, help=ROUNDS_HELP)] = None,
    commit: CommitToTrain = "",
    *,
    seeds: Annotated[int | None, typer.Option(min=1, max=100, help=SEEDS_HELP)] = None,
    printed: Annotated[Path | None, typer.Option("--print", help=PRINT_HELP)] = None,
    html: Annotated[Path | None, typer.Option("--html", help=HTML_HELP)] = None,
    default_mode: DefaultMode = False,
    allow_dirty: AllowDirty = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Train another commit too and compare.

    Says whether they are equal, and how their speed compares. Needs no baseline, judges nothing.
    With --arm two or more commands of this commit are compared, over the same seeds.

    Example: repro-gate compare --base main --config examples/digits/repro-gate.yml
    """
    if sum(option is not None for option in (base, arm, printed)) != 1:
        raise SettingsError(
            "compare takes one of --base, --arm and --print",
            hint='`--base main` compares commits, `--arm one="python train.py" --arm ...` two or '
            "more commands, `--print study.json` shows an earlier comparison.",
        )
    _refuse_unread(
        ("--runs", "--base", runs is not None and base is None),
        ("--seeds", "--arm", seeds is not None and arm is None),
        ("--default-mode", "--arm", default_mode and arm is None),
        ("--html", "--print", html is not None and printed is None),
    )
    if printed is not None:
        _print_again(printed, html, as_json=as_json)
        return
    if arm is not None:
        call = local_call(config, out, commit=commit, allow_dirty=allow_dirty)
        arms = parsed_arms(arm)
        request, adapters = prepare(call, progress_for(quiet=quiet or as_json, verbose=verbose))
        mode = mode_of(default_mode=default_mode)
        study = write_study(request, adapters, StudyKind.ARMS, arms, runs=seeds or SEEDS, mode=mode)
        show_study(study, out, as_json=as_json)
        return
    base = base or ""
    call = local_call(config, out, base=base, commit=commit, allow_dirty=allow_dirty)
    request, adapters = prepare(call, progress_for(quiet=quiet or as_json, verbose=verbose))
    with held_out(request.out, adapters.files):
        comparison = compare_commits(request, adapters, base_name=base, rounds=runs or ROUNDS)
        page = compare_page(comparison.document, comparison.runs)
        FILES.write_bytes(request.out / "compare.json", write_document(comparison.document))
        FILES.write_bytes(request.out / "compare.html", page.encode("utf-8"))
    show(comparison.document, compare_view(comparison.document), as_json=as_json)
    if not as_json:
        written = f"\nWritten to {request.out}: compare.html, compare.json, evidence"
        console().print(written, style="dim", soft_wrap=True)


def _refuse_unread(*options: tuple[str, str, bool]) -> None:
    """Raise `SettingsError` for the first option that this call would ignore.

    An item is the option, the option that it needs, and whether it would be ignored.
    """
    for option, other, ignored in options:
        if ignored:
            raise SettingsError(f"{option} goes with {other}", hint=f"Leave {option} out.")


def _print_again(path: Path, html: Path | None, *, as_json: bool) -> None:
    printable = read_printable(FILES, path)
    if isinstance(printable, StudyDocument):
        if html is not None:
            FILES.write_bytes(html, study_page(printable).encode("utf-8"))
        show(printable, study_view(printable), as_json=as_json)
        return
    if html is not None:
        raise SettingsError(
            f"{path}: compare.json alone draws no page",
            hint="Its page is compare.html beside it; --html redraws a study.json.",
        )
    show(printable, compare_view(printable), as_json=as_json)


def shake_command(  # noqa: PLR0913 - each parameter is an option of the command
    config: Config = "",
    out: Out = OUT,
    only: Annotated[str | None, typer.Option("--only", help=ONLY_HELP)] = None,
    skip: Annotated[str | None, typer.Option("--skip", help=SKIP_HELP)] = None,
    budget: Annotated[float | None, typer.Option("--budget", help=BUDGET_HELP)] = None,
    commit: CommitToTrain = "",
    *,
    list_all: Annotated[bool, typer.Option("--list", help=LIST_HELP)] = False,
    allow_dirty: AllowDirty = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Vary one thing per run: the result must hold.

    Names what the result depends on, and the line that reads it. Exit code 1 if there is such
    a thing.

    Example: repro-gate shake --skip cpu-load --config examples/digits/repro-gate.yml
    """
    if list_all:
        console().print(variations_view())
        return
    asked = Asked(variations=chosen_variations(only, skip), budget_seconds=checked_budget(budget))
    call = local_call(config, out, commit=commit, allow_dirty=allow_dirty)
    request, adapters = prepare(call, progress_for(quiet=quiet or as_json, verbose=verbose))
    with held_out(request.out, adapters.files):
        shaken = shake(request, adapters, asked)
        _deliver(request, "shake", shaken, shaken_markdown(shaken))
    show(shaken, shaken_view(shaken), as_json=as_json)
    raise typer.Exit(int(_exit_code(shaken)))


def _exit_code(shaken: ShakenTraining) -> ExitCode:
    if shaken.dependent or not shaken.repeatable:
        return ExitCode.FAIL
    # nothing compared is never a pass (T4 in docs/architecture.md)
    return ExitCode.PASS if shaken.tried else ExitCode.ERROR


def _deliver(request: GateRequest, name: str, document: Document, markdown: str) -> None:
    FILES.write_bytes(request.out / f"{name}.json", write_document(document))
    FILES.write_bytes(request.out / f"{name}.md", markdown.encode())
