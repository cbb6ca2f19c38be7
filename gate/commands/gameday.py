"""`repro-gate gameday`: plant one fault of each kind into a copy, and check the gate's answer.

A fault is good if it was planted, caught, named by its failure mode, and alerted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gate.commands.options import (
    AsJson,
    Config,
    Quiet,
    Verbose,
    console,
    local_call,
    prepare,
    progress_for,
    show,
)
from gate.commands.program import FILES
from gate.errors import ExitCode
from gate.pipelines.gameday import Gameday, Play, PlayedFault, chosen_faults
from gate.pipelines.snapshots import held_out
from gate.report.escape import clean
from gate.report.layout import Cell, Section, table_of
from gate.report.terminal_lines import Sentence, section_view
from gate.text.documents import write_document

OUT: Final = Path("repro-gate-gameday")
DOCUMENT: Final = "gameday.json"


def gameday_command(  # noqa: PLR0913 - each parameter is an option of the command
    config: Config = "",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the copies.")] = OUT,
    only: Annotated[
        str | None,
        typer.Option("--only", help="Faults to plant, such as F3, with commas between them."),
    ] = None,
    *,
    built_in: Annotated[
        bool, typer.Option("--built-in", help="Plant all into the small built-in training.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Plant faults into copies of the project.

    Says which the gate caught, named and alerted, and how long each took. Exit code 1
    when it missed one.

    Example: repro-gate gameday --only F1,F4
    """
    faults = chosen_faults(only)
    progress = progress_for(quiet=quiet or as_json, verbose=verbose)
    request, adapters = prepare(local_call(config, out), progress)
    with held_out(request.out, FILES):
        played = Play(request, adapters, os.environ, built_in=built_in).run(faults)
        FILES.write_bytes(request.out / DOCUMENT, write_document(played))
    if quiet and not as_json:
        bad = [fault.code for fault in played.faults if not fault.good]
        console().print("; ".join(bad) if bad else "all caught")
    else:
        show(played, gameday_view(played), as_json=as_json)
    good = all(fault.good for fault in played.faults)
    raise typer.Exit(int(ExitCode.PASS if good else ExitCode.FAIL))


def gameday_view(played: Gameday) -> RenderableType:
    """Show how many faults the gate handled, a row for each, and notes.

    The notes say why a fault was planted into the built-in training and why one was missed.
    """
    faults = played.faults
    good = sum(fault.good for fault in faults)
    head = f"{good} of {len(faults)} faults were caught, named and alerted"
    tables = [
        section_view(_section(title, [fault for fault in faults if fault.own == own]))
        for title, own in (("Into your project", True), ("Into the built-in training", False))
        if any(fault.own == own for fault in faults)
    ]
    why: dict[str, list[str]] = {}
    for fault in faults:
        if fault.why_built_in:
            why.setdefault(fault.why_built_in, []).append(fault.code)
    notes = [
        Sentence(clean(f"{', '.join(codes)} into the built-in training: {text}"), style="dim")
        for text, codes in why.items()
    ]
    notes += [
        Sentence(clean(f"{fault.code}: {fault.note}"), style="yellow")
        for fault in faults
        if not fault.good and fault.note
    ]
    style = f"bold {'green' if good == len(faults) else 'red'}"
    return Group(Text(head, style=style), *tables, *notes)


def _section(title: str, faults: Sequence[PlayedFault]) -> Section:
    rows = tuple(
        (
            Cell(fault.code),
            Cell(_yes(fault, fault.caught)),
            Cell(_yes(fault, fault.named)),
            Cell(_yes(fault, fault.alerted)),
            Cell(fault.outcome),
            Cell(fault.failure_mode.value),
            Cell(f"{fault.wall_seconds:.0f} s"),
        )
        for fault in faults
    )
    headings = ("Fault", "Caught", "Named", "Alerted", "Answer", "Mode", "Took")
    return Section(title=title, table=table_of(headings, rows, len(rows), 6))


def _yes(fault: PlayedFault, answer: bool) -> str:  # noqa: FBT001 - a cell's value
    if not fault.planted:
        return "not planted"
    return "yes" if answer else "NO"
