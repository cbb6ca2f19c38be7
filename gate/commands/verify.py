"""`repro-gate verify`."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from gate.commands.explained import explain_by_identity, explain_by_key, identity_artifact
from gate.commands.options import AsJson
from gate.commands.program import FILES
from gate.commands.trust import (
    CertificateIdentity,
    CertificateIssuer,
    Trust,
    TrustedKeysFile,
    TrustedRootFile,
    chosen_trust,
)
from gate.commands.verified_view import verified_json, verified_text
from gate.errors import ExitCode, SettingsError
from gate.evidence.state_roots import StateName
from gate.isolation.confined_look import read_apart, reading_seconds
from gate.isolation.isolation import IsolationMode
from gate.package.content import check_model, check_states
from gate.package.identity import Identity
from gate.package.model_check import ModelCheck
from gate.package.seal_records import Expected, VerifiedPackage
from gate.system.clock import SystemClock
from gate.text.documents import RecordForm
from gate.text.plain_records import PlainForm
from gate.text.untrusted_text import escaped_lines, safe_line

Checked = tuple[VerifiedPackage, tuple[StateName, ...], ModelCheck | None]
CHECKED: Final[RecordForm[Checked]] = RecordForm(Checked)
AGE = re.compile(r"(?P<number>[0-9]{1,5})(?P<unit>[dh])")
AGE_UNITS = {"d": "days", "h": "hours"}


class LeastIsolation(StrEnum):
    """What a caller may demand: `none` accepts every training."""

    NONE = "none"
    UID = "uid"
    CONTAINER = "container"


def _age(text: str) -> timedelta:
    """Days or hours; raises `SettingsError` for anything else."""
    match = AGE.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"--max-age {text!r} is not an age", hint="Give days or hours, for example 90d or 12h."
        )
    return timedelta(**{AGE_UNITS[match["unit"]]: int(match["number"])})


Commit = Annotated[
    str, typer.Option(help="Full hash of the commit that the package must be about.")
]
Seals = Annotated[
    list[Path] | None,
    typer.Option(
        "--seal", "--bundle", help="Seal to check, repeatable; default: all beside the package."
    ),
]
Repository = Annotated[
    str, typer.Option(help="owner/name of the repository that it must be about.")
]
Base = Annotated[str, typer.Option(help="Branch that it must have been judged for, such as main.")]
MaxAge = Annotated[
    str, typer.Option(help="Maximum age of the seal, by its own timestamp: 90d, 12h.")
]
Least = Annotated[
    LeastIsolation,
    typer.Option(
        help="Weakest isolation of the training that is accepted; another job's report is not."
    ),
]
Package = Annotated[Path | None, typer.Argument(help="The package.tar to verify.")]
NamedPackage = Annotated[
    Path | None, typer.Option("--package", help="The same, where --model names a file.")
]
ModelFile = Annotated[
    Path | None, typer.Option("--model", help="Model file or folder: is it the sealed run's?")
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Print what to type for openssl, cosign and others.")
]


def verify_command(  # noqa: PLR0913 - each parameter is an option of the command
    commit: Commit,
    package: Package = None,
    named: NamedPackage = None,
    trusted_keys: TrustedKeysFile = None,
    seal: Seals = None,
    repository: Repository = "",
    *,
    base: Base = "",
    max_age: MaxAge = "",
    model: ModelFile = None,
    least_isolation: Least = LeastIsolation.NONE,
    certificate_identity: CertificateIdentity = "",
    certificate_oidc_issuer: CertificateIssuer = "",
    trusted_root: TrustedRootFile = None,
    explain: Explain = False,
    as_json: AsJson = False,
) -> None:
    """Verify a sealed package offline.

    Checks all seals, every byte, the verdict, the commit and the content of the states.

    Example: repro-gate verify demo-out/package.tar --trusted-keys trusted-keys.json --commit SHA
    """
    if explain and as_json:
        raise SettingsError(
            "--explain prints commands and no JSON", hint="Leave out --json, or --explain."
        )
    place = _only(package, named)
    identity = Identity(name=certificate_identity, issuer=certificate_oidc_issuer)
    trust = chosen_trust(trusted_keys, identity, trusted_root)
    oldest = SystemClock().now() - _age(max_age) if max_age else None
    expected = Expected(
        commit=commit,
        repository=repository,
        base_branch=base,
        not_before=oldest,
        least_isolation=IsolationMode(least_isolation.value),
    )
    seals = tuple(seal or ())
    trust.make_ready()
    paths = (place, *seals, *(() if model is None else (model,)))
    apart = partial(read_apart, what=safe_line(str(place)), seconds=reading_seconds(*paths))
    if explain:
        text = apart(PlainForm(str), lambda: _explained(place, seals, trust, expected))
        sys.stdout.write(escaped_lines(text))
        return

    def look() -> Checked:
        found = trust.verified(place, expected, seals)
        # after the seals, which say what the content has to be
        recomputed = check_states(place, found.states, FILES)
        return found, recomputed, check_model(model, place, FILES) if model is not None else None

    found, recomputed, checked = apart(CHECKED, look)
    show = verified_json if as_json else verified_text
    sys.stdout.write(escaped_lines(show(found, recomputed, checked)))
    if checked is not None and not checked.holds_the_model:
        raise typer.Exit(int(ExitCode.FAIL))


def _only(package: Path | None, named: Path | None) -> Path:
    """The package, which is named one way or the other."""
    chosen = package or named
    if chosen is None or (package is not None and named is not None):
        raise SettingsError(
            "verify takes one package",
            hint="For example: repro-gate verify package.tar, or --model FILE --package "
            "package.tar.",
        )
    return chosen


def _explained(package: Path, seals: tuple[Path, ...], trust: Trust, expected: Expected) -> str:
    """What to type to check the same without this program."""
    if trust.keys is not None:
        known = (str(trust.keys), trust.trusted_keys())
        return explain_by_key(package, seals, known, expected, FILES)
    artifact = identity_artifact(package, seals, trust.identity, expected, FILES)
    return explain_by_identity(artifact, trusted_root=str(trust.root or ""))
