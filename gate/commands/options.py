"""Options that several commands share, and how a command becomes a request and prints a result."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType

from gate.commands.program import FILES, INTERRUPTS
from gate.errors import SettingsError
from gate.pipelines.adapters import Adapters
from gate.pipelines.call_setup import LocalCall, build_adapters, local_request
from gate.settings.event import SigningMethod
from gate.settings.signer_places import SignerPlace, read_signer_place
from gate.system.console import ConsoleProgress, Progress, QuietProgress, wide_enough
from gate.text.document import Document
from gate.text.documents import write_document
from gate.verdict.request import GateRequest

OUT = Path("repro-gate-out")

Config = Annotated[
    str,
    typer.Option("--config", "-c", help="Settings file; default: repro-gate.yml here, or above."),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for everything that is written.")]
AllowDirty = Annotated[
    bool, typer.Option("--allow-dirty", help="Train uncommitted changes too; never sealed.")
]
BaseToRun = Annotated[
    str,
    typer.Option(
        "--base", help="Commit to compare with: names changed lines, and runs where results differ."
    ),
]
CommitToTrain = Annotated[
    str, typer.Option("--commit", help="Commit to train; default: HEAD, clean.")
]
AllowPlainKey = Annotated[
    bool, typer.Option("--allow-plain-key", help="Accept a key without a pass phrase.")
]
SigningKey = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="Key that seals a pass: a PEM file (pass phrase in REPRO_GATE_PASSPHRASE), "
        "pkcs11:…, vault:MOUNT/KEY or exec:COMMAND.",
    ),
]
Sign = Annotated[
    SigningMethod,
    typer.Option("--sign", help="What seals a pass: a key, or in a GitHub job its identity."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result, no progress.")]
QuietVerdict = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print one line: result and cause.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show what the training prints.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the document as JSON on stdout.")]
Reason = Annotated[
    str, typer.Option("--reason", help="Why the result may change; stored in the file.")
]


def local_call(
    config: str,
    out: Path,
    *,
    base: str = "",
    commit: str = "",
    allow_dirty: bool | None = None,
    sign: SigningMethod = SigningMethod.KEY,
) -> LocalCall:
    """Return the call that the options describe, made from the current folder.

    `allow_dirty` is None for a verb without that option.
    """
    return LocalCall(
        config=config,
        start=Path.cwd(),
        out=out,
        base=base,
        commit=commit,
        allow_dirty=allow_dirty,
        sign=sign,
    )


def signer_place(sign: SigningMethod, signing_key: str | None) -> SignerPlace | None:
    """Return where the signing key is, or None if the call names none.

    Raises `SettingsError` for a key together with `--sign sigstore`, and for a text that names no
    place of a key.
    """
    if signing_key is None:
        return None
    # refused because one of the two options would be silently ignored
    if sign is SigningMethod.SIGSTORE:
        raise SettingsError(
            "--sign sigstore takes no --signing-key", hint="Leave one of the two out."
        )
    return read_signer_place(signing_key)


def prepare(call: LocalCall, progress: Progress) -> tuple[GateRequest, Adapters]:
    """Read settings, baseline and commits into a request, and build the adapters for it."""
    request = local_request(call, FILES)
    return request, build_adapters(FILES, request.top, progress, INTERRUPTS, os.environ)


def progress_for(*, quiet: bool, verbose: bool) -> Progress:
    """Return the progress reporter: silent if `quiet`, else on standard error.

    `verbose` also shows what the training prints.
    """
    return QuietProgress() if quiet else ConsoleProgress(sys.stderr, verbose=verbose)


def console() -> Console:
    """Return a console on standard output that reads no markup, since results quote a training."""
    return wide_enough(Console(highlight=False, markup=False, emoji=False))


def show(document: Document, view: RenderableType, *, as_json: bool) -> None:
    """Print a result on standard output: `view` for a person, or `document` as JSON."""
    if as_json:
        sys.stdout.write(write_document(document).decode("utf-8"))
        return
    # `crop=False`: a line with a command is never cut, see `gate/report/terminal_lines.py`
    console().print(view, crop=False)


def data_places(words: list[str]) -> dict[str, Path]:
    """Return the path of each declared data set that `--data NAME=PATH` names.

    Raises `SettingsError` for any other form.
    """
    pairs = [word.partition("=") for word in words]
    wrong = next((name for name, _, path in pairs if not name or not path), None)
    if wrong is not None:
        raise SettingsError(
            "--data takes NAME=PATH", hint="For example: --data mini=/srv/data/mini"
        )
    return {name: Path(path) for name, _, path in pairs}
