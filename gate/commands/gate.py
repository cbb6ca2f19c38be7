"""`repro-gate gate`: train twice, judge, and write all reports."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gate.commands.options import (
    OUT,
    AllowDirty,
    AllowPlainKey,
    AsJson,
    BaseToRun,
    CommitToTrain,
    Config,
    Out,
    QuietVerdict,
    Sign,
    SigningKey,
    Verbose,
    local_call,
    prepare,
    progress_for,
    signer_place,
)
from gate.commands.outcome import print_outcome
from gate.commands.program import FILES
from gate.errors import SettingsError
from gate.package.secrets import FileSecrets
from gate.pipelines.delivery import run_and_deliver
from gate.pipelines.gate import gate
from gate.pipelines.study_runs import packed_study
from gate.settings.event import SigningMethod
from gate.verdict.request import GateRequest

REPEATS_HELP = "Strict runs, more than `repeats` of the settings; all must be equal."
STUDY_HELP = "A study.json of this commit, to put into the package."


def gate_command(  # noqa: PLR0913 - each parameter is an option of the command
    config: Config = "",
    out: Out = OUT,
    base: BaseToRun = "",
    commit: CommitToTrain = "",
    signing_key: SigningKey = None,
    trusted_keys: Annotated[
        str,
        typer.Option(help="Trust file to name in the verify command; default: the settings'."),
    ] = "",
    *,
    repeats: Annotated[int | None, typer.Option(min=2, max=10, help=REPEATS_HELP)] = None,
    study: Annotated[Path | None, typer.Option("--study", help=STUDY_HELP)] = None,
    sign: Sign = SigningMethod.KEY,
    allow_plain_key: AllowPlainKey = False,
    allow_dirty: AllowDirty = False,
    quiet: QuietVerdict = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Train twice, judge, and write all reports.

    Exit code 0 only for a verified pass.

    Example: repro-gate gate --config examples/digits/repro-gate.yml --out demo-out
    """
    place = signer_place(sign, signing_key)
    call = local_call(config, out, base=base, commit=commit, allow_dirty=allow_dirty, sign=sign)
    request, adapters = prepare(call, progress_for(quiet=quiet or as_json, verbose=verbose))
    request = _with_repeats(request, repeats)
    if study is not None:
        request = replace(request, study=packed_study(request, adapters, study))
    if sign is SigningMethod.SIGSTORE:
        # imported here because the HTTP modules are slow to import, and most calls do not need them
        from gate.action.main import isolated  # noqa: PLC0415

        # The job's request token for an identity is in this process's environment, where a
        # training under the same account could read it in /proc (T1).
        adapters = isolated(adapters)
    outcome = run_and_deliver(
        request,
        adapters,
        FileSecrets(place, FILES, os.environ),
        gate,
        trusted_keys=trusted_keys,
        allow_plain_key=allow_plain_key,
    )
    print_outcome(outcome, as_json=as_json, quiet=quiet)
    raise typer.Exit(int(outcome.verdict.exit_code))


def _with_repeats(request: GateRequest, repeats: int | None) -> GateRequest:
    """Set the number of strict runs that `--repeats` asks for.

    Raises `SettingsError` for fewer than the settings ask for: the committed policy decides how
    many runs a pass needs, and an option must not weaken it.
    """
    least = request.settings.repeats
    if repeats is not None and repeats < least:
        raise SettingsError(
            f"--repeats {repeats}: the settings ask for {least}",
            hint="Leave the option out, or lower repeats in the settings file.",
        )
    return replace(request, repeats=repeats)
