"""The commands `run`, `judge` and `diagnose`: the pipeline of `gate` in parts.

The first runs untrusted code and holds no secret; the second may hold secrets and runs nothing;
the third reads what either kept, and does neither.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from gate.commands.diagnosis_view import diagnosis_view, kept_diagnosis
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
    print_outcome,
    progress_for,
    show,
    signer_place,
)
from gate.commands.program import FILES
from gate.isolation.confined_look import LARGE_ANSWER_BYTES, read_apart, reading_seconds
from gate.package.secrets import FileSecrets
from gate.pipelines.delivery import judging, run_and_deliver, run_only
from gate.pipelines.diagnose import diagnose_kept
from gate.pipelines.kept_evidence import KeptEvidence, open_kept_evidence, read_kept_baseline
from gate.settings.mode import SigningMethod
from gate.text.documents import RecordForm
from gate.text.untrusted_text import safe_line

KEPT: Final[RecordForm[KeptEvidence]] = RecordForm(KeptEvidence)


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
    # a commit, never the work tree: evidence of another job cannot be about files that lie here
    place = signer_place(sign, signing_key)
    call = local_call(config, out, base=base, commit=commit or "HEAD", sign=sign)
    request, adapters = prepare(call, progress_for(quiet=quiet or as_json, verbose=False))
    outcome = run_and_deliver(
        replace(request, imported_runs=True),
        adapters,
        FileSecrets(place, FILES, os.environ),
        judging(evidence),
        allow_plain_key=allow_plain_key,
    )
    print_outcome(outcome, as_json=as_json, quiet=quiet)
    raise typer.Exit(int(outcome.exit_code))


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

    Offline: nothing is trained or judged, and no seal is checked. Says what the evidence lacks.

    Example: repro-gate diagnose repro-gate-out/evidence
    """

    def look() -> KeptEvidence:
        kept = open_kept_evidence(FILES, evidence)
        if baseline is None:
            return kept
        return replace(kept, baseline=read_kept_baseline(FILES, baseline))

    kept = read_apart(
        KEPT,
        look,
        what=safe_line(str(evidence)),
        seconds=reading_seconds(evidence),
        answer_bytes=LARGE_ANSWER_BYTES,
    )
    found = diagnose_kept(kept)
    document = kept_diagnosis(found, kept.evidence.created_at)
    show(document, diagnosis_view(found, package=kept.package), as_json=as_json)
