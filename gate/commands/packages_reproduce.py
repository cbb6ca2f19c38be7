"""`repro-gate reproduce`: a package is run again here, and judged by its own numbers."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from gate.commands.options import AsJson, Quiet, Verbose, progress_for, show
from gate.commands.program import FILES, INTERRUPTS
from gate.commands.reproduce import reproduction_view
from gate.commands.trust import (
    CertificateIdentity,
    CertificateIssuer,
    Trust,
    TrustedKeysFile,
    TrustedRootFile,
    chosen_trust,
)
from gate.errors import EvidenceError, SettingsError
from gate.isolation.confined_look import LARGE_ANSWER_BYTES, read_apart, reading_seconds
from gate.package.identity import Identity
from gate.package.seal_records import Expected
from gate.pipelines.adapters import Adapters
from gate.pipelines.entry import build_adapters
from gate.pipelines.kept_evidence import KeptEvidence, open_kept_package
from gate.pipelines.opening import (
    OLD_HINT,
    ReproductionCall,
    check_same_file,
    open_for_reproduction,
)
from gate.pipelines.reproduce import reproduce
from gate.pipelines.reproduction import SealChecked
from gate.system.clock import SystemClock
from gate.system.progress import Progress
from gate.text.documents import RecordForm
from gate.text.untrusted_text import safe_line

OUT: Final = Path("repro-gate-reproduced")
MAX_SEEDS: Final = 20


Opened = tuple[KeptEvidence, SealChecked]
OPENED: Final[RecordForm[Opened]] = RecordForm(Opened)

Repository = Annotated[
    Path | None,
    typer.Option(help="A clone that has the commit; default: here, else the package's code."),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for everything that is written.")]
Data = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=PATH", help="Where declared data lies on this machine."),
]
Seeds = Annotated[
    int, typer.Option(min=0, max=MAX_SEEDS, help="Train so many seeds here: mean and spread.")
]
Code = Annotated[str, typer.Option(help="Another commit of the clone to run in its place.")]
WorkTree = Annotated[
    bool, typer.Option("--work-tree", help="Run the clone's files as they are now.")
]
Unsealed = Annotated[
    bool, typer.Option("--unsealed", help="Run a package whose seal nobody checks.")
]


def reproduce_command(  # noqa: PLR0913 - each parameter is an option of the command
    package: Annotated[Path, typer.Argument(help="The package.tar to run again.")],
    trusted_keys: TrustedKeysFile = None,
    repository: Repository = None,
    out: Out = OUT,
    data: Data = None,
    seeds: Seeds = 0,
    *,
    code: Code = "",
    work_tree: WorkTree = False,
    unsealed: Unsealed = False,
    certificate_identity: CertificateIdentity = "",
    certificate_oidc_issuer: CertificateIssuer = "",
    trusted_root: TrustedRootFile = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Run a sealed package again and compare.

    Needs no baseline: it is judged by the package's own numbers. Exit code 0 when it is reproduced.

    Example: repro-gate reproduce package.tar --trusted-keys trusted-keys.json
    """
    started_at = SystemClock().now()
    progress = progress_for(quiet=quiet or as_json, verbose=verbose)
    call = ReproductionCall(
        package=package,
        out=out if out.is_absolute() else Path.cwd() / out,
        repository=repository,
        code=code or None,
        work_tree=work_tree,
        data=_places(data or []),
        seeds=seeds,
    )
    identity = Identity(name=certificate_identity, issuer=certificate_oidc_issuer)
    trust = None if unsealed else chosen_trust(trusted_keys, identity, trusted_root)
    progress.step("checking the package")
    # before anything runs: what is started below is the package's own command
    kept, seal = _opened(package, trust)
    with FILES.held_folder(call.out):
        opened = open_for_reproduction(call, kept, FILES, partial(_adapters, progress))
        found = reproduce(opened, seal, seeds=seeds, started_at=started_at)
    show(found, reproduction_view(found), as_json=as_json)
    raise typer.Exit(int(found.exit_code))


def _adapters(progress: Progress, top: Path) -> Adapters:
    return build_adapters(FILES, top, progress, INTERRUPTS, os.environ)


def _places(words: list[str]) -> dict[str, Path]:
    pairs = [word.partition("=") for word in words]
    wrong = next((name for name, _, path in pairs if not name or not path), None)
    if wrong is not None:
        raise SettingsError(
            "--data takes NAME=PATH", hint="For example: --data mini=/srv/data/mini"
        )
    return {name: Path(path) for name, _, path in pairs}


def _opened(package: Path, trust: Trust | None) -> Opened:
    """What the package holds and who sealed it, read in a confined child."""
    if trust is not None:
        trust.make_ready()

    def look() -> Opened:
        kept = open_kept_package(FILES, package)
        return kept, _checked(package, kept, trust)

    return read_apart(
        OPENED,
        look,
        what=safe_line(str(package)),
        seconds=reading_seconds(package),
        answer_bytes=LARGE_ANSWER_BYTES,
    )


def _checked(package: Path, kept: KeptEvidence, trust: Trust | None) -> SealChecked:
    """Who sealed the package; `AttestationError` where its seal does not hold."""
    if trust is None:
        return SealChecked()
    if kept.call is None:
        raise EvidenceError("the package does not say which call it is of", hint=OLD_HINT)
    found = trust.verified(package, Expected(commit=kept.call.commit))
    check_same_file(kept, found.package_sha256)
    return SealChecked(key_id=found.key_id, identity=found.identity)
