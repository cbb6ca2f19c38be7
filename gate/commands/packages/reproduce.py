"""`repro-gate reproduce`: a package is run again here, and judged by its own numbers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from gate.adapters.clock import SystemClock
from gate.adapters.sigstore.verifier import verify_identity
from gate.attestation.keys import read_trusted_keys
from gate.attestation.seal_files import find_seals
from gate.attestation.verify import verify_identity_package, verify_package
from gate.commands.options import AsJson, Quiet, Verbose, progress_for, show
from gate.commands.program import FILES, INTERRUPTS, MAX_DOCUMENT_BYTES
from gate.errors import EvidenceError, SettingsError
from gate.pipelines.entry import build_adapters
from gate.pipelines.offline.kept_evidence import KeptEvidence, open_kept_package
from gate.pipelines.reproduction.opening import ReproductionCall, open_for_reproduction
from gate.pipelines.reproduction.reproduce import reproduce
from gate.records.published.reproduction import SealChecked
from gate.records.sealed.attestation import Expected
from gate.records.sealed.identity import Identity, IdentitySigned
from gate.report.terminal.reproduction_view import reproduction_view

OUT: Final = Path("repro-gate-reproduced")
MAX_SEEDS: Final = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trust:
    """Who has to have sealed; `unsealed` checks nothing."""

    keys: Path | None
    identity: Identity
    root: Path | None
    unsealed: bool


def reproduce_command(  # noqa: PLR0913 - each parameter is an option of the command
    package: Annotated[Path, typer.Argument(help="The package.tar to run again.")],
    trusted_keys: Annotated[
        Path | None, typer.Option(help="Trust file, from a source that you trust.")
    ] = None,
    repository: Annotated[
        Path | None,
        typer.Option(help="A clone that has the commit; default: here, else the package's code."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for everything that is written.")
    ] = OUT,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="Where declared data lies on this machine."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=0, max=MAX_SEEDS, help="Train so many seeds here: mean and spread.")
    ] = 0,
    *,
    code: Annotated[
        str, typer.Option(help="Another commit of the clone to run in its place.")
    ] = "",
    work_tree: Annotated[
        bool, typer.Option("--work-tree", help="Run the clone's files as they are now.")
    ] = False,
    unsealed: Annotated[
        bool, typer.Option("--unsealed", help="Run a package whose seal nobody checks.")
    ] = False,
    certificate_identity: Annotated[
        str, typer.Option(help="For a seal without a key: the workflow that must have sealed.")
    ] = "",
    certificate_oidc_issuer: Annotated[
        str, typer.Option(help="Who must have told that identity.")
    ] = "",
    trusted_root: Annotated[
        Path | None,
        typer.Option(help="Certificates and log keys to trust; default: the public services'."),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Run a sealed package again and compare.

    Needs no baseline: it is judged by the package's own numbers. Exit code 0 when it is reproduced.

    Example: repro-gate reproduce package.tar --trusted-keys trusted-keys.json
    """
    identity = Identity(name=certificate_identity, issuer=certificate_oidc_issuer)
    trust = _Trust(keys=trusted_keys, identity=identity, root=trusted_root, unsealed=unsealed)
    started_at = SystemClock().now()
    progress = progress_for(quiet=quiet or as_json, verbose=verbose)
    progress.step("checking the package")
    call = ReproductionCall(
        package=package,
        out=out if out.is_absolute() else Path.cwd() / out,
        repository=repository,
        code=code or None,
        work_tree=work_tree,
        data=_places(data or []),
        seeds=seeds,
    )
    kept = open_kept_package(FILES, package)
    # before anything runs: what is started below is the package's own command
    seal, sha256 = _checked(package, kept, trust)
    with FILES.held_folder(call.out):
        opened = open_for_reproduction(
            call,
            kept,
            FILES,
            lambda top: build_adapters(FILES, top, progress, INTERRUPTS, os.environ),
        )
        found = reproduce(opened, seal, sha256, seeds=seeds, started_at=started_at)
    show(found, reproduction_view(found), as_json=as_json)
    raise typer.Exit(int(found.exit_code))


def _places(words: list[str]) -> dict[str, Path]:
    pairs = [word.partition("=") for word in words]
    wrong = next((name for name, _, path in pairs if not name or not path), None)
    if wrong is not None:
        raise SettingsError(
            "--data takes NAME=PATH", hint="For example: --data mini=/srv/data/mini"
        )
    return {name: Path(path) for name, _, path in pairs}


def _checked(package: Path, kept: KeptEvidence, trust: _Trust) -> tuple[SealChecked, str]:
    """Who sealed the package, and its SHA-256; `AttestationError` where its seal does not hold."""
    if trust.unsealed:
        return SealChecked(), kept.package_sha256
    if kept.call is None:
        raise EvidenceError(
            "the package does not say which call it is of",
            hint="Reproduce it with the repro-gate version that made it.",
        )
    expected = Expected(commit=kept.call.commit)
    if trust.keys is not None:
        data = FILES.read_bytes(trust.keys, max_bytes=MAX_DOCUMENT_BYTES)
        trusted = read_trusted_keys(data, str(trust.keys))
        found = verify_package(package, find_seals(package, FILES), trusted, expected, FILES)
    elif trust.identity.name and trust.identity.issuer:
        root = FILES.read_bytes(trust.root, max_bytes=MAX_DOCUMENT_BYTES) if trust.root else None

        def check(content: bytes) -> IdentitySigned:
            return verify_identity(content, trust.identity, root)

        seals = find_seals(package, FILES)
        found = verify_identity_package(package, seals, check, expected, FILES)
    else:
        raise SettingsError(
            "nobody is trusted yet",
            hint="Give --trusted-keys, or for a seal without a key --certificate-identity and "
            "--certificate-oidc-issuer. --unsealed runs a package that nobody vouches for.",
        )
    return SealChecked(key_id=found.key_id, identity=found.identity), found.package_sha256
