"""`repro-gate verify`."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gate.adapters.clock import SystemClock
from gate.adapters.sigstore.verifier import verify_identity
from gate.attestation.keys import read_trusted_keys
from gate.attestation.seal_files import find_seals
from gate.attestation.verify import verify_identity_package, verify_package
from gate.commands.options import AsJson
from gate.commands.program import FILES, MAX_DOCUMENT_BYTES
from gate.errors import SettingsError
from gate.pipelines.sealing.explained import (
    explain_by_identity,
    explain_by_key,
    identity_artifact,
)
from gate.pipelines.sealing.verified_view import verified_json, verified_text
from gate.records.sealed.attestation import Expected, VerifiedPackage
from gate.records.sealed.identity import Identity, IdentitySigned
from gate.records.sections.isolation import IsolationMode

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
TrustedKeysFile = Annotated[
    Path | None, typer.Option(help="Trust file, from a source that you trust.")
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
MaxAge = Annotated[
    str, typer.Option(help="Maximum age of the seal, by its own timestamp: 90d, 12h.")
]
Least = Annotated[
    LeastIsolation, typer.Option(help="Weakest isolation of the training that is accepted.")
]
CertificateIdentity = Annotated[
    str, typer.Option(help="For a seal without a key: the workflow that must have sealed.")
]
CertificateIssuer = Annotated[str, typer.Option(help="Who must have told that identity.")]
TrustedRootFile = Annotated[
    Path | None,
    typer.Option(help="Certificates and log keys to trust; default: the public services'."),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Print what to type for openssl, cosign and others.")
]


def verify_command(  # noqa: PLR0913 - each parameter is an option of the command
    package: Annotated[Path, typer.Argument(help="The package.tar to verify.")],
    commit: Commit,
    trusted_keys: TrustedKeysFile = None,
    seal: Seals = None,
    repository: Repository = "",
    max_age: MaxAge = "",
    *,
    least_isolation: Least = LeastIsolation.NONE,
    certificate_identity: CertificateIdentity = "",
    certificate_oidc_issuer: CertificateIssuer = "",
    trusted_root: TrustedRootFile = None,
    explain: Explain = False,
    as_json: AsJson = False,
) -> None:
    """Verify a sealed package offline.

    Checks all seals, every byte, the verdict and the commit.

    Example: repro-gate verify demo-out/package.tar --trusted-keys trusted-keys.json --commit SHA
    """
    if explain and as_json:
        raise SettingsError(
            "--explain prints commands and no JSON", hint="Leave out --json, or --explain."
        )
    identity = Identity(name=certificate_identity, issuer=certificate_oidc_issuer)
    by_key = _by_key(trusted_keys, identity, trusted_root)
    oldest = SystemClock().now() - _age(max_age) if max_age else None
    expected = Expected(
        commit=commit,
        repository=repository,
        not_before=oldest,
        least_isolation=IsolationMode(least_isolation.value),
    )
    asked = _Asked(package=package, seals=tuple(seal or ()), expected=expected)
    if by_key is None:
        _identity_verified(asked, identity, trusted_root, explain=explain, as_json=as_json)
    else:
        _key_verified(asked, by_key, explain=explain, as_json=as_json)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """What is to be verified, and what it must be about."""

    package: Path
    seals: tuple[Path, ...]
    expected: Expected


def _key_verified(asked: _Asked, trust: Path, *, explain: bool, as_json: bool) -> None:
    data = FILES.read_bytes(trust, max_bytes=MAX_DOCUMENT_BYTES)
    trusted = read_trusted_keys(data, str(trust))
    if explain:
        known = (str(trust), trusted)
        sys.stdout.write(explain_by_key(asked.package, asked.seals, known, asked.expected, FILES))
        return
    seals = find_seals(asked.package, FILES, asked.seals)
    found = verify_package(asked.package, seals, trusted, asked.expected, FILES)
    _finish(found, as_json=as_json)


def _identity_verified(
    asked: _Asked, identity: Identity, trusted_root: Path | None, *, explain: bool, as_json: bool
) -> None:
    root = FILES.read_bytes(trusted_root, max_bytes=MAX_DOCUMENT_BYTES) if trusted_root else None
    if explain:
        artifact = identity_artifact(asked.package, asked.seals, identity, asked.expected, FILES)
        sys.stdout.write(explain_by_identity(artifact, trusted_root=str(trusted_root or "")))
        return

    def check(content: bytes) -> IdentitySigned:
        return verify_identity(content, identity, root)

    seals = find_seals(asked.package, FILES, asked.seals)
    found = verify_identity_package(asked.package, seals, check, asked.expected, FILES)
    _finish(found, as_json=as_json)


def _by_key(
    trusted_keys: Path | None, identity: Identity, trusted_root: Path | None
) -> Path | None:
    """The trust file, or None for an identity; `SettingsError` unless it is exactly one of both."""
    if trusted_keys is not None and (identity.name or identity.issuer or trusted_root):
        raise SettingsError(
            "--trusted-keys and --certificate-identity are two ways to verify",
            hint="Give the one that the seal was made for: a key, or a job's identity.",
        )
    if trusted_keys is None and not (identity.name and identity.issuer):
        raise SettingsError(
            "nobody is trusted yet",
            hint="Give --trusted-keys; for a seal without a key --certificate-identity and "
            "--certificate-oidc-issuer, both: anybody can have a certificate of another name.",
        )
    return trusted_keys


def _finish(found: VerifiedPackage, *, as_json: bool) -> None:
    """Both ways to verify end here: seals and bytes are right, and `found` says what they are."""
    sys.stdout.write(verified_json(found) if as_json else verified_text(found))
