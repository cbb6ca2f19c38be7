"""The commands `run`, `judge` and `diagnose`: the pipeline of `gate`, split over jobs.

`run` executes untrusted code and has no secret. `judge` may have secrets and executes nothing of
the pull request. `diagnose` reads the evidence that either kept, and has neither secrets nor code
to run.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gate.commands.options import (
    OUT,
    AllowPlainKey,
    AsJson,
    BaseToRun,
    CommitToTrain,
    Config,
    Out,
    Quiet,
    QuietVerdict,
    Sign,
    SigningKey,
    Verbose,
    local_call,
    prepare,
    progress_for,
    show,
    signer_place,
)
from gate.commands.outcome import print_outcome
from gate.commands.program import FILES
from gate.isolation.confined_look import LARGE_ANSWER_BYTES, read_apart, reading_seconds
from gate.package.secrets import FileSecrets
from gate.pipelines.delivery import run_and_deliver
from gate.pipelines.diagnose import EQUAL, Retold, equal_words, kept_diagnosis, otherwise_words
from gate.pipelines.gate import judging, run_only
from gate.pipelines.imported_evidence import refuse_missing
from gate.pipelines.kept_evidence import open_kept_evidence, read_kept_baseline
from gate.pipelines.packed_diagnosis import diagnose_again
from gate.report.brief import brief_of, cause_words
from gate.report.context import diagnosis_section
from gate.report.diagnosis_sections import growth_section, trace_sections
from gate.report.escape import clean
from gate.report.layout import Limits
from gate.report.terminal import change_lines
from gate.report.terminal_lines import Sentence, section_view
from gate.report.wording import short
from gate.settings.event import SigningMethod
from gate.text.documents import RecordForm
from gate.text.untrusted_text import safe_line
from gate.verdict.verdict import judged_words

LIMITS: Final = Limits(deltas=5, rows=24)


def diagnosis_view(retold: Retold, *, package: bool) -> RenderableType:
    """Show what happened, whether this change is the cause, suspects, traces and missing evidence.

    `package` is true for evidence out of a package, whose seal this command does not check.
    """
    verdict = retold.verdict
    parts: list[RenderableType] = []
    if verdict is None:
        parts += [*_decided(retold, EQUAL), Sentence(clean(equal_words(retold)))]
    else:
        brief = brief_of(verdict)
        outcome = judged_words(verdict.outcome, passes=verdict.passes)
        head = f"{outcome}, commit {short(verdict.commit)}"
        style = "bold" if verdict.passes else "bold red"
        parts += _decided(retold, verdict.outcome) or [Text(clean(head), style=style)]
        parts.append(Sentence(clean(brief.happened)))
        parts += change_lines(brief.change)
        parts.append(Sentence(f"Is it this change? {clean(brief.this_change)}"))
        sections = (
            diagnosis_section(verdict, LIMITS, cause_words),
            *trace_sections(verdict, LIMITS),
            growth_section(verdict, LIMITS),
        )
        parts += [section_view(section) for section in sections if section is not None]
    for sentence in retold.missing:
        parts += [Text(""), Sentence(clean(sentence), lead="Not here: ", lead_style="yellow")]
    if package:
        words = "The package's seal was not checked: `repro-gate verify` does that."
        parts += [Text(""), Sentence(words, style="dim")]
    return Group(*parts)


def _decided(retold: Retold, evidence_alone: str) -> list[RenderableType]:
    """Return the outcome of a call that decided otherwise than its evidence alone; else nothing."""
    if retold.decided is None:
        return []
    head = f"{retold.decided.value}, commit {short(retold.commit)}"
    words = otherwise_words(retold.decided, evidence_alone)
    return [Text(clean(head), style="bold"), Sentence(clean(words))]


# the diagnosis, when its evidence was made, and whether that is a package
DiagnosedAgain = tuple[Retold, str, bool]
DIAGNOSED: Final[RecordForm[DiagnosedAgain]] = RecordForm(DiagnosedAgain)


def run_command(
    config: Config = "",
    out: Out = OUT,
    base: BaseToRun = "",
    commit: CommitToTrain = "",
    *,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train as `gate` does, for `judge` to judge.

    Writes the evidence folder and judges nothing.

    Example: repro-gate run --out ran && repro-gate judge ran/evidence
    """
    call = local_call(config, out, base=base, commit=commit)
    request, adapters = prepare(call, progress_for(quiet=quiet, verbose=verbose))
    sys.stdout.write(f"evidence: {run_only(request, adapters)}\n")


def judge_command(  # noqa: PLR0913 - each parameter is an option of the command
    evidence: Annotated[Path, typer.Argument(help="Evidence folder that `run` wrote.")],
    config: Config = "",
    out: Out = OUT,
    base: Annotated[str, typer.Option(help="Base commit that `run` was given, if any.")] = "",
    commit: Annotated[
        str, typer.Option(help="Commit that the evidence must be about; default: HEAD.")
    ] = "",
    signing_key: SigningKey = None,
    *,
    sign: Sign = SigningMethod.KEY,
    allow_plain_key: AllowPlainKey = False,
    quiet: QuietVerdict = False,
    as_json: AsJson = False,
) -> None:
    """Judge the evidence of another job's `run`.

    Nothing is trained, and nothing of the evidence is executed.

    Example: repro-gate judge ran/evidence --commit HEAD
    """
    # HEAD and not the work tree: another job trained a commit, and cannot have seen local changes.
    place = signer_place(sign, signing_key)
    call = local_call(config, out, base=base, commit=commit or "HEAD", sign=sign)
    request, adapters = prepare(call, progress_for(quiet=quiet or as_json, verbose=False))
    # Check the evidence first: delivery empties the output folder, and a mistyped path must not
    # cost the package of the last call.
    refuse_missing(request, adapters.files, evidence)
    outcome = run_and_deliver(
        replace(request, imported_runs=True),
        adapters,
        FileSecrets(place, FILES, os.environ),
        judging(evidence),
        allow_plain_key=allow_plain_key,
    )
    print_outcome(outcome, as_json=as_json, quiet=quiet)
    raise typer.Exit(int(outcome.verdict.exit_code))


def diagnose_command(
    evidence: Annotated[
        Path, typer.Argument(metavar="EVIDENCE|PACKAGE", help="Evidence folder, or package.tar.")
    ],
    baseline: Annotated[
        Path | None,
        typer.Option(help="Folder of the baseline to compare with; a package holds its own."),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Repeat the diagnosis of kept evidence.

    Offline: nothing is trained, and no seal is checked. Says what the evidence lacks.

    Example: repro-gate diagnose repro-gate-out/evidence
    """

    def look() -> DiagnosedAgain:
        kept = open_kept_evidence(FILES, evidence, with_outcome=True)
        if baseline is not None:
            kept = replace(kept, baseline=read_kept_baseline(FILES, baseline))
        # here as well: to judge is to compare numbers that a stranger wrote
        return diagnose_again(kept), kept.evidence.created_at, kept.package

    diagnosis, created_at, package = read_apart(
        DIAGNOSED,
        look,
        what=safe_line(str(evidence)),
        seconds=reading_seconds(evidence),
        answer_bytes=LARGE_ANSWER_BYTES,
    )
    document = kept_diagnosis(diagnosis, created_at)
    show(document, diagnosis_view(diagnosis, package=package), as_json=as_json)
