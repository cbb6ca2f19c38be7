"""`repro-gate bisect`: find the commit that moved the result or made it nondeterministic."""

from __future__ import annotations

import sys
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
    local_call,
    prepare,
    progress_for,
    show,
)
from gate.commands.program import FILES
from gate.errors import ExitCode, SettingsError
from gate.pipelines.bisect import BisectCall, Bisected, Bisection, Sought, bisect
from gate.pipelines.diagnose import kept_diagnosis
from gate.pipelines.snapshots import held_out
from gate.report.brief import brief_of, cause_words
from gate.report.context import diagnosis_section
from gate.report.escape import clean
from gate.report.layout import Cell, Limits, Section, table_of
from gate.report.terminal_lines import Sentence, section_view
from gate.report.wording import short
from gate.text.documents import write_document
from gate.text.phrases import count
from gate.text.untrusted_text import safe_line

OUT: Final = Path("repro-gate-bisect")
DOCUMENT: Final = "bisect.json"
SHOWN_FILES: Final = 20
LABEL_WIDTH: Final = 10
LIMITS: Final = Limits(deltas=5, rows=24)

Good = Annotated[str, typer.Option("--good", help="A commit with the right result.")]
Bad = Annotated[str, typer.Option("--bad", help="A later commit whose result differs.")]
FirstParent = Annotated[
    bool, typer.Option("--first-parent", help="Take a merge as one commit: a branch's own line.")
]
Skip = Annotated[
    list[str] | None, typer.Option("--skip", help="A commit not to train; repeatable.")
]
Evidence = Annotated[
    list[Path] | None,
    typer.Option(help="Evidence or package of an earlier gate call to use again; repeatable."),
]
WithinTolerance = Annotated[
    bool,
    typer.Option(
        "--within-tolerance",
        help="Treat a result within compare.tolerances of the good one as good.",
    ),
]
Confidence = Annotated[
    float,
    typer.Option(
        help="Confidence that no commit is called good by luck, where results differ rarely."
    ),
]
MaxRuns = Annotated[
    int, typer.Option(min=2, max=1000, help="Most runs of one commit, where results differ rarely.")
]


def bisect_command(  # noqa: PLR0913 - each parameter is an option of the command
    good: Good,
    bad: Bad,
    config: Config = "",
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the answer, and for runs to use again.")
    ] = OUT,
    *,
    first_parent: FirstParent = False,
    within_tolerance: WithinTolerance = False,
    skip: Skip = None,
    evidence: Evidence = None,
    confidence: Confidence = 0.95,
    max_runs: MaxRuns = 50,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Find the commit that moved the result.

    Or the commit that made it nondeterministic. Continues a call that was stopped. Exit code 1
    when commits that do not train hide it.

    Example: repro-gate bisect --good v1.2 --bad main
    """
    if not 0 < confidence < 1:
        raise SettingsError(
            f"--confidence {confidence:g}: must be between 0 and 1", hint="The default is 0.95."
        )
    progress = progress_for(quiet=quiet or as_json, verbose=verbose)
    request, adapters = prepare(local_call(config, out, commit=bad), progress)
    git = adapters.git
    call = BisectCall(
        good=git.resolve(good),
        bad=git.resolve(bad),
        skip=frozenset(map(git.resolve, skip or ())),
        first_parent=first_parent,
        within_tolerance=within_tolerance,
        confidence=confidence,
        max_runs=max_runs,
        evidence=tuple(evidence or ()),
    )
    with held_out(request.out, FILES):
        bisected = _with_diagnosis(bisect(request, adapters, call))
        FILES.write_bytes(request.out / DOCUMENT, write_document(bisected.document))
    document = bisected.document
    if quiet and not as_json:
        lines = (document.culprit.commit,) if document.culprit else document.left
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    else:
        show(document, bisection_view(bisected), as_json=as_json)
    raise typer.Exit(int(ExitCode.PASS if document.culprit else ExitCode.FAIL))


def _with_diagnosis(bisected: Bisected) -> Bisected:
    if bisected.retold is None:
        return bisected
    diagnosis = kept_diagnosis(bisected.retold, bisected.document.created_at)
    document = bisected.document.model_copy(update={"diagnosis": diagnosis})
    return Bisected(document=document, retold=bisected.retold)


def bisection_view(answer: Bisected) -> RenderableType:
    """Show the commit that was found, its changes and the difference, then every trained commit.

    If commits between did not train, the remaining candidates are shown instead.
    """
    document = answer.document
    parts: list[RenderableType] = [
        Text(_headline(document), style=f"bold {'green' if document.culprit else 'yellow'}")
    ]
    parts += [
        Sentence(safe_line(text), lead=f"  {label:<{LABEL_WIDTH}}", indent=LABEL_WIDTH + 2)
        for label, text in _rows(document)
    ]
    verdict = answer.retold.verdict if answer.retold is not None else None
    if verdict is not None:
        parts += [Text(""), Sentence(clean(brief_of(verdict).happened))]
        section = diagnosis_section(verdict, LIMITS, cause_words)
        parts += [section_view(section)] if section is not None else []
    parts += [Text(""), section_view(_trained(document))]
    return Group(*parts)


def _headline(document: Bisection) -> str:
    did = "moved the result"
    if document.sought is Sought.NONDETERMINISM:
        did = "made the result nondeterministic"
    if document.culprit is None:
        return f"One of {len(document.left)} commits {did}: those between did not train"
    return f"{document.culprit.commit} {did}"


def _rows(document: Bisection) -> list[tuple[str, str]]:
    culprit, rows = document.culprit, []
    if culprit is not None:
        more = len(culprit.changed) - SHOWN_FILES
        rows = [
            ("author", f"{culprit.author}, {culprit.committed_at}"),
            ("subject", culprit.subject),
            ("against", short(culprit.against)),
            *(("changed", path) for path in culprit.changed[:SHOWN_FILES]),
            *([("changed", f"{count(more, 'more file')}")] if more > 0 else []),
        ]
    rows += [("left", commit) for commit in document.left[:SHOWN_FILES]]
    if culprit is not None and document.sought is Sought.RESULT:
        text = f"in what follows, the baseline is the good neighbour {short(culprit.against)}"
        rows += [("baseline", text)]
    rows += [("certainty", _certainty(document))]
    rows += [("note", note) for note in document.notes]
    return rows


def _certainty(document: Bisection) -> str:
    if document.strikes is None or document.confidence is None:
        runs = count(document.needed_runs, "equal run")
        return f"each good commit gave the good result in {runs}"
    struck = round(document.strikes * document.sample)
    return (
        f"{document.confidence * 100:.3g} % that no commit was called good by luck, if a fault "
        f"strikes as often as in the bad end ({struck} of {document.sample} runs): "
        f"{document.needed_runs} equal runs made a commit good"
    )


def _trained(document: Bisection) -> Section:
    rows = tuple(
        (
            Cell(short(trial.commit), code=True),
            Cell(trial.answer.value),
            Cell(f"{trial.runs} ({trial.reused} reused)" if trial.reused else str(trial.runs)),
            Cell(safe_line(trial.why)),
            Cell(safe_line(trial.subject)),
        )
        for trial in document.judged
    )
    headings = ("commit", "answer", "runs", "why", "subject")
    return Section(title="Commits", table=table_of(headings, rows, len(rows)))
